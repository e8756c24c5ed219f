"""Producers: from `send` to the broker's answer, with batches, deadlines and further tries.

Start with `producer`; `transactions` has the producer of transactions, `requests` sends
requests and replies.
"""
