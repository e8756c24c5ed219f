"""Retained messages: for every MQTT topic the last message that was published with the flag.

In the column family `retained`: 0x01 and the MQTT topic -> the record; 0x02 -> how many there are 8, their
bytes 8. The body is copied, because the log expires and a retained message does not. So the database is not
only derived: when it is lost, retained messages come back whose records the log still has, and others do not
(docs/how-to/inspect-and-repair.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from iotmq import limits
from iotmq.broker.delivery.retained_collector import collect_retained
from iotmq.broker.delivery.retained_expiry import Sweep, is_expired
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.filters import is_topic_name
from iotmq.mqtt.topics.topics import is_valid_filter, matches
from iotmq.store.kv.kv_projection import CountedProjection

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "retained"
FORMAT_VERSION: Final = 1

_TAG: Final = b"\x01"
_TAG_END: Final = b"\x02"
_TOTALS_KEY: Final = b"\x02"

logger = logging.getLogger(__name__)


class RetainedPage(NamedTuple):
    """Hold one page of the retained records of a filter; `after` asks for the next page, None at the end.

    `work_bytes` is what finding them cost.
    """

    records: list[bytes]
    after: str | None
    work_bytes: int


class _Changes:
    """Collect the changes since the last write (store.kv_projection.Collector), by topic; None deletes."""

    def __init__(self, projection: RetainedProjection) -> None:
        self._projection = projection
        self.records: dict[bytes, bytes | None] = {}
        self.size_bytes = 0

    @property
    def count(self) -> int:
        return len(self.records)

    def collect(self, view: memoryview) -> None:
        collect_retained(view, self._projection.put)

    def items(self) -> tuple[list[bytes], list[bytes]]:
        found = {_TAG + topic: record for topic, record in self.records.items() if record is not None}
        return list(found), list(found.values())

    def clear(self) -> None:
        self.records.clear()
        self.size_bytes = 0


class RetainedProjection(CountedProjection):
    """The projection. For the store's thread alone.

    Past `messages_max` or `bytes_max` no further topic gets a retained message; those that have one still get
    the next. `refused_total` counts what was not kept. Those whose time is over are not found, and leave.
    So do those of a topic that no device could be sent.
    """

    totals_key = _TOTALS_KEY

    def __init__(self, key_values: KeyValueStore, clock: Clock, *, messages_max: int, bytes_max: int) -> None:
        self._clock = clock
        self._sweep = Sweep()
        self.expired_total = 0
        self._changes = _Changes(self)
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.refused_total = 0
        super().__init__(key_values, NAME, format_version=FORMAT_VERSION, collector=self._changes)

    def get(self, mqtt_topic: str) -> bytes | None:
        """Return the retained record of a topic, also when its time is over and nobody has noticed."""
        return self._get(_raw(mqtt_topic))

    def find(
        self,
        topic_filter: str,
        *,
        after: str | None = None,
        records_max: int,
        bytes_max: int,
        work_bytes_max: int = limits.RETAINED_TURN_WORK_BYTES_MAX,
    ) -> RetainedPage:
        """Retained records that match a filter, in the order of their topics' UTF-8, from behind `after` on.

        A page ends when its records are enough, or when finding them was `work_bytes_max` of work; it may be
        empty when there are more. ValueError for what is not a filter, StoreError while a database that was
        opened again has less than was applied.
        """
        if not is_valid_filter(topic_filter):
            raise ValueError(f"{topic_filter!r} is not a topic filter")
        self._check_known()
        records: list[bytes] = []
        size = 0
        # The look-up itself, which finds that there is nothing.
        work = limits.RETAINED_LOOK_BYTES
        last: str | None = None
        now_ms = self._clock.now_ms()
        for topic, record, is_match in self._candidates(topic_filter, after):
            if last is not None and work >= work_bytes_max:
                return RetainedPage(records, last, work)
            work += limits.RETAINED_LOOK_BYTES + len(record)
            if is_expired(record, now_ms) or not is_topic_name(_raw(topic)):
                self._remove(_raw(topic))
            elif is_match:
                if records and (len(records) == records_max or size + len(record) > bytes_max):
                    return RetainedPage(records, last, work)
                records.append(record)
                size += len(record)
            last = topic
        return RetainedPage(records, None, work)

    def sweep(self) -> None:
        """Look at some retained messages, and take those away whose time is over; called every second."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        if not self._sweep.is_due(now_s):
            return
        start = _TAG if self._sweep.after is None else _TAG + self._sweep.after + b"\0"
        found = ((key[1:], record) for key, record in self._space.scan(start, _TAG_END))
        for topic, stored in self._sweep.step(found, now_s):
            record = self._changes.records.get(topic, stored)
            if record is not None and (is_expired(record, now_ms) or not is_topic_name(topic)):
                self._remove(topic)

    def _remove(self, topic: bytes) -> None:
        """Take away what nobody is to get: its time is over, or no device could be sent its topic.

        Before the collector asked for a topic name, native producers had messages retained under anything.
        """
        self.expired_total += 1
        self.put(topic, None)

    def put(self, topic: bytes, record: bytes | None) -> None:
        """Take the next record of the log about a topic."""
        known = self._get(topic)
        size = 0 if record is None else len(topic) + len(record)
        known_size = 0 if known is None else len(topic) + len(known)
        if record is None:
            self.count -= known is not None
        else:
            if known is None and (
                self.count >= self._messages_max or self.size_bytes + size > self._bytes_max
            ):
                self.refused_total += 1
                return
            self.count += known is None
        self.size_bytes += size - known_size
        self._changes.records[topic] = record

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        """Take in the records of [start_position, end_position); StoreError when the database is full."""
        try:
            super().apply(view, start_position, end_position)
        except Exception:
            # Part of the range may have been counted already, and all of it comes again.
            self._load()
            raise

    def write_out(self) -> None:
        """Write what has been collected, and what has left by itself, for which there is no position."""
        self._follow_generation()
        if self.applied_position == self.written_position and self._changes.count:
            self._write(self._marker())
            self._changes.clear()
        super().write_out()

    def rewind(self, position: int, min_position: int) -> None:
        """Keep what there is: a message whose record was lost was retained all the same."""
        if position < self.applied_position:
            self.write_out()
            logger.warning("projection %s goes back from %d to %d", NAME, self.applied_position, position)
            self.applied_position = self.written_position = self.durable_position = position
            self._write(self._marker())

    def metrics(self) -> Iterable[Metric]:
        """Return how many there are, and what was not kept."""
        yield from samples(
            ("iotmq_broker_retained_messages", "Retained messages.", self.count),
            ("iotmq_broker_retained_bytes", "Bytes of retained messages.", self.size_bytes),
            (
                "iotmq_broker_retained_refused_total",
                "Messages not retained because of broker.retained_messages_max or retained_bytes_max.",
                self.refused_total,
            ),
            (
                "iotmq_broker_retained_expired_total",
                "Retained messages taken away because their time was over, or their topic is none.",
                self.expired_total,
            ),
        )

    def check_invariants(self) -> None:
        """AssertionError when the totals are not those of what is kept."""
        kept = {key[1:]: record for key, record in self._space.scan(_TAG, _TAG_END)}
        kept |= {topic: record for topic, record in self._changes.records.items() if record is not None}
        for topic, record in self._changes.records.items():
            if record is None:
                kept.pop(topic, None)
        assert self.count == len(kept), (self.count, len(kept))
        size = sum(len(topic) + len(record) for topic, record in kept.items())
        assert self.size_bytes == size, (self.size_bytes, size)

    def _get(self, topic: bytes) -> bytes | None:
        if topic in self._changes.records:
            return self._changes.records[topic]
        return self._space.get(_TAG + topic)

    def _candidates(self, topic_filter: str, after: str | None) -> Iterator[tuple[str, bytes, bool]]:
        """Topics, records and whether they match, from key to key: what cannot match is jumped over."""
        self.write_out()
        if "+" not in topic_filter and "#" not in topic_filter:
            record = self.get(topic_filter) if after is None else None
            if record is not None:
                yield topic_filter, record, True
            return
        levels = topic_filter.split("/")
        key = _TAG + _literal_prefix(levels)
        if after is not None:
            key = max(key, _TAG + _raw(after) + b"\0")
        while True:
            for found, record in self._space.scan(key, _TAG_END):
                topic = found[1:].decode("utf-8", "surrogateescape")
                is_match = matches(topic_filter, topic)
                yield topic, record, is_match
                if is_match:
                    continue
                following = _next_candidate(levels, topic)
                if following is None:
                    return
                key = max(_TAG + following, found + b"\0")
                break
            else:
                return

    def _removed_keys(self) -> list[bytes]:
        return [_TAG + topic for topic, record in self._changes.records.items() if record is None]


