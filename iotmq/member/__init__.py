"""Run one member of a replicated broker: connections to the others, the consensus store, and both its roles.

Start with `replicated_broker`, which opens the log and starts the broker when this member is master; `driver`
carries out what the state machine of `iotmq.replication` asks.
"""
