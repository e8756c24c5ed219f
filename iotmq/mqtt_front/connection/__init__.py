"""One connected device: its connection core, its socket, and what is being sent to it.

Start with `device`.
"""
