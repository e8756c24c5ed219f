"""Delay levels: messages that wait in SCHEDULE_TOPIC_XXXX until they are due (wire document 10.1).

A delayed message is stored in the queue of its level with its real topic and queue as properties.
All messages of a level wait equally long, so each queue is in the order of its due times, and one
cursor per level is all there is to keep: in delayOffset.json, saved every few seconds. After a crash
what was delivered since the last save is delivered again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from iotmq.broker.config_files import ConfigFile
from iotmq.broker.deadline_timer import DeadlineTimer
from iotmq.broker.element import encode_element
from iotmq.broker.intake import Intake, IntakeError, StoredBatch
from iotmq.broker.topics import SCHEDULE_TOPIC
from iotmq.clock import Clock
from iotmq.errors import ConfigError
from iotmq.message.record import Record, iter_records, property_value
from iotmq.metrics import Metric
from iotmq.remoting.codes import ResponseCode
from iotmq.store.consume_queue import Queue
from iotmq.store.store import Store

logger = logging.getLogger(__name__)

_DELAY = b"DELAY"
_REAL_TOPIC = b"REAL_TOPIC"
_REAL_QUEUE_ID = b"REAL_QID"

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# One read of a level, and how much is delivered before the loop gets its turn.
_READ_RECORDS_MAX = 64
_READ_BYTES_MAX = 1 << 20
_TURN_RECORDS_MAX = 1_024
# Looked at again this often while something waits, in case the wall clock was set forward.
_LOOK_AGAIN_S = 10.0
_RETRY_S = 1.0


class DelayOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The shape of delayOffset.json and of the answer to code 45: level -> offset in its queue."""

    offset_table: dict[int, int] = {}


class DelayLevels:
    """How long each level waits, and how a message is rewritten to wait. Levels count from 1."""

    def __init__(self, text: str) -> None:
        """`text` is like `1s 5s 10m 2h`. Raises ConfigError naming the part that is not a duration."""
        self.delays_ms: list[int] = []
        for part in text.split():
            match = re.fullmatch(r"(\d{1,6})([smhd])", part)
            if match is None:
                raise ConfigError(
                    f"broker.delay_levels: {part!r} is not a duration such as 10s, 5m, 2h or 1d"
                )
            self.delays_ms.append(int(match[1]) * _UNITS_MS[match[2]])

    def __len__(self) -> int:
        return len(self.delays_ms)

    def level_of(self, properties: bytes) -> int:
        """The level a message asks for, clamped to the highest; 0 for none or nonsense."""
        value = property_value(properties, _DELAY)
        if value is None or not value.isdigit():
            return 0
        return self.clamp(int(value[:9]))

    def clamp(self, level: int) -> int:
        return max(0, min(level, len(self.delays_ms)))

    def divert(self, topic: str, queue_id: int, properties: bytes, level: int) -> tuple[str, int, bytes]:
        """Topic, queue and properties that make a message wait for `level` (1 or more) and then go on."""
        waiting = without_properties(properties, _DELAY, _REAL_TOPIC, _REAL_QUEUE_ID)
        waiting += b"DELAY\x01%d\x02REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02" % (
            level,
            topic.encode(),
            queue_id,
        )
        return SCHEDULE_TOPIC, level - 1, waiting


class _Level:
    """One level's queue. Records below `delivered_offset` are in their real topics; those up to
    `taken_offset` are handed to the intake and not confirmed yet."""

    __slots__ = ("delivered_offset", "is_blocked", "queue", "taken_offset")

    def __init__(self, queue: Queue, offset: int) -> None:
        self.queue = queue
        self.delivered_offset = offset
        self.taken_offset = offset
        # The intake refused the record at `taken_offset`; it is tried again in the next round.
        self.is_blocked = False


