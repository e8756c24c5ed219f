"""``format("iotmq")``: broker queues as a table and as a stream of rows.

Imported by the driver, by the planning worker of each query and by every task; nothing here keeps state
between batches but connections, which are made again wherever a copy of a reader lands.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from iotmq.bridge.cluster import Address, Cluster, Retry, TopicMissingError
from iotmq.bridge.edges import first_at_or_after, resolve_edge
from iotmq.bridge.offsets import (
    INITIAL,
    QueueBounds,
    QueueKey,
    QueueRange,
    StreamOffset,
    from_json,
    ranges_between,
    to_json,
)
from iotmq.bridge.options import Edge, SourceOptions, parse_options, wants_headers
from iotmq.bridge.plan import DataLossError, Loss, advance, describe_losses, split_tasks, within
from iotmq.bridge.pull import PullSettings, pull_range, record_at
from iotmq.bridge.rows import RowBuilder, check_schema, default_schema
from iotmq.bridge.segment_reader import SegmentReader
from iotmq.bridge.sink.options import parse_sink_options
from iotmq.bridge.sink.writers import IotmqStreamWriter, IotmqWriter
from iotmq.errors import ConfigError
from iotmq.message.records.record import decode_record
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.signature import Credentials
from iotmq.remoting.tls.files import client_tls

FORMAT_NAME: Final = "iotmq"

_log = logging.getLogger("iotmq.bridge")


class IotmqDataSource(DataSource):
    """The entry point that Spark knows; see docs/reference/spark.md for options and columns."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        return default_schema(with_properties=wants_headers(dict(self.options)))

    def reader(self, schema: StructType) -> IotmqReader | SegmentReader:
        options = parse_options(dict(self.options), streaming=False)
        return SegmentReader(options, schema) if options.path else IotmqReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> IotmqWriter:
        if overwrite:
            raise ConfigError("format iotmq only appends: a topic is not overwritten. Use mode append")
        return IotmqWriter(parse_sink_options(dict(self.options), streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> IotmqStreamWriter:  # noqa: N802
        if overwrite:
            raise ConfigError("format iotmq only appends: use output mode append or update")
        return IotmqStreamWriter(parse_sink_options(dict(self.options), streaming=True), schema)

    def streamReader(self, schema: StructType) -> IotmqStreamReader:  # noqa: N802
        return IotmqStreamReader(parse_options(dict(self.options), streaming=True), schema)


class QueueRanges(InputPartition):
    """Describe the work of one task: ranges of queues, and the addresses of their brokers at planning."""

    def __init__(self, ranges: tuple[QueueRange, ...], addresses: Mapping[str, Address]) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.addresses = dict(addresses)


class IotmqReader(DataSourceReader):
    """A batch read: both ends are resolved once, when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with _View(self._options) as view:
            bounds = view.bounds()
            starts = view.resolve(self._options.starting, bounds)
            ends = view.resolve(self._options.ending, bounds)
            for key in bounds:
                if ends[key] < starts[key]:
                    raise ConfigError(
                        f"{key} would be read from offset {starts[key]} to {ends[key]}: the ending options "
                        "lie before the starting ones"
                    )
            ranges = [QueueRange(key, starts[key], ends[key]) for key in bounds if ends[key] > starts[key]]
            return view.tasks(ranges)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_ranges(self._options, self._schema, partition)


class IotmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: Spark keeps the offsets, this class says how far they can go and reads between two.

    One instance lives in the planning worker of a query for as long as the query runs; copies of it go
    to the tasks.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._view: _View | None = None
        self._ends: dict[QueueKey, int] = {}  # ends of all queues when they were last asked for
        self._target: dict[QueueKey, int] | None = None  # set by a trigger that stops at today's end

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_view": None}

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        # Spark asks again after a crash in the first batch, so an answer that depends on the moment
        # must wait until it can be pinned in the log: `latestOffset` does that.
        if not self._options.starting.is_stable:
            return to_json(INITIAL)
        view = self._open_view()
        return to_json(StreamOffset(view.resolve(self._options.starting, view.bounds(is_patient=True))))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        begin = from_json(start)
        view = self._open_view()
        if begin.is_initial:
            bounds = view.bounds(is_patient=True)
            self._ends = {key: held.max_offset for key, held in bounds.items()}
            return to_json(StreamOffset(view.resolve(self._options.starting, bounds)))
        known_ends = self._ends
        bounds, removed = view.settled_bounds(begin)
        self._ends = {key: held.max_offset for key, held in bounds.items()}
        if self._target is not None:
            # What is already read stays read, even where it came after the target was taken.
            reached = {key: max(offset, self._target.get(key, 0)) for key, offset in begin.offsets.items()}
            bounds = within(bounds, self._target | reached)
        step = advance(
            begin,
            bounds,
            removed=removed,
            known_ends=known_ends,
            rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
        )
        view.report(step.losses)
        return to_json(step.end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        bounds = self._open_view().bounds_of_those_there()
        self._target = {key: held.max_offset for key, held in bounds.items()}

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        return to_json(StreamOffset(self._ends)) if self._ends else None

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        return self._open_view().tasks(ranges_between(from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_ranges(self._options, self._schema, partition)

    def commit(self, end: dict[str, object]) -> None:
        """Nothing: the checkpoint is the only place where progress is kept."""

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()

    def _open_view(self) -> _View:
        if self._view is None:
            self._view = _View(self._options)
        return self._view


def read_ranges(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of one task, one record batch per pull answer."""
    assert isinstance(partition, QueueRanges), partition
    builder = RowBuilder(schema)
    lose = _loss_handler(options)
    cluster = open_cluster(options)
    settings = PullSettings(options.group_prefix, options.pull_bytes)
    try:
        for part in partition.ranges:
            address = partition.addresses[part.key.broker]
            for pulled in pull_range(cluster, part, address, settings, lose):
                yield from builder.build(pulled, part.key, lose)
    finally:
        cluster.close()


def open_cluster(options: SourceOptions) -> Cluster:
    """Connections (none made yet) with the timeouts, the account and the encryption of `options`."""
    credentials = Credentials(options.access_key, options.secret_key) if options.access_key else None
    return Cluster(
        options.registries,
        request_timeout_s=options.request_timeout_s,
        retry=Retry(options.retry_timeout_s),
        connect=partial(
            BlockingConnection,
            credentials=credentials,
            tls=client_tls(ca_file=options.ca_file) if options.is_encrypted else None,
        ),
    )


class _View:
    """Hold the cluster as planning sees it: subscribed queues, their bounds, and their brokers' addresses."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = open_cluster(options)
        self._addresses: dict[str, Address] = {}
        self._lose = _loss_handler(options)
        self._given_up: set[QueueKey] = set()  # queues that were waited for in vain; not waited for again
        self._reported: dict[QueueKey, Loss] = {}  # what was said last about a queue

    def __enter__(self) -> _View:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._cluster.close()

    def bounds(self, *, is_patient: bool = False) -> dict[QueueKey, QueueBounds]:
        """Bounds of all subscribed queues, in order.

        A topic that does not exist is an error; when `is_patient`, only after the time of
        retryTimeoutMs, so that a stream may be started just before its topic is first written to.
        """
        patience = self._cluster.retry.patience()
        while True:
            try:
                bounds: dict[QueueKey, QueueBounds] = {}
                for topic in sorted(self._topics()):
                    bounds |= self._bounds(topic)
                return bounds
            except TopicMissingError:
                if not is_patient or not patience.wait():
                    raise

    def bounds_of_those_there(self) -> dict[QueueKey, QueueBounds]:
        """Bounds of all queues of the subscribed topics that exist, in order."""
        bounds: dict[QueueKey, QueueBounds] = {}
        for topic in sorted(self._topics()):
            try:
                bounds |= self._bounds(topic)
            except TopicMissingError:
                continue
        return bounds

    def settled_bounds(
        self, begin: StreamOffset
    ) -> tuple[dict[QueueKey, QueueBounds], dict[QueueKey, QueueBounds | None]]:
        """Bounds in which every queue of `begin` reaches its offset, if that comes in time.

        While a broker restarts, its queues leave the route or look shorter than they are; that becomes
        a loss only when it lasts. The second mapping has what brokers say of queues that left the route.
        """
        patience = self._cluster.retry.patience()
        while True:
            bounds = self.bounds_of_those_there()
            absent = begin.offsets.keys() - bounds.keys()
            removed = self._cluster.held_bounds(absent) if absent else {}
            unsettled = {
                key for key, offset in begin.offsets.items() if not _is_settled(key, offset, bounds, removed)
            }
            self._given_up &= unsettled
            if unsettled <= self._given_up:
                return bounds, removed
            if not patience.wait():
                self._given_up = unsettled
                return bounds, removed

    def resolve(self, edge: Edge, bounds: Mapping[QueueKey, QueueBounds]) -> dict[QueueKey, int]:
        """Return the offset that `edge` means per queue; what it wants beyond the bounds is reported."""
        is_end = edge is self._options.ending
        resolved = resolve_edge(
            edge,
            bounds,
            search=self._search,
            late_timestamp="latest" if is_end else self._options.late_timestamp,
        )
        self.report(resolved.losses)
        return resolved.offsets

    def tasks(self, ranges: Sequence[QueueRange]) -> list[InputPartition]:
        """Return the ranges as Spark partitions, with the addresses their tasks need."""
        brokers = {part.key.broker for part in ranges}
        if brokers - self._addresses.keys():
            self._addresses.update(self._cluster.brokers(brokers))
        return [
            QueueRanges(task, {part.key.broker: self._addresses[part.key.broker] for part in task})
            for task in split_tasks(
                ranges,
                partitions_min=self._options.partitions_min,
                combine_rows=self._options.combine_rows,
            )
        ]

    def report(self, losses: Iterable[Loss]) -> None:
        """Raise DataLossError for `losses`, or log those that are new when failOnDataLoss is false."""
        told = {loss.key: loss for loss in losses}
        self._lose(*(loss for key, loss in told.items() if self._reported.get(key) != loss))
        self._reported = told

    def _topics(self) -> Sequence[str]:
        pattern = self._options.subscription.pattern
        if pattern is None:
            return self._options.subscription.topics
        return [name for name in self._cluster.topics() if re.fullmatch(pattern, name)]

    def _bounds(self, topic: str) -> dict[QueueKey, QueueBounds]:
        found, addresses = self._cluster.bounds(topic, self._options.subscription.wants)
        self._addresses.update(addresses)
        return found

    def _search(self, key: QueueKey, held: QueueBounds, timestamp_ms: int) -> int:
        settings = PullSettings(self._options.group_prefix, self._options.pull_bytes)

        def stored_at_ms(offset: int) -> int | None:
            record = record_at(self._cluster, key, self._addresses[key.broker], settings, offset)
            return None if record is None else decode_record(record).store_timestamp_ms

        return first_at_or_after(timestamp_ms, held, stored_at_ms)


def _is_settled(
    key: QueueKey,
    offset: int,
    bounds: Mapping[QueueKey, QueueBounds],
    removed: Mapping[QueueKey, QueueBounds | None],
) -> bool:
    """Return whether waiting would change nothing.

    The queue is there, or its broker says it is gone for good.
    """
    if key in bounds:
        return bounds[key].max_offset >= offset
    if key not in removed:
        return False
    held = removed[key]
    return held is None or held.max_offset <= offset


def _loss_handler(options: SourceOptions) -> Callable[..., None]:
    """Choose how lost records are reported: by the option failOnDataLoss."""

    def fail(*losses: Loss) -> None:
        if losses:
            raise DataLossError(
                describe_losses(
                    losses,
                    consequence="To go on with what is left, set option failOnDataLoss to false; "
                    "to start afresh, use a new checkpoint directory",
                )
            )

    def warn(*losses: Loss) -> None:
        if losses:
            _log.warning(
                "%s",
                describe_losses(losses, consequence="Going on with what is left (failOnDataLoss is false)"),
            )

    return fail if options.fail_on_data_loss else warn
