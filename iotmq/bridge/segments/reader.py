"""``format("iotmq")`` with the option path: the records of CommitLog files as rows, without a broker.

A queue's records are found by what they say of themselves, so a copy of the log is enough. What queue files
would add is what was taken out of a queue later: deleted topics are known from the broker's own table, when
the data directory has it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from iotmq.bridge.cluster import TopicMissingError, is_system_topic
from iotmq.bridge.offsets import QueueKey
from iotmq.bridge.options.reading import LATEST, Edge, SourceOptions
from iotmq.bridge.plan import DataLossError
from iotmq.bridge.rows import RowBuilder, check_schema
from iotmq.bridge.said_first import each_said_first, said_first
from iotmq.bridge.segments.files import (
    SegmentPart,
    deleted_topics,
    find_log,
    known_topics,
    list_segments,
    mapped,
    split_parts,
    stored_from,
    up_to_the_end,
)
from iotmq.bridge.segments.record_picker import RecordPicker, step_over, walk_to
from iotmq.clock import Clock, SystemClock
from iotmq.errors import ConfigError

# Records taken at once: few enough to stay in the processor's cache until they are columns.
RECORDS_BYTES: Final = 2 * 1024 * 1024

_FOREVER: Final = 1 << 62
# Records of transactions that may never have been committed.
_HALF_TOPICS: Final = frozenset(("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"))
_WARNINGS_MAX: Final = 10

_log = logging.getLogger("iotmq.bridge")

#: Of one queue: from a position, offsets from .. to, store times from .. to; ends are not included.
Span = tuple[int, int, int, int, int]


class SegmentPartition(InputPartition):
    """Describe the work of one task, and which topics were deleted at which position.

    Records whose time to live was over at `expired_at_ms` are passed over; none are with 0.
    """

    def __init__(self, part: SegmentPart, deleted: Mapping[str, int], expired_at_ms: int) -> None:
        super().__init__(part)
        self.part = part
        self.deleted = dict(deleted)
        self.expired_at_ms = expired_at_ms


class SegmentReader(DataSourceReader):
    """A batch read of files; where they end is settled once, when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType, *, clock: Clock | None = None) -> None:
        check_schema(schema)
        _check_options(options)
        self._clock = SystemClock() if clock is None else clock
        self._options = options
        self._schema = schema

    @said_first
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        found = find_log(options.path)
        if found.data is not None:
            _check_topics(options.subscription.topics, known_topics(found.data))
        log = list_segments(found.log)
        if log.gaps:
            _lose(options, "; ".join(log.gaps[:_WARNINGS_MAX]))
        files = up_to_the_end(log.files)
        if options.starting.timestamp_ms is not None:
            files = stored_from(files, options.starting.timestamp_ms)
        deleted = {} if found.data is None else deleted_topics(found.data)
        tasks_min = options.partitions_min or 2 * (os.cpu_count() or 1)
        # One time for all tasks, so that those that are tried again give the same rows.
        expired_at_ms = 0 if options.include_expired else self._clock.now_ms()
        return [SegmentPartition(part, deleted, expired_at_ms) for part in split_parts(files, tasks_min)]

    @each_said_first
    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if partition.value is None:
            return  # Spark's own, in the place of no task at all
        assert isinstance(partition, SegmentPartition), partition
        wishes = Wishes(self._options, partition.deleted)
        builder = RowBuilder(self._schema)
        picker = RecordPicker(wishes.span, expired_at_ms=partition.expired_at_ms)
        for records in _picked(partition.part, picker, self._options):
            for batch, bad_body_count in builder.build_mixed(records):
                if bad_body_count:
                    _lose(
                        self._options,
                        f"{partition.part.file.path}: {bad_body_count} bodies cannot be decompressed",
                    )
                yield batch


