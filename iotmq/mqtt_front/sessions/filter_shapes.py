"""Shapes and bytes of filters: a budget for each session, and one for all clean ones of a front end.

A shape says at which levels the wildcards are. Brokers compare every new topic with each shape that some
filter has, and a message may match one filter of each: sessions of very many shapes would make each publisher
slow. A broker writes a kept session's filters whenever the session has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

from iotmq import limits
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.mqtt_front.connection.device import Device


class _SessionFilters:
    """Count the filters of one session: their shapes, and their bytes."""

    __slots__ = ("_shapes", "_size_bytes")

    def __init__(self, filters: Iterable[str]) -> None:
        self._shapes: Counter[bytes] = Counter()
        self._size_bytes = 0
        for topic_filter in filters:
            self.add(topic_filter)

    def has_room(self, topic_filter: str) -> bool:
        """Return whether one more is within the limits."""
        if self._size_bytes + len(topic_filter.encode()) > limits.MQTT_FILTER_BYTES_PER_SESSION_MAX:
            return False
        shape = wildcard_shape(topic_filter)
        return (
            shape is None or shape in self._shapes or len(self._shapes) < limits.MQTT_SHAPES_PER_SESSION_MAX
        )

    def add(self, topic_filter: str) -> None:
        self._size_bytes += len(topic_filter.encode())
        shape = wildcard_shape(topic_filter)
        if shape is not None:
            self._shapes[shape] += 1

    def remove(self, topic_filter: str) -> None:
        self._size_bytes -= len(topic_filter.encode())
        shape = wildcard_shape(topic_filter)
        if shape is not None:
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]


class FilterShapes:
    """Counts the filters of each shape; each filter is taken once, however many devices have it."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        # Of sessions with many filters.
        self._of_sessions: dict[Device, _SessionFilters] = {}
        self.refused_total = 0

    def take(self, topic_filter: str) -> bool:
        """Return whether there is room for the filter's shape, which then counts."""
        shape = wildcard_shape(topic_filter)
        if shape is None:
            return True
        if shape not in self._counts and len(self._counts) >= limits.FILTER_SHAPES_MAX:
            self.refused_total += 1
            return False
        self._counts[shape] = self._counts.get(shape, 0) + 1
        return True

    def give_back(self, topic_filter: str) -> None:
        """A filter that was taken is gone."""
        shape = wildcard_shape(topic_filter)
        if shape is None:
            return
        self._counts[shape] -= 1
        if not self._counts[shape]:
            del self._counts[shape]

    def take_for(
        self, device: Device, filters: Collection[str], coming: Collection[str], topic_filter: str
    ) -> bool:
        """Return whether one more filter has room beside a session's `filters` and `coming`.

        Then it counts.
        """
        found = self._of_sessions.get(device)
        if found is None:
            # Most sessions never have so many that it could matter.
            if len(filters) + len(coming) < limits.MQTT_SHAPES_PER_SESSION_MAX:
                return True
            found = self._of_sessions[device] = _SessionFilters(chain(filters, coming))
        if not found.has_room(topic_filter):
            self.refused_total += 1
            return False
        found.add(topic_filter)
        return True

    def give_back_for(self, device: Device, topic_filter: str) -> None:
        """A session has no more a filter that was taken for it."""
        found = self._of_sessions.get(device)
        if found is not None:
            found.remove(topic_filter)

    def forget(self, device: Device) -> None:
        """The device is gone."""
        self._of_sessions.pop(device, None)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_mqtt_filter_shapes",
                "Shapes of the filters with wildcards that clean sessions have.",
                len(self._counts),
            ),
            (
                "iotmq_mqtt_filter_shapes_refused_total",
                "Filters refused because of the shapes of wildcards, or the bytes, of those before.",
                self.refused_total,
            ),
        )
