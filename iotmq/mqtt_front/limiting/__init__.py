"""Limit what devices cost: rates and connections by client, user, address and listener, bans, overload.

Start with `limiter`, which the front end asks; `buckets` does the work of every message.
"""
