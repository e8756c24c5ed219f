"""Tell the time."""

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


class SteadyClock:
    """A clock whose wall time is never set back: it goes on until the clock of the machine has caught up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # At these seconds it showed this time; it shows no less than what has passed since.
        self._since_s = clock.monotonic_s()
        self._since_ms = 0

    def now_ms(self) -> int:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        passed_ms = self._since_ms + int((now_s - self._since_s) * 1000)
        if now_ms < passed_ms:
            return passed_ms
        self._since_s, self._since_ms = now_s, now_ms
        return now_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def raise_to(self, shown_ms: int) -> None:
        """Show no less than a time that was shown before."""
        if self.now_ms() < shown_ms:
            self._since_s, self._since_ms = self._clock.monotonic_s(), shown_ms