def _literal_prefix(levels: list[str]) -> bytes:
    """Return the bytes every topic starts with that the filter matches."""
    literal: list[str] = []
    for level in levels:
        if level in ("+", "#"):
            # `a/#` matches `a`, too.
            return (
                "/".join(literal).encode()
                if level == "#"
                else b"".join(f"{name}/".encode() for name in literal)
            )
        literal.append(level)
    return "/".join(literal).encode()


def _next_candidate(levels: list[str], topic: str) -> bytes | None:
    """Return the smallest topic past `topic`, which does not match, that may; None when there is none.

    Topics are in the order of their bytes, so that `a-b` stands between `a` and `a/b`.
    """
    found = topic.split("/")
    raw = _raw(topic)
    if topic.startswith("$") and levels[0] in ("+", "#"):
        # Leading wildcards do not match them [MQTT-4.7.2-1]: behind everything that begins with `$`.
        return b"%"
    for place, level in enumerate(levels):
        if level == "#" or place == len(found):
            break
        if level in ("+", found[place]):
            continue
        beginning = found[:place]
        wanted = _raw("/".join([*beginning, level]))
        if raw < wanted:
            return wanted
        if place + 1 < len(levels) and raw < wanted + b"/":
            return wanted + b"/"
        return _behind(levels, beginning)
    if len(found) < len(levels):
        # Too short: the next one may be longer.
        return raw + b"\0"
    return _behind(levels, found[: len(levels)])


def _behind(levels: list[str], beginning: list[str]) -> bytes | None:
    """Return the first topic past all that begin so, up to the last level that a `+` stands for."""
    for place in reversed(range(len(beginning))):
        if levels[place] == "+":
            # The byte behind "/".
            return _raw("/".join(beginning[: place + 1])) + b"0"
    return None


def _raw(topic: str) -> bytes:
    return topic.encode("utf-8", "surrogateescape")
