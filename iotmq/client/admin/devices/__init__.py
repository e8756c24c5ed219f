"""Ask brokers and front ends about MQTT devices: connections, sessions, bans, retained messages, traces.

Start with `clients`.
"""
