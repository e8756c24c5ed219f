"""Tell the time: the machine's clock, and one that tests move by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tell the time, as all parts of iotmq ask for it."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since 1970, as records and leases carry it."""

    def monotonic_s(self) -> float:
        """Return seconds that never run backwards, for timeouts."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


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
