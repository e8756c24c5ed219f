"""Lets Spark find ``format("iotmq")`` by itself: it imports every top-level module named pyspark_*."""

import logging

try:
    from iotmq.bridge.source import IotmqDataSource as DefaultSource
except ImportError as error:
    # Spark gives up all sources when one module fails. Who has PySpark for others' need not have our extra.
    logging.getLogger("iotmq.bridge").info("no format iotmq, see the extra iotmq[spark]: %s", error)
else:
    __all__ = ["DefaultSource"]
