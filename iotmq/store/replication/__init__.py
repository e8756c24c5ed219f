"""The log as bytes: read for a copy elsewhere, appended from one, and waited for until they are on the disk.

Start with `raw`. `iotmq/replication` decides what is copied where.
"""
