"""A client's side of one connection: bytes and time in, events and bytes out.

Start with `connection`. The sockets around it are in `iotmq.mqtt_client`.
"""
