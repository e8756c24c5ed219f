"""The part of sessions that is on the disk: records in the log, and the state they add up to.

Start with `projection`, which reads the records of `records`; `log` writes them.
"""
