"""Answers for MQTT front ends, in the same process or another.

Start with `gateway` for messages, and with `sessions` for sessions.
"""
