"""Serve subscriptions and sessions of devices, kept sessions and shared subscriptions included.

Start with `sessions`, then `subscriptions`; `durable` is a kept session's way to its device.
"""
