"""Consumers and producers that are connected: their groups, and the queues they have locked.

Start with `groups`. Both tables live in memory and forget a client that is silent; what survives a restart
is in `tables`.
"""
