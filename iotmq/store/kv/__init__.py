"""Projections into a key-value database: timers, and the last message of each key.

Start with `kv_projection`, which keeps one in step with the log.
"""
