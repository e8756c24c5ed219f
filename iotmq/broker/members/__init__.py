"""Consumers and producers that are connected: their groups, and who has locked which queue.

Start with `groups`.
"""
