"""Small files beside the log: the lock, one record of state, how far the log was flushed.

Start with `state_record`, a file that is either the old one or the new one.
"""
