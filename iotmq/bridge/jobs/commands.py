"""Messages from jobs: batches of rows that are stored once, and commands to devices among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from iotmq.bridge.options.connection import CONNECTION_NAMES, SERVERS

COMMAND_COLUMNS: Final = ("value", "mqtt_topic", "qos")

# Options of a reader that a writer takes, too.
_OF_BOTH: Final = frozenset(name.lower() for name in CONNECTION_NAMES if name != SERVERS)


def send_commands(
    commands: DataFrame, *, bootstrap: str, topic: str, source: Mapping[str, str], batch: str
) -> None:
    """Store rows of COMMAND_COLUMNS for devices, through a broker topic, as `write_batch` does."""
    # One task and one order, so that each try sends the same.
    ordered = commands.coalesce(1).sortWithinPartitions(*COMMAND_COLUMNS)
    write_batch(ordered, bootstrap=bootstrap, topic=topic, source=source, batch=batch)


def write_batch(
    rows: DataFrame, *, bootstrap: str, topic: str, source: Mapping[str, str], batch: str
) -> None:
    """Store rows that are the same in the same order at each try in a topic, which has to be there.

    `batch` is WRITER-NUMBER: what is sent again, by a batch that is done again, is stored once.
    """
    writer, _, number = batch.rpartition("-")
    (
        rows.write.format("iotmq")
        .mode("append")
        .options(**{name: value for name, value in source.items() if name.lower() in _OF_BOTH})
        .options(**{SERVERS: bootstrap, "topic": topic})
        .options(producerId=writer, batchId=number)
        .save()
    )
