"""Shapes of filters with wildcards: a budget for each session, and one for all clean ones of a front end.

A shape says at which levels the wildcards are. Brokers compare every new topic with each shape that some
filter has, and a message may match one filter of each: sessions of very many shapes would make each publisher
slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

from iotmq import limits
from iotmq.metrics import Metric
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.mqtt_front.connection.device import Device


class FilterShapes:
    """Counts the filters of each shape; each filter is taken once, however many devices have it."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        # Of sessions with many filters. Most never have as many as they may have shapes.
        self._of_sessions: dict[Device, Counter[bytes]] = {}
        self.refused_total = 0

    def take(self, topic_filter: str) -> bool:
        """Whether there is room for the filter's shape, which then counts."""
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
        """Whether the shape has room beside those of the session's `filters` and `coming`; then it counts."""
        shapes_max = limits.MQTT_SHAPES_PER_SESSION_MAX
        counts = self._of_sessions.get(device)
        if counts is None:
            if len(filters) + len(coming) < shapes_max:
                return True
            shapes = map(wildcard_shape, chain(filters, coming))
            counts = self._of_sessions[device] = Counter(shape for shape in shapes if shape is not None)
        shape = wildcard_shape(topic_filter)
        if shape is None:
            return True
        if shape not in counts and len(counts) >= shapes_max:
            self.refused_total += 1
            return False
        counts[shape] += 1
        return True

    def give_back_for(self, device: Device, topic_filter: str) -> None:
        """A session has no more a filter that was taken for it."""
        counts = self._of_sessions.get(device)
        shape = None if counts is None else wildcard_shape(topic_filter)
        if counts is not None and shape is not None:
            counts[shape] -= 1
            if not counts[shape]:
                del counts[shape]

    def forget(self, device: Device) -> None:
        """The device is gone."""
        self._of_sessions.pop(device, None)

    def metrics(self) -> Iterable[Metric]:
        yield Metric(
            "iotmq_mqtt_filter_shapes",
            "gauge",
            "Shapes of the filters with wildcards that clean sessions have.",
            len(self._counts),
        )
        yield Metric(
            "iotmq_mqtt_filter_shapes_refused_total",
            "counter",
            "Filters with wildcards refused because there are too many shapes of them.",
            self.refused_total,
        )
