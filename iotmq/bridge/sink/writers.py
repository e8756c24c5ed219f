"""Writers of ``format("iotmq")``, batch and stream: what Spark calls on the driver and in tasks.

Each task is a producer that numbers its batches. Its name is the id of the query (of a batch write, one of
its own) and the Spark partition.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Final

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from iotmq.bridge.pool import connections
from iotmq.bridge.said_first import said_first
from iotmq.bridge.sink.errors import SinkError
from iotmq.bridge.sink.options import BATCH_ID_MAX, SinkOptions
from iotmq.bridge.sink.rows import check_sink_schema
from iotmq.bridge.sink.task import Identity, SinkTask

_log = logging.getLogger("iotmq.bridge")

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class RowsStored(WriterCommitMessage):
    """Tell the driver how many rows a task has stored."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class IotmqWriter(DataSourceArrowWriter):
    """A batch write. Made once on the driver, so that every try of a task has the same name."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_sink_schema(schema, has_topic=bool(options.topic))
        self._options = options
        self._producer = options.producer or str(uuid.uuid4())

    @said_first
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, iterator, producer=self._producer, batch=self._options.batch or 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log.info("%d rows stored", _row_count(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log.warning(
            "a write failed; %d rows of the tasks that were done are stored, and maybe some of others",
            _row_count(messages),
        )


class IotmqStreamWriter(DataSourceStreamArrowWriter):
    """A write of micro-batches, each known by its query and number."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_sink_schema(schema, has_topic=bool(options.topic))
        self._options = options

    @said_first
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        query = task.getLocalProperty(_QUERY_ID) if task is not None else None
        batch = task.getLocalProperty(_BATCH_ID) if task is not None else None
        if not query or batch is None or not 0 <= int(batch) <= BATCH_ID_MAX:
            raise SinkError(f"Spark does not tell which batch this is: query {query!r}, batch {batch!r}")
        return _write(self._options, iterator, producer=query, batch=int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log.info("batch %d: %d rows stored", batchId, _row_count(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log.warning("batch %d failed; what is stored of it is not stored again", batchId)


def _write(
    options: SinkOptions, batches: Iterator[pyarrow.RecordBatch], *, producer: str, batch: int
) -> RowsStored:
    task = TaskContext.get()
    partition = 0 if task is None else task.partitionId()
    cluster = connections.take(options.connection, options.connection.open)
    try:
        identity = Identity(f"{producer}/{partition}", batch, partition)
        stored = RowsStored(SinkTask(options, cluster, identity).write(batches))
    except BaseException:
        # Answers may be under way.
        cluster.close()
        raise
    connections.put_back(options.connection, cluster)
    return stored


def _row_count(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, RowsStored))
