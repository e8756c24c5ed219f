"""Whether a store agrees with itself, while it is open.

Start with `check`.
"""
