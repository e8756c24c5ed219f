"""Rates over the last 10, 60 and 600 seconds from counters that only grow."""

from __future__ import annotations

from collections import deque

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
