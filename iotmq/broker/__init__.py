"""A broker: what clients and front ends ask of it, over one store.

Start with `broker`, which makes the parts and joins them. What answers requests is in `handlers`; every other
room is one subject, and uses only rooms that know less than it does.
"""
