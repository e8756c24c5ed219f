"""The MQTT language without any I/O, for servers and clients.

Start with `codec.packets`, then `server.connection` or `client.connection`.
"""
