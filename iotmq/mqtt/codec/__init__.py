"""Bytes to packets and back.

Start with `packets`; `framing` finds where a packet ends, `properties` reads those of MQTT 5.
"""
