"""``format("iotmq")``: broker queues as a table and as a stream of rows.

Imported by the driver, by the planning worker of each query and by every task; nothing here keeps state
between batches but connections, which are made again wherever a copy of a reader lands.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from iotmq.bridge.cluster import Address, Patience, TopicMissingError
from iotmq.bridge.edges import first_at_or_after, resolve_edge
from iotmq.bridge.offsets import (
    INITIAL,
    Generations,
    QueueBounds,
    QueueKey,
    QueueRange,
    StreamOffset,
    from_json,
    ranges_between,
    to_json,
)
from iotmq.bridge.options.reading import LATEST, Edge, SourceOptions, parse_options, wants_headers
from iotmq.bridge.pace import Pace
from iotmq.bridge.plan import (
    DataLossError,
    Held,
    Loss,
    advance,
    describe_losses,
    is_settled,
    shorter_than,
    split_tasks,
)
from iotmq.bridge.pool import connections
from iotmq.bridge.progress import Progress
from iotmq.bridge.pull import PullSettings, pull_range, store_time_at
from iotmq.bridge.pushed import Narrowed, narrowed_spans
from iotmq.bridge.reused_worker import set_libraries_aside
from iotmq.bridge.rows import RowBuilder, check_schema, default_schema
from iotmq.bridge.said_first import each_said_first, said_first
from iotmq.bridge.segments.reader import SegmentReader
from iotmq.bridge.sink.options import parse_sink_options
from iotmq.bridge.sink.writers import IotmqStreamWriter, IotmqWriter
from iotmq.clock import SystemClock
from iotmq.errors import ConfigError

FORMAT_NAME: Final = "iotmq"

# Brokers' clocks may differ by so much: a queue that is made just after a stream has begun is read whole.
_CLOCKS_DIFFER_MS: Final = 10_000

_log = logging.getLogger("iotmq.bridge")


class IotmqDataSource(DataSource):
    """The entry point that Spark knows; see docs/reference/spark.md for options and columns."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    @said_first
    def schema(self) -> StructType:
        return default_schema(with_properties=wants_headers(dict(self.options)))

    @said_first
    def reader(self, schema: StructType) -> IotmqReader | SegmentReader:
        options = parse_options(dict(self.options), streaming=False)
        if options.path:
            return SegmentReader(options, schema)
        return FilteringReader(options, schema) if options.pushes_filters else IotmqReader(options, schema)

    @said_first
    def writer(self, schema: StructType, overwrite: bool) -> IotmqWriter:
        if overwrite:
            raise ConfigError("format iotmq only appends: a topic is not overwritten. Use mode append")
        return IotmqWriter(parse_sink_options(dict(self.options), streaming=False), schema)

    @said_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> IotmqStreamWriter:  # noqa: N802
        if overwrite:
            raise ConfigError("format iotmq only appends: use output mode append or update")
        return IotmqStreamWriter(parse_sink_options(dict(self.options), streaming=True), schema)

    @said_first
    def streamReader(self, schema: StructType) -> IotmqStreamReader:  # noqa: N802
        return IotmqStreamReader(parse_options(dict(self.options), streaming=True), schema)


class QueueRanges(InputPartition):
    """Describe the work of one task: ranges of queues, and the addresses of their brokers at planning.

    Records whose time to live was over at `time_ms` are passed over; none are with 0.
    """

    def __init__(
        self, ranges: tuple[QueueRange, ...], addresses: Mapping[str, Address], time_ms: int = 0
    ) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.addresses = dict(addresses)
        self.time_ms = time_ms


