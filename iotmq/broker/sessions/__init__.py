"""Kept sessions of MQTT clients: who owns one, what waits for it, its will, its end.

Start with `sessions`, then `ownership`, which also ends those that expired. What of them survives a restart
is in the room `session_store`.
"""
