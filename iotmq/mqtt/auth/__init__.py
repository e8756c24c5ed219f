"""Authentication in several steps, and how user names and passwords are prepared for it.

Start with `enhanced`.
"""
