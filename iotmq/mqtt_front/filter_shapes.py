"""Shapes of the filters with wildcards that a front end's clean sessions have: a budget for all of them.

A shape says at which levels the wildcards are. Brokers compare every new topic with each shape that some
filter has, so that devices of very many shapes would make each publisher slow.
"""

from __future__ import annotations

from collections.abc import Iterable

from iotmq import limits
from iotmq.metrics import Metric
from iotmq.mqtt.topics import wildcard_shape


class FilterShapes:
    """Counts the filters of each shape; each filter is taken once, however many devices have it."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
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
