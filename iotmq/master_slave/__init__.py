"""Run a broker as master or slave in the way of RocketMQ 4.9, whose brokers may be the other one.

Start with `master` and `slave`. The wire is in `iotmq.replication.rocketmq`; roles change by a restart.
"""
