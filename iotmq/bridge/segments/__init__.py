"""Read the files of a log without a broker."""
