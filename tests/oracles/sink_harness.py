"""The sink without Spark: rows as dictionaries through a task of it, to any registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow

from iotmq.bridge.sink.options import parse_sink_options
from iotmq.bridge.sink.task import Identity, SinkTask

TYPES: Mapping[str, pyarrow.DataType] = {
    "value": pyarrow.binary(),
    "key": pyarrow.string(),
    "topic": pyarrow.string(),
    "partition": pyarrow.int32(),
    "broker": pyarrow.string(),
    "tags": pyarrow.string(),
    "mqtt_topic": pyarrow.string(),
    "qos": pyarrow.int32(),
    "retain": pyarrow.bool_(),
    "ttl_ms": pyarrow.int64(),
    "delay_ms": pyarrow.int64(),
    "content_type": pyarrow.string(),
    "response_topic": pyarrow.string(),
    "correlation_data": pyarrow.binary(),
    "properties": pyarrow.map_(pyarrow.string(), pyarrow.string()),
    "headers": pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])),
}


def record_batches(rows: Sequence[Mapping[str, Any]], *, rows_max: int = 10_000) -> list[pyarrow.RecordBatch]:
    """Rows as Spark hands them over; the columns are those of the first row."""
    schema = pyarrow.schema([(name, TYPES[name]) for name in rows[0]])
    return [
        pyarrow.RecordBatch.from_pylist([dict(row) for row in rows[at : at + rows_max]], schema)
        for at in range(0, len(rows), rows_max)
    ]


def sink(
    registry: str,
    batches: Iterable[pyarrow.RecordBatch],
    *,
    producer: str = "query/0",
    batch: int = 0,
    **options: str,
) -> int:
    """Write record batches as one task does; the rows stored."""
    given = {"iotmq.bootstrap.servers": registry, "requestTimeoutMs": "3000", "retryTimeoutMs": "20000"}
    checked = parse_sink_options(given | options, streaming=False)
    cluster = checked.connection.open()
    try:
        return SinkTask(checked, cluster, Identity(producer, batch, 0)).write(batches)
    finally:
        cluster.close()