class Wishes:
    """Say what the options want of each queue that is met in the files."""

    def __init__(self, options: SourceOptions, deleted: Mapping[str, int]) -> None:
        self._options = options
        self._deleted = deleted
        pattern = options.subscription.pattern
        self._pattern = None if pattern is None else re.compile(pattern)

    def span(self, topic: str, queue_id: int) -> Span | None:
        """Return what is wanted of a queue, None for nothing; ConfigError when an option should name it."""
        subscription = self._options.subscription
        key = QueueKey(topic, "", queue_id)
        if self._pattern is not None:
            if is_system_topic(topic) or not self._pattern.fullmatch(topic):
                return None
        elif topic not in subscription.topics or not subscription.wants(key):
            return None
        first, first_ms = _bound(self._options.starting, key, 0)
        end, end_ms = _bound(self._options.ending, key, _FOREVER)
        return self._deleted.get(topic, 0), first, end, first_ms, end_ms


def _picked(part: SegmentPart, picker: RecordPicker, options: SourceOptions) -> Iterator[memoryview]:
    """Yield the wanted records of a part, a run after another; each is gone when the next is asked for."""
    file, first, limit = part
    room = bytearray(RECORDS_BYTES)
    skipped = 0
    with mapped(file) as view:
        at = 0
        while at < first:
            at = walk_to(view, at, first, start_position=file.start_position)
            if at < first:
                # Whoever reads that part says what is wrong there.
                _what, at = _step(part, view, at)
        while at < limit:
            records, at, is_stopped = picker.pick(
                view,
                at,
                min(limit, len(view)),
                start_position=file.start_position,
                bytes_max=RECORDS_BYTES,
                room=room,
            )
            with records:
                if len(records):
                    yield records
            if is_stopped or at == len(view) < limit:
                position = file.start_position + at
                what, at = _step(part, view, at)
                if what:
                    skipped += 1
                    if skipped <= _WARNINGS_MAX:
                        _lose(options, f"{file.path} position {position}: {what}")
    if skipped > _WARNINGS_MAX:
        _lose(options, f"{file.path}: {skipped} places in all between byte {first} and {limit}")


def _step(part: SegmentPart, view: memoryview, at: int) -> tuple[str, int]:
    return step_over(view, at, start_position=part.file.start_position, end_position=part.file.end_position)


def _bound(edge: Edge, key: QueueKey, default: int) -> tuple[int, int]:
    """Return the offset and the time that one end means for a queue; `default` for what it does not say."""
    if edge.timestamp_ms is not None:
        return default, edge.timestamp_ms
    numbers = edge.timestamps or edge.offsets
    if numbers is None:
        return default, default
    number = numbers.find(key)
    if number is None:
        raise ConfigError(
            f"option {edge.option} has no number for topic {key.topic!r} queue {key.queue_id}: "
            "name every queue"
        )
    if edge.timestamps is not None:
        return default, number
    return (default if number < 0 else number), default


def _check_options(options: SourceOptions) -> None:
    starting, ending = options.starting, options.ending
    for edge in (starting, ending):
        numbers = edge.timestamps or edge.offsets
        queues = [] if numbers is None else [queue for each in numbers.numbers.values() for queue in each]
        _refuse_brokers(edge.option, queues)
    _refuse_brokers("assign", [queue for each in options.subscription.assigned.values() for queue in each])
    half = sorted(_HALF_TOPICS.intersection(options.subscription.topics))
    if half:
        raise ConfigError(f"topic {half[0]!r} has halves of transactions, which nobody reads")
    if ending.timestamp_ms is not None and ending.timestamp_ms < (starting.timestamp_ms or 0):
        raise ConfigError(f"option {ending.option} lies before {starting.option}")
    assert ending.everywhere == LATEST, ending


def _refuse_brokers(option: str, queues: Sequence[tuple[str | None, int]]) -> None:
    for broker, queue_id in queues:
        if broker is not None:
            raise ConfigError(
                f"option {option} names queue {broker}:{queue_id}; files do not know their broker: "
                f"write {queue_id}"
            )


def _check_topics(topics: Sequence[str], known: set[str]) -> None:
    missing = sorted(set(topics) - known) if known else []
    if missing:
        raise TopicMissingError(f"the data directory knows no topic {missing[0]!r}")


def _lose(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"records are lost: {what}. To go on with what is left, set option failOnDataLoss to false; "
            "'iotmq store check' says more about a data directory"
        )
    _log.warning("records are lost: %s. Going on with what is left (failOnDataLoss is false)", what)
