"""Shared subscriptions: choose the member of a group that gets a message.

Start with `shares`; `share_group` is one group, without any I/O, and `strategies` how it chooses. What of
them survives a restart is in `session_store`, and what front ends ask is answered in `handlers/mqtt`.
"""
