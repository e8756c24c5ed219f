"""Values of many series at equal steps of time, in arrays that go round.

Operations: add the values of all series (every ten seconds), read some of one series. Goals: memory that is
known before, no Python object for a value, and no value shown at a time it is not of. Plan: a row of float32 for
each series; a *slot* is a step of the wall clock, its place is its number modulo the length, and each place
remembers whose it is. So what a stopped process, a late loop or a clock that was set has skipped is missing, and
does not show what stood there the round before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
"""One series at equal steps; NaN where nothing is known."""

_FIRST_SERIES: Final = 64


class Resolution(NamedTuple):
    """A ring: so many values, each the mean of a step."""

    step_s: int
    length: int


RESOLUTIONS: Final = (Resolution(10, 360), Resolution(60, 1_440), Resolution(1_200, 504))
"""An hour, a day and a week."""
BYTES_PER_SERIES: Final = sum(4 * each.length + 12 for each in RESOLUTIONS)


class Ring:
    """One resolution of all series. A value is the mean of what was added in its step."""

    def __init__(self, resolution: Resolution) -> None:
        self.step_s, self.length = resolution
        # The slot that a place has the values of.
        self._slots = np.full(self.length, -1, dtype=np.int64)
        self._slot = -1
        self._values = np.empty((0, self.length), dtype=np.float32)
        # Of the slot that is being filled.
        self._sums = np.empty(0, dtype=np.float64)
        self._counts = np.empty(0, dtype=np.int32)

    @property
    def size_bytes(self) -> int:
        """Return the memory of the arrays."""
        return self._values.nbytes + self._sums.nbytes + self._counts.nbytes + self._slots.nbytes

    def add(self, now_ms: int, row: npt.NDArray[np.float64]) -> None:
        """Add a value of each series, NaN for those without."""
        self._grow(len(row))
        slot = now_ms // (1_000 * self.step_s)
        place = slot % self.length
        if slot != self._slot:
            if slot < self._slot:
                # The clock was set back: what stands at times to come is from before.
                self._slots[self._slots >= slot] = -1
            self._slot = slot
            self._slots[place] = slot
            self._values[:, place] = np.nan
            self._sums[:] = 0
            self._counts[:] = 0
        count = len(row)
        known = ~np.isnan(row)
        self._sums[:count][known] += row[known]
        self._counts[:count] += known
        filled = self._counts[:count] > 0
        self._values[:count, place][filled] = self._sums[:count][filled] / self._counts[:count][filled]

    def read(self, series: int, *, first_slot: int, count: int) -> Values:
        """Return so many values of a series from a slot on."""
        slots = np.arange(first_slot, first_slot + count, dtype=np.int64)
        places = slots % self.length
        found = (
            self._values[series, places]
            if series < len(self._values)
            else np.full(count, np.nan, dtype=np.float32)
        )
        found[(self._slots[places] != slots) | (slots > self._slot)] = np.nan
        return found

    def clear(self, series: int) -> None:
        """Forget the values of a series: its place is another's from now on."""
        if series < len(self._values):
            self._values[series] = np.nan
            self._sums[series] = 0
            self._counts[series] = 0

    def _grow(self, count: int) -> None:
        former = len(self._values)
        if count <= former:
            return
        grown = max(count, 2 * former, _FIRST_SERIES) - former
        empty = np.full((grown, self.length), np.nan, dtype=np.float32)
        self._values = np.concatenate((self._values, empty))
        self._sums = np.concatenate((self._sums, np.zeros(grown)))
        self._counts = np.concatenate((self._counts, np.zeros(grown, dtype=np.int32)))
