"""The clock of tests: it moves when told to."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until told to move."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_s = 1_000.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self._now_ms += round(seconds * 1000)
        self._monotonic_s += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock: no time passes."""
        self._now_ms += round(seconds * 1000)
