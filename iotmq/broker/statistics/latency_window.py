"""Percentiles and the distribution of how long things took in the last minute."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from iotmq.telemetry.latencies import BUCKET_COUNT, Latencies, bucket_end_us

_SAMPLES: Final = 6
# Where the ranges of the distribution begin, in milliseconds, and what tools expect them to be called.
_RANGE_STARTS_MS: Final = (0, 1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_RANGE_NAMES: Final = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
# The range of each bucket: that of its upper end.
_RANGE_OF_BUCKET: Final = tuple(
    bisect_right(_RANGE_STARTS_MS, (bucket_end_us(bucket) - 1) / 1_000) - 1 for bucket in range(BUCKET_COUNT)
)


class LatencyWindow:
    """The last minute of a histogram; `sample` is to be called every ten seconds."""

    def __init__(self, latencies: Latencies) -> None:
        self._latencies = latencies
        # What was counted up to each sample; of the window's beginning first.
        self._samples: deque[list[int]] = deque([[0] * BUCKET_COUNT], maxlen=_SAMPLES + 1)

    @property
    def max_ms(self) -> int:
        """Return the longest since the start."""
        return self._latencies.max_us // 1_000

    def sample(self) -> None:
        self._samples.append(self._latencies.counted())

    def percentile_ms(self, share: float) -> float:
        """Return how many milliseconds were enough for a share (0..1), up to an eighth too many.

        0.0 of none.
        """
        counts = self._counts()
        rank = share * sum(counts)
        if not rank:
            return 0.0
        seen = 0
        for bucket, count in enumerate(counts):
            seen += count
            if seen >= rank:
                return bucket_end_us(bucket) / 1_000
        raise AssertionError("a share is at most 1")

    def distribution(self) -> str:
        """Return how many took how long, in the ranges and the form runtime info has them."""
        ranges = [0] * len(_RANGE_NAMES)
        for bucket, count in enumerate(self._counts()):
            ranges[_RANGE_OF_BUCKET[bucket]] += count
        return " ".join(f"{name}:{count}" for name, count in zip(_RANGE_NAMES, ranges, strict=True))

    def _counts(self) -> list[int]:
        before, now = self._samples[0], self._latencies.counted()
        return [count - former for count, former in zip(now, before, strict=True)]