class IotmqReader(DataSourceReader):
    """A batch read: both ends are resolved once, when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._narrowed = Narrowed()

    @said_first
    def partitions(self) -> Sequence[InputPartition]:
        with _View(self._options) as view:
            held = view.bounds()
            bounds = held.bounds
            starts = view.resolve(self._options.starting, bounds)
            ends = view.resolve(self._options.ending, bounds)
            for key in bounds:
                if ends[key] < starts[key]:
                    raise ConfigError(
                        f"{key} would be read from offset {starts[key]} to {ends[key]}: the ending options "
                        "lie before the starting ones"
                    )
            spans = {key: (starts[key], ends[key]) for key in bounds}
            left = narrowed_spans(self._narrowed, bounds, spans, view.search)
            ranges = [
                QueueRange(key, start, end, held.generations.get((key.topic, key.broker), ""))
                for key, (start, end) in left.items()
                if end > start
            ]
            return view.tasks(ranges, held.time_ms)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_ranges(self._options, self._schema, partition)


class FilteringReader(IotmqReader):
    """A batch read that leaves out what the filters of its query cannot want.

    A class of its own, because Spark refuses every read of a reader that takes filters where they are not
    enabled (spark.sql.python.filterPushdown.enabled).
    """

    @said_first
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._narrowed.take(filters)
        return filters


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
        self._stops_at_target = False  # set by a trigger that reads what is there, and ends
        # Ends of all queues when they were asked for first under that trigger.
        self._target: dict[QueueKey, int] | None = None
        self._pace = Pace(options.offsets_per_trigger_min, options.trigger_delay_max_s)
        self._progress = Progress(options.group_id, options.group_prefix)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_view": None}

    @said_first
    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        # Spark asks again after a crash in the first batch, so an answer that depends on the moment
        # must wait until it can be pinned in the log: `latestOffset` does that.
        if not self._options.starting.is_stable:
            return to_json(INITIAL)
        view = self._open_view()
        return to_json(view.start(view.bounds(is_patient=True)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    @said_first
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        begin = from_json(start)
        view = self._open_view()
        if begin.is_initial:
            held = view.bounds(is_patient=True)
            self._note_ends(held)
            return to_json(view.start(held))
        if not begin.stream_id:
            begin = begin._replace(stream_id=_new_id())
        held = view.settled_bounds(begin, self._target or {})
        self._note_ends(held)
        if self._progress.is_unknown:
            # So that records are waited for before the first batch is read.
            view.publish(self._progress, begin)
        losses: list[Loss] = []
        if self._target is not None:
            losses += shorter_than(self._target, held)
            # What is already read stays read, even where it came after the target was taken.
            known = {**begin.left, **begin.offsets}
            reached = {key: max(offset, self._target.get(key, 0)) for key, offset in known.items()}
            held = held.within(self._target | reached)
        step = advance(
            begin,
            held,
            first_offset=partial(view.first_offset, since_ms=begin.since_ms),
            is_subscribed=self._options.subscription.covers,
            rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
        )
        view.report([*losses, *step.losses])
        if not self._stops_at_target and not self._pace.lets_go(_rows_waiting(begin, held)):
            return start
        return to_json(step.end)

    @said_first
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # Where it stops is settled with the first batch: then it is known which queues were read before, and
        # those of a broker that is away are waited for.
        self._stops_at_target = True
        self._target = None

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        return to_json(StreamOffset(self._ends)) if self._ends else None

    @said_first
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        stop = from_json(end)
        return self._open_view().tasks(ranges_between(from_json(start), stop), stop.time_ms)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_ranges(self._options, self._schema, partition)

    @said_first
    def commit(self, end: dict[str, object]) -> None:
        """Tell brokers what has been read: they may wait for it. Progress is kept in the checkpoint alone."""
        self._open_view().publish(self._progress, from_json(end))

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()

    def _note_ends(self, held: Held) -> None:
        self._ends = {key: bounds.max_offset for key, bounds in held.bounds.items()}
        if self._stops_at_target and self._target is None:
            self._target = dict(self._ends)

    def _open_view(self) -> _View:
        if self._view is None:
            self._view = _View(self._options, is_stream=True)
        return self._view


@each_said_first
def read_ranges(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of one task, one record batch per pull answer."""
    if partition.value is None:
        return  # Spark's own, in the place of no task at all
    assert isinstance(partition, QueueRanges), partition
    builder = RowBuilder(schema, options.wanted)
    lose = _loss_handler(options)
    cluster = connections.take(options.connection, options.connection.open)
    expired_at_ms = 0 if options.include_expired else partition.time_ms
    settings = PullSettings(
        options.group_prefix, options.pull_bytes, expired_at_ms, options.wanted.subscription
    )
    is_done = False
    try:
        for part in partition.ranges:
            address = partition.addresses[part.key.broker]
            for pulled in pull_range(cluster, part, address, settings, lose):
                yield from builder.build(pulled, part.key, lose)
        is_done = True
    finally:
        if is_done:
            connections.put_back(options.connection, cluster)
            set_libraries_aside()
        else:
            # An answer may be on its way, which the next task would take for its own.
            cluster.close()


