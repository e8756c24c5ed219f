"""The tables a broker keeps beside its log: topics, groups, offsets, settings changed while it runs.

Start with `topics`. `table_files` writes the tables to the config folder and reads them when the broker
starts.
"""
