"""Answers for producers and consumers: sends, pulls, offsets, locks, transactions, timers.

Start with `send` and `pull`. The two files named fast path answer the plain case in compiled code, a batch at
a time.
"""