class DelayDelivery:
    """Moves due messages to their real topics."""

    def __init__(self, store: Store, intake: Intake, levels: DelayLevels, path: Path, clock: Clock) -> None:
        self._store = store
        self._intake = intake
        self._delays_ms = levels.delays_ms
        self._file = ConfigFile(path)
        self._clock = clock
        self._timer = DeadlineTimer(clock, self.deliver)
        self._saved = (self._file.read(DelayOffsetTable) or DelayOffsetTable()).offset_table
        # Filled by start(): the queues know their offsets only once the store is recovered.
        self._levels: list[_Level] = []
        self.is_dirty = False
        self.delivered_count = 0
        self.skipped_count = 0

    def start(self) -> None:
        """Deliver what fell due meanwhile, and everything else from now on."""
        for index in range(len(self._delays_ms)):
            queue = self._store.queue(SCHEDULE_TOPIC, index)
            saved = self._saved.get(index + 1, 0)
            self._levels.append(_Level(queue, max(queue.min_offset, min(saved, queue.max_offset))))
        self.deliver()

    def stop(self) -> None:
        self._timer.cancel()

    def expect(self, level: int) -> None:
        """A message of the level is being stored."""
        self._timer.arm(self._clock.monotonic_s() + self._delays_ms[level - 1] / 1000)

    def deliver(self) -> None:
        """Hand every due message to the intake, and see to being called again for the next."""
        room = _TURN_RECORDS_MAX
        next_s: float | None = None
        for level, delay_ms in zip(self._levels, self._delays_ms, strict=True):
            level.is_blocked = False
            room, wait_s = self._deliver_level(level, delay_ms, room)
            if wait_s is not None:
                next_s = wait_s if next_s is None else min(next_s, wait_s)
        if next_s is not None:
            self._timer.arm(self._clock.monotonic_s() + min(next_s, _LOOK_AGAIN_S))

    def encode(self) -> bytes:
        """The cursors as the file holds them."""
        table = {index + 1: level.delivered_offset for index, level in enumerate(self._levels)}
        return msgspec.json.encode(DelayOffsetTable(offset_table=table))

    def take_unsaved(self) -> bytes | None:
        """What to pass to `write`, None when the file is up to date; `is_dirty` is taken back by this."""
        if not self.is_dirty:
            return None
        self.is_dirty = False
        return self.encode()

    def write(self, data: bytes) -> None:
        """Write the file; touches nothing but the disk, so that a thread may do it."""
        self._file.write(data, is_synced=True)

    def progress(self) -> list[tuple[int, int]]:
        """Delivered offset and end of each level's queue."""
        return [(level.delivered_offset, level.queue.max_offset) for level in self._levels]

    def delivered(self) -> list[tuple[Queue, int]]:
        """Each level's queue and the offset before which everything is in its real topic."""
        return [(level.queue, level.delivered_offset) for level in self._levels]

    def metrics(self) -> Iterable[Metric]:
        waiting = sum(end - delivered for delivered, end in self.progress())
        yield Metric("iotmq_broker_delayed_messages", "gauge", "Messages waiting for their time.", waiting)
        yield Metric(
            "iotmq_broker_delayed_messages_delivered_total",
            "counter",
            "Delayed messages moved to their topics.",
            self.delivered_count,
        )
        yield Metric(
            "iotmq_broker_delayed_messages_skipped_total",
            "counter",
            "Delayed messages that no topic takes.",
            self.skipped_count,
        )

    def _deliver_level(self, level: _Level, delay_ms: int, room: int) -> tuple[int, float | None]:
        """Returns the room left, and in how many seconds to look again; None for an empty level."""
        queue = level.queue
        while level.taken_offset < queue.max_offset:
            if room <= 0:
                return 0, 0.0
            # A message's time to live begins when it is due.
            read = self._store.read(
                queue,
                level.taken_offset,
                records_max=_READ_RECORDS_MAX,
                bytes_max=_READ_BYTES_MAX,
                with_expired=True,
            )
            now_ms = self._clock.now_ms()
            for view in read.views:
                for record in iter_records(view):
                    due_ms = record.store_timestamp_ms + delay_ms
                    if due_ms > now_ms:
                        return room, (due_ms - now_ms) / 1000
                    level.taken_offset = record.queue_offset + 1
                    room -= 1
                    self._hand_over(level, record)
                    if level.is_blocked:
                        return room, _RETRY_S
            if read.next_offset <= level.taken_offset and not read.count:
                return room, _RETRY_S
            # Offsets without a record, where some were lost from the log.
            if level.taken_offset == level.delivered_offset:
                level.delivered_offset = read.next_offset
            level.taken_offset = read.next_offset
        return room, None

    def _hand_over(self, level: _Level, record: Record) -> None:
        offset = record.queue_offset
        properties = record.properties
        topic = property_value(properties, _REAL_TOPIC)
        queue_id = property_value(properties, _REAL_QUEUE_ID)
        if not topic or queue_id is None or not queue_id.isdigit():
            logger.warning("delayed message at position %d has no real topic and is skipped", record.position)
            self.skipped_count += 1
            level.delivered_offset = offset + 1
            return

        def done(result: StoredBatch | IntakeError) -> None:
            if isinstance(result, StoredBatch):
                self.delivered_count += 1
            elif result.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                level.taken_offset = offset
                level.is_blocked = True
                return
            else:
                # Would be refused for ever, and the level would stand still behind it.
                self.skipped_count += 1
                logger.warning(
                    "delayed message at position %d is skipped: %s", record.position, result.remark
                )
            level.delivered_offset = max(level.delivered_offset, offset + 1)
            self.is_dirty = True

        self._intake.append(
            topic.decode("utf-8", "replace"),
            int(queue_id),
            encode_element(
                record.body,
                without_properties(properties, _DELAY, _REAL_TOPIC, _REAL_QUEUE_ID),
                record.flag,
            ),
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
            done=done,
            is_internal=True,
        )


def without_properties(properties: bytes, *names: bytes) -> bytes:
    """The properties but for those named; every pair ends with its separator."""
    prefixes = tuple(name + b"\x01" for name in names)
    kept = [pair for pair in properties.split(b"\x02") if pair and not pair.startswith(prefixes)]
    return b"".join(pair + b"\x02" for pair in kept)
