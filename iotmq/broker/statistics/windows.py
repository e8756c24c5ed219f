"""Totals that only grow, looked at over the last minute, hour and day."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

from iotmq.broker.statistics.counters import CounterTable
from iotmq.clock import Clock

# How often a copy is taken for each window, and how many are kept: one more than fit the window, so that
# the oldest is at least as old as the window is long.
SAMPLE_INTERVAL_S: Final = 10.0
_WINDOWS: Final = {"minute": (10.0, 7), "hour": (600.0, 7), "day": (3_600.0, 25)}
# A timer that fires a little early still counts as on time.
_SLACK_S: Final = 0.5


class Growth(NamedTuple):
    """By how much each total of a key grew, and in how many seconds."""

    sums: tuple[int, ...]
    seconds: float


class _Copy(NamedTuple):
    taken_s: float
    totals: bytes


class StatisticsWindows:
    """Copies of one table; `sample` is to be called every SAMPLE_INTERVAL_S.

    Answers are as of now: they include what was counted after the last copy.
    """

    def __init__(self, table: CounterTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._row = struct.Struct(f"={table.columns}Q")
        first = _Copy(clock.monotonic_s(), b"")
        self._copies = {
            window: deque([first], maxlen=copies_max) for window, (_, copies_max) in _WINDOWS.items()
        }

    def sample(self) -> None:
        now_s = self._clock.monotonic_s()
        copy: _Copy | None = None
        for window, copies in self._copies.items():
            if now_s - copies[-1].taken_s >= _WINDOWS[window][0] - _SLACK_S:
                if copy is None:
                    copy = _Copy(now_s, self._table.copy())
                copies.append(copy)

    def growth(self, key: Hashable, window: str) -> Growth | None:
        """Return the growth of a key in the last "minute", "hour" or "day"; None for one never counted."""
        found = self._table.totals(key)
        if found is None:
            return None
        slot, totals, base, base_s = found
        oldest = self._copies[window][0]
        if oldest.taken_s > base_s:
            base_s = oldest.taken_s
            base = self._row.unpack_from(oldest.totals, slot * self._row.size)
        sums = tuple(total - before for total, before in zip(totals, base, strict=True))
        return Growth(sums, self._clock.monotonic_s() - base_s)
