"""Filters of a query that narrow down what has to be read: queues, offsets, times of storing.

Spark evaluates all of them again on the rows: what is left may be too much, and is never too little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from iotmq.bridge.offsets import QueueBounds, QueueKey

#: The smallest offset of a queue whose record was stored at or after a time in ms; the queue's end if none.
TimeSearch = Callable[[QueueKey, QueueBounds, int], int]

_OF_QUEUES: Final = ("topic", "partition", "broker")


@dataclass
class Narrowed:
    """Keep what the filters of a query leave of the queues; all of it without any."""

    chosen: dict[str, frozenset[Any]] = field(default_factory=dict)
    first_offset: int = 0
    end_offset: int | None = None
    first_ms: int | None = None
    end_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> None:
        """Take over what these filters, all of which hold, say of the columns that tell where records are."""
        for each in filters:
            if isinstance(each, EqualTo | EqualNullSafe):
                self._take_values(each.attribute, (each.value,))
                self._take_bounds(each.attribute, each.value, each.value)
            elif isinstance(each, In):
                self._take_values(each.attribute, each.value)
            elif isinstance(each, GreaterThan | GreaterThanOrEqual):
                self._take_bounds(each.attribute, each.value, None)
            elif isinstance(each, LessThan | LessThanOrEqual):
                self._take_bounds(each.attribute, None, each.value)

    def wants(self, key: QueueKey) -> bool:
        """Return whether records of a queue can pass the filters."""
        names = {"topic": key.topic, "partition": key.queue_id, "broker": key.broker}
        return all(names[column] in values for column, values in self.chosen.items())

    def span(
        self, key: QueueKey, held: QueueBounds, start: int, end: int, search: TimeSearch
    ) -> tuple[int, int]:
        """Return what is left of the offsets from `start` to before `end` of a queue."""
        start = max(start, self.first_offset)
        if self.end_offset is not None:
            end = min(end, self.end_offset)
        if self.first_ms is not None and start < end:
            start = max(start, search(key, held, self.first_ms))
        if self.end_ms is not None and start < end:
            end = min(end, search(key, held, self.end_ms))
        return start, max(start, end)

    def _take_values(self, attribute: tuple[str, ...], values: Iterable[Any]) -> None:
        (column, *_) = attribute
        if column in _OF_QUEUES:
            wanted = frozenset(values)
            self.chosen[column] = self.chosen.get(column, wanted) & wanted

    def _take_bounds(self, attribute: tuple[str, ...], low: Any, high: Any) -> None:
        """Keep what lies between `low` and `high`, both included."""
        (column, *_) = attribute
        if column == "offset":
            if isinstance(low, int):
                self.first_offset = max(self.first_offset, low)
            if isinstance(high, int):
                self.end_offset = _smaller(self.end_offset, high + 1)
        elif column == "timestamp":
            if isinstance(low, datetime):
                self.first_ms = max(self.first_ms or 0, _ms(low))
            if isinstance(high, datetime):
                self.end_ms = _smaller(self.end_ms, _ms(high) + 1)


def _smaller(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _ms(time: datetime) -> int:
    """Return the whole milliseconds of a time; records are stored at whole ones."""
    return math.floor(time.timestamp()) * 1000 + time.microsecond // 1000


def narrowed_spans(
    narrowed: Narrowed,
    bounds: Mapping[QueueKey, QueueBounds],
    spans: Mapping[QueueKey, tuple[int, int]],
    search: TimeSearch,
) -> dict[QueueKey, tuple[int, int]]:
    """Return what the filters leave of the `spans` of queues, without queues that cannot have anything."""
    return {
        key: narrowed.span(key, bounds[key], start, end, search)
        for key, (start, end) in spans.items()
        if narrowed.wants(key)
    }
