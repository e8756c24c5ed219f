"""Represent the position of a stream: offsets per queue, and the JSON that Spark keeps in its checkpoint.

Layout of the JSON (version 2)::

    {"v": 2, "id": "9f31c07a", "time": 1700000000000,
     "topics": {"TOPIC": {"BROKER:QUEUE": offset, ...}, ...},
     "generations": {"TOPIC": {"BROKER": "GENERATION", ...}, ...},
     "left": {"TOPIC": {"BROKER:QUEUE": offset, ...}, ...},
     "since": 1700000000000}

An offset is the number of the next record to read, as a plain integer. Topics, brokers and queues are
always in the same order, because Spark compares offsets as text and takes another order for news.

- ``generations``: what the brokers said the offsets belong to; they say by it what has become of them.
- ``time``: when the brokers were asked, by their clocks. Records whose time to live was over then are not
  delivered, so that a batch is the same whenever it is read. It moves with the offsets only.
- ``left``: queues that were removed after they had been read, or are not subscribed any more; they go on
  there if they come back.
- ``since``: a stream that began with what came then: queues that show up later begin there, too.
- ``id`` names the stream at brokers.

Version 1 has only ``v``, ``topics`` and ``initial``, and is read as well.

``initial`` marks the state before the first batch of a stream whose start has to be pinned: it names no
queue, so that asking for it again after a crash cannot move the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from iotmq.errors import IotmqError

OFFSETS_VERSION: Final = 2
# Older versions that can be read.
_FORMER_VERSIONS: Final = (1,)


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
    """Records of one queue to read: offsets from `start` up to, not including, `end`, of a generation."""

    key: QueueKey
    start: int
    end: int
    generation: str = ""

    @property
    def rows(self) -> int:
        return self.end - self.start


#: Of a topic at a broker: the text by which that broker knows what its offsets mean.
Generations = Mapping[tuple[str, str], str]


class StreamOffset(NamedTuple):
    """A stream's position. `is_initial` says that the start is still to be pinned (and `offsets` empty).

    `time_ms` and `since_ms` are 0 when there is none, `stream_id` is empty then.
    """

    offsets: Mapping[QueueKey, int]
    is_initial: bool = False
    generations: Generations = MappingProxyType({})
    left: Mapping[QueueKey, int] = MappingProxyType({})
    time_ms: int = 0
    since_ms: int = 0
    stream_id: str = ""

    def offset(self, key: QueueKey) -> int | None:
        """Return where to go on in a queue, also in one that had left; None for a new one."""
        return self.offsets.get(key, self.left.get(key))


INITIAL: Final = StreamOffset({}, is_initial=True)


def parse_queue(text: str) -> tuple[str | None, int]:
    """Split ``broker-a:0`` or ``0`` into broker (None when not given) and queue number."""
    broker, separator, number = text.rpartition(":")
    if not number.isascii() or not number.isdigit() or (separator and not broker):
        raise OffsetFormatError(f"{text!r} is not a queue: write 0 or broker-a:0")
    return (broker if separator else None), int(number)


def to_json(offset: StreamOffset) -> dict[str, object]:
    """Return the document that Spark stores for `offset`; equal offsets give equal text."""
    generations: dict[str, dict[str, str]] = {}
    for topic, broker in sorted(offset.generations):
        generations.setdefault(topic, {})[broker] = offset.generations[topic, broker]
    document: dict[str, object] = {"v": OFFSETS_VERSION, "topics": _by_topic(offset.offsets)}
    optional = {
        "id": offset.stream_id,
        "time": int(offset.time_ms),
        "generations": generations,
        "left": _by_topic(offset.left),
        "since": int(offset.since_ms),
        "initial": offset.is_initial,
    }
    return document | {name: value for name, value in optional.items() if value}


def from_json(document: object) -> StreamOffset:
    """Read a document of `to_json` back, or one of a former version; OffsetFormatError for anything else."""
    if not isinstance(document, dict):
        raise OffsetFormatError("an offset is a JSON object")
    version = document.get("v")
    if isinstance(version, bool) or version not in (OFFSETS_VERSION, *_FORMER_VERSIONS):
        raise OffsetFormatError(
            f"the checkpoint has offsets of version {version!r}, this source reads up to {OFFSETS_VERSION}: "
            "use the iotmq release that wrote it, or a new checkpoint directory"
        )
    offsets = _offsets(document, "topics")
    is_initial = document.get("initial", False)
    if not isinstance(is_initial, bool) or (is_initial and offsets):
        raise OffsetFormatError("'initial' goes with no offsets")
    if version in _FORMER_VERSIONS:
        return StreamOffset(offsets, is_initial)
    generations = {
        (topic, broker): generation
        for topic, brokers in _mapping(document.get("generations", {}), "'generations'").items()
        for broker, generation in _mapping(brokers, f"generations of topic {topic!r}").items()
    }
    stream_id = document.get("id", "")
    if not all(isinstance(text, str) for text in (*generations.values(), stream_id)):
        raise OffsetFormatError("a generation or the 'id' is not a text")
    return StreamOffset(
        offsets,
        is_initial,
        generations,
        _offsets(document, "left") if "left" in document else {},
        _count(document.get("time", 0), "'time'"),
        _count(document.get("since", 0), "'since'"),
        stream_id,
    )


def _by_topic(offsets: Mapping[QueueKey, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for key in sorted(offsets):
        topics.setdefault(key.topic, {})[key.queue] = int(offsets[key])
    return topics


def _offsets(document: Mapping[str, Any], name: str) -> dict[QueueKey, int]:
    offsets: dict[QueueKey, int] = {}
    for topic, queues in _mapping(document.get(name), f"{name!r}").items():
        for queue, offset in _mapping(queues, f"offsets of topic {topic!r}").items():
            broker, queue_id = parse_queue(queue)
            if broker is None:
                raise OffsetFormatError(f"queue {queue!r} of topic {topic!r} has no broker")
            what = f"offset {offset!r} of topic {topic!r} queue {queue}"
            offsets[QueueKey(topic, broker, queue_id)] = _count(offset, what)
    return offsets


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OffsetFormatError(f"{what}: an object is needed")
    return value


def _count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise OffsetFormatError(f"{what} is not a count")
    return value


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Return the ranges that a batch from `start` to `end` reads, in queue order.

    A queue that `start` does not have is only introduced by `end` and read from the next batch on;
    so the range of a batch never depends on anything but its two logged offsets.
    """
    found = ((key, start.offset(key), end.offsets[key]) for key in sorted(end.offsets))
    return [
        QueueRange(key, begin, stop, end.generations.get((key.topic, key.broker), ""))
        for key, begin, stop in found
        if begin is not None and stop > begin
    ]
