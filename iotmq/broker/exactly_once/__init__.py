"""Messages that a sender repeats are stored once: which ones have been stored before.

Start with `stored_once`, which asks; `received_ids` remembers.
"""
