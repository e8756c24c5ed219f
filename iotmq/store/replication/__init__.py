"""The log as bytes, for a second copy elsewhere, and who waits until bytes are safe.

Start with `raw`.
"""
