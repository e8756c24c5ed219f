"""A plug-in for amqtt's broker at the edge: what it takes goes to a centre, over a queue on the disk.

Start with `plugin`. Nothing else of iotmq imports this; amqtt is not needed for anything else of it.
"""
