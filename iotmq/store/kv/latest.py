"""The last record of every MQTT topic: what a device said last, found without reading its queue.

In the column family `latest`: 0x01 and the MQTT topic -> position 8 | queue offset 8 | store timestamp 8.
Only places are kept, no bodies: when retention removes the record, its topic has no last value any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from iotmq.store.kv.kv_projection import KeyValueProjection, after_prefix
from iotmq.store.kv.latest_collector import LatestCollector

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "latest"
FORMAT_VERSION: Final = 1
# How many topics are looked at per write, once the log has been trimmed, to find those without a record.
SWEEP_KEYS: Final = 512

_KEY_TAG: Final = b"\x01"
_VALUE: Final = struct.Struct(">qqq")


class LatestPlace(NamedTuple):
    """Where the last record of a MQTT topic stands."""

    mqtt_topic: str
    position: int
    queue_offset: int
    store_timestamp_ms: int


class Latest(KeyValueProjection):
    """The projection. Whoever reads a place must check that the record there still proves itself."""

    def __init__(self, key_values: KeyValueStore) -> None:
        self._pending = LatestCollector()
        # Keys below it were swept since the last trim; None when there is nothing to sweep.
        self._sweep_key: bytes | None = None
        self._min_position = 0
        super().__init__(key_values, NAME, format_version=FORMAT_VERSION, collector=self._pending)

    def find(self, mqtt_topic: str) -> LatestPlace | None:
        """Return the place of the topic's last record."""
        topic = _encoded(mqtt_topic)
        value = self._pending.find(topic) or self._space.get(_KEY_TAG + topic)
        return None if value is None else self._place(topic, value)

    def places(self, prefix: str = "", *, after: str | None = None) -> Iterator[LatestPlace]:
        """Yield the places of all topics that start with `prefix`, in the order of the topics' UTF-8.

        `after` goes on behind a topic that was the last of a former call.
        """
        self.write_out()
        first = _KEY_TAG + _encoded(prefix)
        start = first if after is None else max(first, _KEY_TAG + _encoded(after) + b"\0")
        for key, value in self._space.scan(start, after_prefix(first)):
            place = self._place(key[1:], value)
            if place is not None:
                yield place

    def trim(self, min_position: int) -> None:
        """Forget topics whose record is gone: some with each write from now on, not all at once."""
        super().trim(min_position)
        if min_position > self._min_position:
            self._min_position = min_position
            self._sweep_key = _KEY_TAG

    def clear(self, position: int) -> None:
        """Delete everything; the log is applied again from `position` on."""
        super().clear(position)
        self._sweep_key = None

    def write_out(self) -> None:
        """Write what has been collected, and remove some of what the log does not have any more."""
        super().write_out()
        if self._sweep_key is not None:
            self.sweep(SWEEP_KEYS)

    def sweep(self, keys_max: int) -> None:
        """Look at so many topics and remove those whose record is gone."""
        if self._sweep_key is None:
            return
        gone = []
        next_key = None
        for number, (key, value) in enumerate(self._space.scan(self._sweep_key)):
            if number == keys_max:
                next_key = key
                break
            if len(value) != _VALUE.size or _VALUE.unpack(value)[0] < self._min_position:
                gone.append(key)
        if gone:
            self._space.write(removed_keys=gone)
        self._sweep_key = next_key

    def _place(self, topic: bytes, value: bytes) -> LatestPlace | None:
        if len(value) != _VALUE.size:
            return None
        position, queue_offset, timestamp_ms = _VALUE.unpack(value)
        if position < self._min_position:
            return None
        return LatestPlace(topic.decode("utf-8", "surrogateescape"), position, queue_offset, timestamp_ms)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
