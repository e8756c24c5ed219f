"""Represent the position of a stream: offsets per queue, and the JSON that Spark keeps in its checkpoint.

Layout of the JSON (version 1)::

    {"v": 1, "topics": {"TOPIC": {"BROKER:QUEUE": offset, ...}, ...}}
    {"v": 1, "topics": {}, "initial": true}

An offset is the number of the next record to read, as a plain integer. Topics, brokers and queues are
always in the same order, because Spark compares offsets as text and takes another order for news.
``initial`` marks the state before the first batch of a stream whose start has to be pinned: it names no
queue, so that asking for it again after a crash cannot move the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from iotmq.errors import IotmqError

OFFSETS_VERSION: Final = 1


class OffsetFormatError(IotmqError):
    """An offset document (from a checkpoint or an option) that does not have the layout above."""


class QueueKey(NamedTuple):
    """One queue of the cluster. Two brokers of one topic both have a queue 0, so the broker belongs to it."""

    topic: str
    broker: str
    queue_id: int

    @property
    def queue(self) -> str:
        """Return the queue as offsets and options spell it: ``broker-a:0``."""
        return f"{self.broker}:{self.queue_id}"

    def __str__(self) -> str:
        return f"topic {self.topic!r} queue {self.queue}"


class QueueBounds(NamedTuple):
    """Hold the offsets of a queue at its broker: from `min_offset` up to, not including, `max_offset`."""

    min_offset: int
    max_offset: int


class QueueRange(NamedTuple):
    """Records of one queue to read: offsets from `start` up to, not including, `end`."""

    key: QueueKey
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


class StreamOffset(NamedTuple):
    """A stream's position. `is_initial` says that the start is still to be pinned (and `offsets` empty)."""

    offsets: Mapping[QueueKey, int]
    is_initial: bool = False


INITIAL: Final = StreamOffset({}, is_initial=True)


def parse_queue(text: str) -> tuple[str | None, int]:
    """Split ``broker-a:0`` or ``0`` into broker (None when not given) and queue number."""
    broker, separator, number = text.rpartition(":")
    if not number.isascii() or not number.isdigit() or (separator and not broker):
        raise OffsetFormatError(f"{text!r} is not a queue: write 0 or broker-a:0")
    return (broker if separator else None), int(number)


def to_json(offset: StreamOffset) -> dict[str, object]:
    """Return the document that Spark stores for `offset`; equal offsets give equal text."""
    topics: dict[str, dict[str, int]] = {}
    for key in sorted(offset.offsets):
        topics.setdefault(key.topic, {})[key.queue] = int(offset.offsets[key])
    document: dict[str, object] = {"v": OFFSETS_VERSION, "topics": topics}
    if offset.is_initial:
        document["initial"] = True
    return document


def from_json(document: object) -> StreamOffset:
    """Read a document of `to_json` back; raises OffsetFormatError for anything else."""
    if not isinstance(document, dict):
        raise OffsetFormatError("an offset is a JSON object")
    version = document.get("v")
    if version != OFFSETS_VERSION:
        raise OffsetFormatError(
            f"the checkpoint has offsets of version {version!r}, this source reads {OFFSETS_VERSION}: "
            "use the iotmq release that wrote it, or a new checkpoint directory"
        )
    topics = document.get("topics")
    if not isinstance(topics, dict):
        raise OffsetFormatError("an offset has an object 'topics'")
    offsets: dict[QueueKey, int] = {}
    for topic, queues in topics.items():
        if not isinstance(queues, dict):
            raise OffsetFormatError(f"offsets of topic {topic!r} are not an object")
        for queue, offset in queues.items():
            broker, queue_id = parse_queue(queue)
            if broker is None:
                raise OffsetFormatError(f"queue {queue!r} of topic {topic!r} has no broker")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise OffsetFormatError(f"offset {offset!r} of topic {topic!r} queue {queue} is not a count")
            offsets[QueueKey(topic, broker, queue_id)] = offset
    is_initial = document.get("initial", False)
    if not isinstance(is_initial, bool) or (is_initial and offsets):
        raise OffsetFormatError("'initial' goes with no offsets")
    return StreamOffset(offsets, is_initial)


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Return the ranges that a batch from `start` to `end` reads, in queue order.

    A queue that `start` does not have is only introduced by `end` and read from the next batch on;
    so the range of a batch never depends on anything but its two logged offsets.
    """
    return [
        QueueRange(key, start.offsets[key], end.offsets[key])
        for key in sorted(end.offsets)
        if key in start.offsets and end.offsets[key] > start.offsets[key]
    ]
