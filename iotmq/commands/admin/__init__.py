"""`iotmq admin`: looking at and changing brokers, registries, topics, groups and messages by hand."""
