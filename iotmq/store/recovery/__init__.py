"""Open a store: find the good bytes, and deal with the others.

Start with `opening`, then `recovery`. `write_state` says whether the store takes messages at all.
"""
