"""Values of many series at equal steps of time, in arrays that go round.

Operations: add the values of all series (every ten seconds), read some of one series. Goals: memory that is
known before, no Python object for a value, and no value shown at a time it is not of. Plan: an array of
floats of 32 bits for each series; a *slot* is a step of the wall clock, its place is its number modulo the
length, and each place remembers whose it is. So what a stopped process, a late loop or a clock that was set
has skipped is missing, and does not show what stood there the round before.

The arrays are those of Python: to have numpy for them would cost every front end and registry 15 MB, and a
sample is some microseconds for each series in ten seconds without it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

VALUE_MAX: Final = 3.4e38
"""About what a float of 32 bits holds."""


class Resolution(NamedTuple):
    """A ring: so many values, each the mean of a step."""

    step_s: int
    length: int


RESOLUTIONS: Final = (Resolution(10, 360), Resolution(60, 1_440), Resolution(1_200, 504))
"""An hour, a day and a week."""


class Ring:
    """One resolution of all series. A value is the mean of what was added in its step."""

    def __init__(self, resolution: Resolution) -> None:
        self.step_s, self.length = resolution
        self._unknown = array("f", [math.nan]) * self.length
        # The slot that a place has the values of.
        self._slots = array("q", [-1]) * self.length
        self._slot = -1
        self._values: list[array[float]] = []
        # Of the slot that is being filled.
        self._sums: list[float] = []
        self._counts: list[int] = []

    @property
    def size_bytes(self) -> int:
        """Return the memory of the values."""
        return self._unknown.itemsize * self.length * len(self._values)

    def add(self, now_ms: int, values: Iterable[tuple[int, float]]) -> None:
        """Add values, each with the number of its series."""
        slot = now_ms // (1_000 * self.step_s)
        place = slot % self.length
        if slot != self._slot:
            self._begin(slot, place)
        for series, value in values:
            if series >= len(self._values):
                self._grow(series + 1)
            self._sums[series] += value
            self._counts[series] += 1
            self._values[series][place] = self._sums[series] / self._counts[series]

    def read(self, series: int, *, first_slot: int, count: int) -> list[float]:
        """Return so many values of a series from a slot on, NaN where nothing is known."""
        if series >= len(self._values):
            return [math.nan] * count
        values, slots, length = self._values[series], self._slots, self.length
        return [
            values[slot % length] if slots[slot % length] == slot else math.nan
            for slot in range(first_slot, first_slot + count)
        ]

    def clear(self, series: int) -> None:
        """Forget the values of a series: its number is another's from now on."""
        if series < len(self._values):
            self._values[series] = self._unknown[:]
            self._sums[series] = 0.0
            self._counts[series] = 0

    def _begin(self, slot: int, place: int) -> None:
        if slot < self._slot:
            # The clock was set back: what stands at times to come is from before.
            for index, other in enumerate(self._slots):
                if other >= slot:
                    self._slots[index] = -1
        self._slot = slot
        self._slots[place] = slot
        for values in self._values:
            values[place] = math.nan
        self._sums = [0.0] * len(self._values)
        self._counts = [0] * len(self._values)

    def _grow(self, count: int) -> None:
        more = count - len(self._values)
        self._values += [self._unknown[:] for _ in range(more)]
        self._sums += [0.0] * more
        self._counts += [0] * more
