"""Speak the replication wire of RocketMQ 4.9: `ha_master` sends a log, `ha_slave` takes one, without I/O.

A slave reports positions, 8 bytes each. A master sends frames: int64 position, int32 size, and bytes of the
log; a frame of size 0 is a heartbeat. There is no handshake. Whoever refuses closes the connection.
"""
