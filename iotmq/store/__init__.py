"""The log and all that is derived from it; no sockets, no event loop.

Start with `store`, which writes, and `reader`, which reads; then `log`, which the others are built on.
"""
