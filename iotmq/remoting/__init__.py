"""The native protocol: commands, frames, and connections of both sides.

Start with `command`; `server` and `connection` carry commands, `frames` makes bytes of them.
"""
