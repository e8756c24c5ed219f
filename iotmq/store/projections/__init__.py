"""Derive structures from the log, and let them catch up with it.

Start with `projection`, the contract; `dispatch` feeds queues and index with what was appended.
"""
