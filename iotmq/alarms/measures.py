"""Numbers of conditions out of samples: as they are, or how they have grown."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from iotmq import limits
from iotmq.alarms.alarm import Reading
from iotmq.alarms.condition import Condition, Labels

Samples: TypeAlias = Mapping[str, Sequence[tuple[Labels, float]]]
"""Name of a metric -> its samples, each with its labels in order."""

PROCESS: Final = "process"
"""The label of the process whose number it is: no alarm of one is that of another."""

# What has no end is as much: JSON and texts have no word for it.
_VALUE_MAX: Final = 1e300
# Points of a series, spread over its window.
_POINTS: Final = 60


class Measures:
    """Makes readings of samples, once every few seconds. Remembers as little of the past as growth takes."""

    def __init__(self, conditions: Iterable[Condition], *, counts_from_start: bool) -> None:
        """With `counts_from_start` counters began at 0 with this process; else with the first look."""
        self._conditions = tuple(conditions)
        self._counts_from_start = counts_from_start
        # (condition, source) -> labels -> (time, value), oldest first.
        self._series: dict[tuple[str, str], dict[Labels, deque[tuple[int, float]]]] = {}
        self._series_count = 0
        self._looked_ms: dict[str, int] = {}
        self.refused_count = 0

    @property
    def sources(self) -> frozenset[str]:
        """Return the names of the samples that are of use."""
        return frozenset(source for condition in self._conditions for source in condition.sources)

    def read(self, samples: Samples, now_ms: int) -> tuple[list[Reading], frozenset[str]]:
        """Return the readings, and the conditions that were looked at: those with a source in `samples`."""
        readings: list[Reading] = []
        looked_at: set[str] = set()
        for condition in self._conditions:
            there = [source for source in condition.sources if source in samples]
            if not there:
                continue
            looked_at.add(condition.name)
            worst: dict[Labels, float] = {}
            for source in there:
                for labels, value in self._chosen(condition, source, samples[source], now_ms):
                    if math.isnan(value):
                        continue
                    value = min(max(value, -_VALUE_MAX), _VALUE_MAX)
                    kept = _kept(labels, condition.by)
                    worst[kept] = condition.worst(worst[kept], value) if kept in worst else value
            self._looked_ms[condition.name] = now_ms
            readings += [Reading(condition.name, labels, value) for labels, value in worst.items()]
        return readings, frozenset(looked_at)

    def _chosen(
        self, condition: Condition, source: str, samples: Sequence[tuple[Labels, float]], now_ms: int
    ) -> Iterator[tuple[Labels, float]]:
        wanted = set(condition.where)
        known = self._series.setdefault((condition.name, source), {})
        left = dict(known)
        for labels, value in samples:
            if not wanted <= set(labels):
                continue
            if condition.reads == "value":
                yield labels, value
            elif condition.reads == "seconds_left":
                yield labels, value - now_ms / 1000
            else:
                points = left.pop(labels, None) or self._begun(condition, now_ms)
                if points is not None:
                    known[labels] = points
                    grown = _grown(points, condition, value, now_ms)
                    if grown is not None:
                        yield labels, grown
        for labels in left:
            del known[labels]
        self._series_count -= len(left)

    def _begun(self, condition: Condition, now_ms: int) -> deque[tuple[int, float]] | None:
        """Return a new series; None when there are too many."""
        if self._series_count >= limits.ALARM_SERIES_MAX:
            self.refused_count += 1
            return None
        self._series_count += 1
        points: deque[tuple[int, float]] = deque()
        before_ms = self._looked_ms.get(condition.name)
        if before_ms is not None:
            # It was not there at the last look, so it has begun since.
            points.append((before_ms, 0.0))
        elif self._counts_from_start and condition.reads == "increase":
            # A little before, so that what was counted until now has a place of its own in the window.
            points.append((now_ms - round(condition.window_s * 1000 / _POINTS), 0.0))
        return points


def _grown(points: deque[tuple[int, float]], condition: Condition, value: float, now_ms: int) -> float | None:
    """Take the next value of a series and return how much it has grown; None when that is not known yet."""
    if points and value < points[-1][1]:
        # A counter that began anew.
        points.clear()
    window_ms = condition.window_s * 1000
    # The last one that is older than the window is where growth is counted from.
    while len(points) > 1 and now_ms - points[1][0] >= window_ms:
        points.popleft()
    if not points or now_ms - points[-1][0] >= window_ms / _POINTS:
        points.append((now_ms, value))
    began_ms, began = points[0]
    if condition.reads == "increase":
        return value - began
    passed_s = (now_ms - began_ms) / 1000
    return (value - began) / passed_s if passed_s > 0 else None


def _kept(labels: Labels, by: tuple[str, ...] | None) -> Labels:
    return labels if by is None else tuple(each for each in labels if each[0] in by or each[0] == PROCESS)
