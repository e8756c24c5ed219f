"""Store the log and its derived files: queues, key index, databases; no sockets, no event loop.

Start with `store`, which writes, and `reader`, which reads; then `log`, which the others are built on.
"""
