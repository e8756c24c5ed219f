"""Bytes to packets and back.

Start with `packets`; `framing` finds where a packet ends, `field_reader` reads the fields of one, and
`properties` the properties of MQTT 5.
"""
