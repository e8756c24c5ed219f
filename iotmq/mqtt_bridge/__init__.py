"""Bridges to other MQTT brokers (`[[bridges]]`): what is in the log goes there, what is published there
comes here.

Start with `bridge`, which keeps the connections of one; `connection` speaks MQTT as a client, and sends
records of the log; `queue_feed` reads them. `bridges` has all of them, as a role. `iotmq.bridge`, beside
this, is Spark's.
"""
