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
