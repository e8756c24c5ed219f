"""Measure how late an event loop is: what blocks it lets every connection of the process wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.telemetry.histograms import Histogram
from iotmq.telemetry.latencies import Latencies

MEASURE_S: Final = 0.1
"""Between two measurements."""
# The longest lags of so many spans of so many measurements are kept: a minute.
_SPANS: Final = 6
_MEASUREMENTS: Final = 100


class LoopLag:
    """Measures the running loop, from `start` to `stop`, by a timer ten times a second."""

    def __init__(self, clock: Clock) -> None:
        self._latencies = Latencies()
        text = "How late the event loop was, measured ten times a second."
        self._histogram = Histogram("iotmq_loop_lag_seconds", text, self._latencies, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._longest_us: deque[int] = deque([0], maxlen=_SPANS + 1)
        # Measurements of the span under way.
        self._count = 0

    def start(self) -> None:
        """Begin to measure the loop that runs."""
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, lag_us: int) -> None:
        """Count one measurement."""
        self._latencies.add(lag_us)
        self._longest_us[-1] = max(self._longest_us[-1], lag_us)
        self._count += 1
        if self._count == _MEASUREMENTS:
            self._count = 0
            self._longest_us.append(0)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + MEASURE_S
        self._timer = loop.call_at(due_s, self._measure, loop, due_s)

    def _measure(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self.note(max(0, round((loop.time() - due_s) * 1e6)))
        self._arm(loop)

    def metrics(self) -> Iterable[Metric]:
        """Report the lags since the start, and the longest of the last minute."""
        text = "Longest time the event loop was late in the last minute."
        yield from self._histogram.metrics()
        yield from samples(("iotmq_loop_lag_max_seconds", text, max(self._longest_us) / 1e6))
