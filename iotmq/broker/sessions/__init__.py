"""Kept sessions of MQTT clients: who owns one, what waits for it, its will, its end.

Start with `sessions`. What of it survives a restart is in the room `session_store`.
"""
