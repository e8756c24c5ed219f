"""Samples of a histogram: how long things took, and of sampled ones whose trace that was (exemplars)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from iotmq.clock import Clock
from iotmq.metrics import Exemplar, Metric
from iotmq.telemetry.latencies import Latencies

# Powers of two, because there a bucket of `Latencies` ends: 128 us to 8.4 s.
_POWERS: Final = range(7, 24)
BOUNDS_US: Final = tuple(1 << power for power in _POWERS)
# How many buckets of `Latencies` end at a bound or below.
_BUCKETS: Final = tuple((power - 2) * 8 for power in _POWERS)


class Histogram:
    """The samples of `latencies`, and exemplars of them: the last for each bucket, so there are few."""

    def __init__(self, name: str, text: str, latencies: Latencies, clock: Clock) -> None:
        self._name = name
        self._text = text
        self._latencies = latencies
        self._clock = clock
        self._exemplars: dict[int, Exemplar] = {}

    def note(self, took_us: int, trace_id: str, span_id: str) -> None:
        """Remember whose trace has something that took so long, and was counted."""
        place = sum(took_us > bound for bound in BOUNDS_US)
        self._exemplars[place] = Exemplar(trace_id, span_id, took_us / 1e6, self._clock.now_ms() / 1000)

    def metrics(self, labels: tuple[tuple[str, str], ...] = ()) -> Iterator[Metric]:
        """Yield the buckets, the sum and the count."""
        counts = self._latencies.counted()
        total = sum(counts)
        bounds = [*(str(bound / 1e6) for bound in BOUNDS_US), "+Inf"]
        below = [*(sum(counts[:count]) for count in _BUCKETS), total]
        for place, (bound, value) in enumerate(zip(bounds, below, strict=True)):
            yield Metric(
                f"{self._name}_bucket",
                "histogram",
                self._text,
                value,
                (*labels, ("le", bound)),
                self._exemplars.get(place),
            )
        yield Metric(f"{self._name}_sum", "histogram", self._text, self._latencies.sum_us / 1e6, labels)
        yield Metric(f"{self._name}_count", "histogram", self._text, total, labels)
