"""Queues without files of their own: which records wait for which filter of a kept session.

Start with `light_queues`.
"""
