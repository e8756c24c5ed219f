"""Rates over the last 10, 60 and 600 seconds of counters that only grow, and their totals day by day."""

from __future__ import annotations

from collections import deque
from datetime import date

from iotmq.clock import Clock

SAMPLE_INTERVAL_S = 10.0
_WINDOWS_S = (10.0, 60.0, 600.0)


class Rates:
    """Samples a few counters; `sample` is to be called every ten seconds with their values."""

    def __init__(self, clock: Clock, names: tuple[str, ...]) -> None:
        self._clock = clock
        self._names = names
        samples_max = round(_WINDOWS_S[-1] / SAMPLE_INTERVAL_S) + 1
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=samples_max)
        self.sample((0,) * len(names))

    def sample(self, values: tuple[int, ...]) -> None:
        self._samples.append((self._clock.monotonic_s(), values))

    def text(self, name: str, now: int) -> str:
        """Return the three rates per second, separated by blanks, as runtime info has them."""
        return " ".join(f"{self.rate(name, now, window_s):.2f}" for window_s in _WINDOWS_S)

    def rate(self, name: str, now: int, window_s: float) -> float:
        """Growth per second to the value `now`, over the last `window_s` seconds or as far as is known."""
        index = self._names.index(name)
        now_s = self._clock.monotonic_s()
        first_s, first = now_s, now
        for sample_s, values in reversed(self._samples):
            first_s, first = sample_s, values[index]
            if now_s - sample_s >= window_s:
                break
        return 0.0 if now_s <= first_s else (now - first) / (now_s - first_s)


class DailyTotals:
    """Remembers totals at the last two midnights (local time); `sample` is to be called every few seconds.

    Totals count from the start of the broker, so a midnight before it counts as 0.
    """

    def __init__(self, clock: Clock, *, totals: int) -> None:
        self._clock = clock
        self._today = self._date()
        self.yesterday_morning = (0,) * totals
        self.today_morning = (0,) * totals

    def sample(self, totals: tuple[int, ...]) -> None:
        today = self._date()
        if today == self._today:
            return
        days = (today - self._today).days
        self._today = today
        # A clock that steps back over midnight begins a day again: what was counted stays yesterday's.
        self.yesterday_morning = self.today_morning if days == 1 else totals
        self.today_morning = totals

    def _date(self) -> date:
        return date.fromtimestamp(self._clock.now_ms() / 1_000)
