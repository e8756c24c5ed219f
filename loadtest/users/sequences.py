"""Number what devices publish, and find out what did not arrive or came twice.

A *stream* is what one device publishes to one topic. Its messages have the stamp of the connection swarm:
number of the stream, sequence, time. A *scope* is where each message is to come once: a device, or the
members of a shared subscription together. No I/O: calls have the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from iotmq.mqtt.topics import topics
from loadtest.swarm import STAMP_BYTES, read_stamp, stamp
from loadtest.users.faults import LOST, MISSED

STAMP_PROPERTY: Final = "stamp"

# Numbers of devices' streams; those below are publishers of swarms.
_FIRST_STREAM: Final = 0x8000_0000
_STREAMS_PER_WORKER: Final = 1 << 23
WORKERS_MAX: Final = 256

# A message that is behind others this long is lost; the members of a shared subscription are not in step.
LOST_AFTER_S: Final = 20.0
# Missing messages that a scope remembers of a stream; more are lost at once.
MISSING_MAX: Final = 65_536
# Pairs of filter and topic that are compared at the end to find streams of which nothing arrived.
_PAIRS_MAX: Final = 200_000


class Stamp(NamedTuple):
    """The stamp of a message: which one of which stream, and when it was sent."""

    stream: int
    sequence: int
    time_ns: int


def stamp_of(payload: bytes, user_properties: tuple[tuple[str, str], ...]) -> Stamp | None:
    """Read the stamp in front of a payload or in the user property; None for a message without one."""
    found = read_stamp(payload) if len(payload) >= STAMP_BYTES else None
    if found is None:
        for name, value in user_properties:
            if name == STAMP_PROPERTY and len(value) == 2 * STAMP_BYTES:
                try:
                    found = read_stamp(bytes.fromhex(value))
                except ValueError:
                    return None
    return None if found is None else Stamp(*found)


class Stream:
    """What one device publishes to one topic."""

    __slots__ = ("began_ns", "number", "sent_count", "topic")

    def __init__(self, number: int, topic: str) -> None:
        self.number = number
        self.topic = topic
        self.sent_count = 0
        # When the first message was sent; 0 before.
        self.began_ns = 0

    def next_stamp(self, now_ns: int) -> bytes:
        """Make the stamp of the next message."""
        if not self.sent_count:
            self.began_ns = now_ns
        made = stamp(self.number, self.sent_count, now_ns)
        self.sent_count += 1
        return made


class Streams:
    """All streams of this process, by number. `worker` is its index among the workers."""

    def __init__(self, worker: int = 0) -> None:
        if not 0 <= worker < WORKERS_MAX:
            raise ValueError(
                f"streams are numbered for {WORKERS_MAX} workers, not for one with index {worker}"
            )
        self._first = _FIRST_STREAM + worker * _STREAMS_PER_WORKER
        self.by_number: dict[int, Stream] = {}

    def add(self, topic: str) -> Stream:
        """Begin a stream."""
        count = len(self.by_number)
        if count >= _STREAMS_PER_WORKER:
            raise OverflowError(f"{_STREAMS_PER_WORKER} streams in one process are the most")
        made = self.by_number[self._first + count] = Stream(self._first + count, topic)
        return made


class RowOwner(Protocol):
    """The user whose rows have what a scope receives."""

    def received_row(self, topic: str, qos: int) -> tuple[str, str]:
        """Return type and name of the row."""


@dataclass(slots=True, eq=False)
class Scope:
    """Where each message is to come once; `filters` have the time at which the server granted them."""

    owner: RowOwner | None = None
    filters: dict[str, int] = field(default_factory=dict)
    is_shared: bool = False
    followed: dict[int, _Followed] = field(default_factory=dict)
    qos: int = 0
    """Of the latest message, or subscription."""


@dataclass(slots=True)
class _Followed:
    """What a scope knows of one stream."""

    topic: str
    qos: int
    expected: int
    # Behind `expected` and not here, with the time since when; the oldest first.
    missing: dict[int, float] = field(default_factory=dict)
    is_away: bool = False


class Loss(NamedTuple):
    """Messages that did not arrive."""

    kind: str
    topic: str
    qos: int
    message_count: int
    owner: RowOwner | None = None


class SequenceCheck:
    """Follows the streams that scopes receive."""

    def __init__(
        self, streams: Mapping[int, Stream], *, follows_groups: bool = True, began_ns: int = 0
    ) -> None:
        """`streams` are those of this process: of others nothing is known but what arrives.

        Groups can be followed where all their members are in this process. What was sent before `began_ns`
        is of an earlier run, whose streams had the same numbers.
        """
        self._began_ns = began_ns
        self._streams = streams
        self.follows_groups = follows_groups
        self._scopes: dict[Scope, None] = {}
        self._groups: dict[str, Scope] = {}
        self._lost: list[Loss] = []
        self._by_topic: dict[str, list[Stream]] = {}
        # Of how many streams `_by_topic` knows.
        self._indexed_count = 0
        self.received_count = 0

    def scope(self, owner: RowOwner | None = None) -> Scope:
        """Begin to follow what one device receives."""
        made = Scope(owner)
        self._scopes[made] = None
        return made

    def group(self, topic_filter: str, owner: RowOwner | None = None) -> Scope:
        """Return what the members of a shared subscription receive together."""
        found = self._groups.get(topic_filter)
        if found is None:
            found = self._groups[topic_filter] = Scope(owner, is_shared=True)
            self._scopes[found] = None
        return found

    def forget(self, scope: Scope) -> None:
        """Follow no more: its device has left."""
        self._scopes.pop(scope, None)

    def went_away(self, scope: Scope) -> None:
        """Expect nothing that is sent until the next one arrives: the server has no session."""
        for followed in scope.followed.values():
            followed.is_away = True

    def is_of_this_run(self, one: Stamp) -> bool:
        """Return False for what a kept session or a consumer group still had of an earlier run."""
        return one.time_ns >= self._began_ns

    def received(self, scope: Scope, one: Stamp, topic: str, qos: int, now_s: float) -> bool:
        """Take a message; False when it has come before."""
        self.received_count += 1
        scope.qos = qos
        followed = scope.followed.get(one.stream)
        if followed is None:
            followed = scope.followed[one.stream] = _Followed(topic, qos, self._first_expected(scope, one))
        missing = followed.missing
        if one.sequence < followed.expected:
            return missing.pop(one.sequence, None) is not None
        if one.sequence > followed.expected:
            gap = range(followed.expected, one.sequence)
            if followed.is_away:
                self._lost.append(Loss(MISSED, topic, qos, len(gap), scope.owner))
            elif len(missing) + len(gap) > MISSING_MAX:
                self._lost.append(Loss(LOST, topic, qos, len(gap), scope.owner))
            else:
                missing.update(dict.fromkeys(gap, now_s))
        followed.is_away = False
        followed.expected = one.sequence + 1
        return True

    def losses(self, now_s: float, *, is_over: bool = False) -> list[Loss]:
        """Return what is given up since the last call; when it is over, everything that has not come."""
        for scope in self._scopes:
            for followed in scope.followed.values():
                count = 0
                while followed.missing:
                    sequence, since_s = next(iter(followed.missing.items()))
                    if not is_over and now_s - since_s < LOST_AFTER_S:
                        break
                    del followed.missing[sequence]
                    count += 1
                if count:
                    self._lost.append(Loss(LOST, followed.topic, followed.qos, count, scope.owner))
            if is_over:
                self._lost += self._never_came(scope)
        lost, self._lost = self._lost, []
        return lost

    @property
    def is_complete(self) -> bool:
        """Return whether everything has arrived that was sent in this process."""
        return not any(
            followed.missing
            or (number in self._streams and self._streams[number].sent_count > followed.expected)
            for scope in self._scopes
            for number, followed in scope.followed.items()
        ) and not any(True for scope in self._scopes for _ in self._unseen(scope))

    def _first_expected(self, scope: Scope, one: Stamp) -> int:
        """Return 0 for a stream that began after the subscription; else what came first is the first."""
        stream = self._streams.get(one.stream)
        if stream is None or not scope.filters:
            return one.sequence
        return 0 if stream.began_ns > max(scope.filters.values()) else one.sequence

    def _never_came(self, scope: Scope) -> Iterator[Loss]:
        """Give up the ends of streams, and streams of which nothing came."""
        for number, followed in scope.followed.items():
            stream = self._streams.get(number)
            left = 0 if stream is None else stream.sent_count - followed.expected
            if left > 0:
                followed.expected += left
                kind = MISSED if followed.is_away else LOST
                yield Loss(kind, followed.topic, followed.qos, left, scope.owner)
        for stream in list(self._unseen(scope)):
            scope.followed[stream.number] = _Followed(stream.topic, 0, stream.sent_count)
            yield Loss(LOST, stream.topic, scope.qos, stream.sent_count, scope.owner)

    def _unseen(self, scope: Scope) -> Iterator[Stream]:
        """Streams that began after a subscription to their topic, and of which nothing came."""
        for topic_filter, since_ns in scope.filters.items():
            plain = topics.split_shared(topic_filter)[1] if topics.is_shared(topic_filter) else topic_filter
            for stream in self._streams_of(plain):
                if stream.began_ns > since_ns and stream.number not in scope.followed:
                    yield stream

    def _streams_of(self, topic_filter: str) -> Sequence[Stream]:
        """Return the streams to topics of a filter; none where there are too many to compare them all."""
        if len(self._streams) != self._indexed_count:
            streams = list(self._streams.values())
            self._indexed_count = len(streams)
            self._by_topic.clear()
            for stream in streams:
                self._by_topic.setdefault(stream.topic, []).append(stream)
        if "+" not in topic_filter and "#" not in topic_filter:
            return self._by_topic.get(topic_filter, ())
        if len(self._scopes) * len(self._by_topic) > _PAIRS_MAX:
            return ()
        return [
            stream
            for topic, streams in self._by_topic.items()
            if topics.matches(topic_filter, topic)
            for stream in streams
        ]
