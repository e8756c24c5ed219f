"""Put the state machine of `iotmq/replication` on a data directory: what a member remembers, and its log.

Start with `member_store`, which opens both. Nothing here knows a network.
"""
