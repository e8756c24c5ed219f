"""Producers: from `send` to the broker's answer, with batches, deadlines and further tries.

Start with `producer`; `transactions` is the producer whose messages count when it says so.
"""
