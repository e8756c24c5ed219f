"""Lets Spark find ``format("iotmq")`` by itself: it imports every top-level module named pyspark_*."""

from iotmq.bridge.source import IotmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
