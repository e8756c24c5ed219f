"""What happens when a store opens: which bytes are good, and what must be done about the others.

Start with `opening`, then `recovery`. `write_state` says whether the store takes messages at all.
"""
