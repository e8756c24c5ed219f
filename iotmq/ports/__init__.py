"""Define what an MQTT front end and a broker ask of each other, however it is carried.

Start with `gateway` (messages), then `sessions`. The broker answers in the same process, `front_port` from
another.
"""
