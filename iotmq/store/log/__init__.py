"""The log itself: segments, records, queue files, and what brings them to the disk.

Start with `commit_log`; `flush` says when bytes are safe.
"""
