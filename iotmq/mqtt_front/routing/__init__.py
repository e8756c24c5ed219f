"""The broker topic and queue of an MQTT topic: routes, rewritten topics, names of devices.

Start with `routes`.
"""
