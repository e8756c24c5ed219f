"""Shared subscriptions: which member of a group gets which message.

Start with `shares`; `share_group` is one group, without any I/O.
"""