class _View:
    """Hold the cluster as planning sees it: subscribed queues, their bounds, and their brokers' addresses."""

    def __init__(self, options: SourceOptions, *, is_stream: bool = False) -> None:
        self._options = options
        self._cluster = options.connection.open(waits_for_brokers=is_stream)
        self._addresses: dict[str, Address] = {}
        self._lose = _loss_handler(options)
        self._given_up: set[QueueKey] = set()  # queues that were waited for in vain; not waited for again
        self._missing: set[str] = set()  # topics that were not there the last time
        self._reported: dict[QueueKey, Loss] = {}  # what was said last about a queue

    def __enter__(self) -> _View:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._cluster.close()

    def bounds(self, *, is_patient: bool = False) -> Held:
        """Bounds of all subscribed queues, in order.

        A topic that does not exist is an error; when `is_patient`, only after the time of
        retryTimeoutMs, so that a stream may be started just before its topic is first written to.
        """
        patience = self._cluster.retry.patience()
        while True:
            try:
                held = Held({})
                for topic in sorted(self._topics()):
                    held = held.and_also(self._bounds(topic))
                return self._with_time(held)
            except TopicMissingError as error:
                if not is_patient or not patience.wait(str(error)):
                    raise

    def bounds_of_those_there(self, begin: StreamOffset) -> Held:
        """Bounds of all queues of the subscribed topics that exist, in order, and changes since `begin`."""
        held = Held({})
        for topic in sorted(self._topics()):
            try:
                held = held.and_also(self._bounds(topic, begin.generations))
                self._missing.discard(topic)
            except TopicMissingError as error:
                if topic not in self._missing:
                    _log.warning("nothing is read of a topic that is not there: %s", error)
                self._missing.add(topic)
        return self._with_time(held)

    def settled_bounds(self, begin: StreamOffset, target: Mapping[QueueKey, int]) -> Held:
        """Bounds in which queues reach their offsets of `begin` and of `target`, if that comes in time.

        While a broker restarts, its queues leave the route or look shorter than they are; that becomes
        a loss only when it lasts.
        """
        patience: Patience | None = None
        # Of what is not subscribed any more, nothing is asked.
        known = set(filter(self._options.subscription.covers, (*begin.offsets, *begin.left)))
        while True:
            held = self.bounds_of_those_there(begin)
            # Brokers that are away were waited for by now.
            patience = patience or self._cluster.retry.patience()
            absent = known - held.bounds.keys() - held.removed.keys()
            if absent:
                found, addresses = self._cluster.bounds_off_route(sorted(absent), since=begin.generations)
                self._addresses = {**addresses, **self._addresses}
                held = held.and_also(found)
            unsettled = {
                key: f"{key} was read up to offset {offset}"
                for key, offset in begin.offsets.items()
                if key in known and not is_settled(key, offset, held)
            }
            unsettled |= {loss.key: str(loss) for loss in shorter_than(target, held)}
            self._given_up &= unsettled.keys()
            if unsettled.keys() <= self._given_up:
                return held
            if not patience.wait(unsettled[min(unsettled)]):
                self._given_up = set(unsettled)
                return held

    def start(self, held: Held) -> StreamOffset:
        """Return where a stream begins, by its options."""
        starting = self._options.starting
        is_latest = starting.everywhere == LATEST and starting.offsets is None
        since_ms = starting.timestamp_ms or 0
        if is_latest and not since_ms and starting.timestamps is None:
            since_ms = max(0, held.time_ms - _CLOCKS_DIFFER_MS)
        return StreamOffset(
            self.resolve(starting, held.bounds),
            generations=held.generations,
            time_ms=held.time_ms,
            since_ms=since_ms,
            stream_id=_new_id(),
        )

    def first_offset(self, key: QueueKey, held: QueueBounds, *, since_ms: int) -> int:
        """Return where a queue begins that a stream has not seen before.

        One that was there when a stream with the start `latest` began, at a broker nobody knew of, begins
        with what was stored since.
        """
        if not since_ms or held.min_offset == held.max_offset:
            return held.min_offset
        return self.search(key, held, since_ms)

    def publish(self, progress: Progress, offset: StreamOffset) -> None:
        """Tell brokers how far the stream is."""
        progress.publish(self._cluster, self._addresses, offset)

    def resolve(self, edge: Edge, bounds: Mapping[QueueKey, QueueBounds]) -> dict[QueueKey, int]:
        """Return the offset that `edge` means per queue; what it wants beyond the bounds is reported."""
        is_end = edge is self._options.ending
        resolved = resolve_edge(
            edge,
            bounds,
            search=self.search,
            late_timestamp="latest" if is_end else self._options.late_timestamp,
        )
        self.report(resolved.losses)
        return resolved.offsets

    def tasks(self, ranges: Sequence[QueueRange], time_ms: int) -> list[InputPartition]:
        """Return the ranges as Spark partitions, with the addresses their tasks need."""
        brokers = {part.key.broker for part in ranges}
        if brokers - self._addresses.keys():
            self._find_brokers(ranges)
        if brokers - self._addresses.keys():
            self._addresses.update(self._cluster.brokers(brokers))
        return [
            QueueRanges(task, {part.key.broker: self._addresses[part.key.broker] for part in task}, time_ms)
            for task in split_tasks(
                ranges,
                partitions_min=self._options.partitions_min,
                combine_rows=self._options.combine_rows,
                records_max=self._options.records_per_partition_max,
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

    def _bounds(self, topic: str, since: Generations = MappingProxyType({})) -> Held:
        found, addresses = self._cluster.bounds(topic, self._options.subscription.wants, since=since)
        self._addresses.update(addresses)
        return found

    def _find_brokers(self, ranges: Sequence[QueueRange]) -> None:
        """Find the brokers of a batch that is planned again, and wait for those that are away."""
        for topic in sorted({part.key.topic for part in ranges}):
            try:
                self._bounds(topic)
            except TopicMissingError:
                # The tasks are told by the broker what has become of it.
                continue

    @staticmethod
    def _with_time(held: Held) -> Held:
        """Have this machine's clock where brokers do not tell the time."""
        return held if held.time_ms else held._replace(time_ms=SystemClock().now_ms())

    def search(self, key: QueueKey, held: QueueBounds, timestamp_ms: int) -> int:
        """Return the smallest offset whose record was stored then or later; the queue's end if none."""
        settings = PullSettings(self._options.group_prefix, self._options.pull_bytes)

        def stored_at_ms(offset: int) -> int | None:
            part = QueueRange(key, offset, held.max_offset)
            return store_time_at(self._cluster, part, self._addresses[key.broker], settings)

        return first_at_or_after(timestamp_ms, held, stored_at_ms)


def _rows_waiting(begin: StreamOffset, held: Held) -> int:
    """Return how many rows of all queues are there and not read."""
    count = 0
    for key, there in held.bounds.items():
        reached = begin.offset(key)
        count += max(0, there.max_offset - (there.min_offset if reached is None else reached))
    return count


def _new_id() -> str:
    """Return a text that no other stream has."""
    return secrets.token_hex(4)


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
