"""Connect an MQTT front end to brokers in other processes, over the native protocol.

Start with `gateway` for messages, and with `session_gateway` for sessions; both do what `iotmq.ports` asks
for.
"""
