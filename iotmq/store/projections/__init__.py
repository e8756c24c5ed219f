"""What is derived from the log, and how it catches up with it.

Start with `projection`, the contract; `dispatch` feeds queues and index with what was appended.
"""
