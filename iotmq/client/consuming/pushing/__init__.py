"""Consumers with a listener: `queue_reader` reads one queue, `listener_calls` calls and repeats."""
