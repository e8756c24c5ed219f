"""Requests that want a reply from a device or from a service, and the way of the reply back.

Start with `replies`.
"""
