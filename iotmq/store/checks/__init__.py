"""Check that an open store agrees with itself: the log, its queues, the key index.

Start with `check`. The checks of databases need a closed store and are in `tools`.
"""
