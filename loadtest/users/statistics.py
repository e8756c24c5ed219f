"""Hand many results over to Locust's statistics at once, as a master takes those of its workers.

Locust rounds response times to whole milliseconds below 100, which is all there is to see of most brokers.
With this module times have two digits at any size: 0.12, 3.4, 56, 780.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import locust.stats
from locust.stats import RequestStats, StatsEntry, StatsError

from loadtest.users.faults import Fault

# Times below are one value.
_SMALLEST_MS: Final = 0.01


def bucket(response_ms: float) -> float:
    """Round a time to two digits, as Locust does from 10 ms on."""
    if response_ms >= 99.5:
        return int(float(f"{response_ms:.1e}"))
    if response_ms >= 9.95:
        return round(response_ms)
    return max(_SMALLEST_MS, float(f"{response_ms:.1e}"))


def install_buckets() -> None:
    """Have Locust's statistics of this process keep times with two digits."""
    locust.stats.bucket_response_time = bucket  # type: ignore[assignment]


@dataclass
class Batch:
    """Results of one row of the statistics."""

    request_type: str
    name: str
    request_count: int = 0
    timed_count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    min_ms: float | None = None
    content_bytes: int = 0
    times: dict[float, int] = field(default_factory=dict)
    """Counts by the rounded time."""
    failures: dict[Fault, int] = field(default_factory=dict)

    def add_times(self, counts_by_ns: Mapping[int, int], *, total_ns: float, max_ns: int) -> None:
        """Add what a histogram has got since the last time: counts by the largest nanoseconds of a bucket."""
        for edge_ns, count in counts_by_ns.items():
            if count:
                key = bucket(min(edge_ns, max_ns) / 1e6)
                self.times[key] = self.times.get(key, 0) + count
                self.request_count += count
                self.timed_count += count
        if counts_by_ns:
            self.total_ms += total_ns / 1e6
            self.max_ms = max(self.max_ms, max_ns / 1e6)
            low_ms = min(counts_by_ns) / 1e6
            self.min_ms = low_ms if self.min_ms is None else min(self.min_ms, low_ms)

    def add_untimed(self, count: int) -> None:
        """Add requests without a time."""
        self.request_count += count

    def add_failures(self, fault: Fault, count: int) -> None:
        """Add requests that failed; Locust counts them as requests, too."""
        self.request_count += count
        self.failures[fault] = self.failures.get(fault, 0) + count

    def mark_failed(self, fault: Fault, count: int) -> None:
        """Let requests that are counted already be failures."""
        self.failures[fault] = self.failures.get(fault, 0) + count


def merge(stats: RequestStats, batch: Batch) -> None:
    """Add a batch to its row and to the total."""
    if not batch.request_count and not batch.failures:
        return
    now_s = time.time()
    second = int(now_s)
    failure_count = sum(batch.failures.values())
    data: dict[str, Any] = {
        "name": batch.name,
        "method": batch.request_type,
        "last_request_timestamp": now_s,
        "start_time": now_s,
        "num_requests": batch.request_count,
        "num_none_requests": batch.request_count - batch.timed_count,
        "num_failures": failure_count,
        "total_response_time": batch.total_ms,
        "max_response_time": batch.max_ms,
        "min_response_time": batch.min_ms,
        "total_content_length": batch.content_bytes,
        "response_times": batch.times,
        "num_reqs_per_sec": {second: batch.request_count} if batch.request_count else {},
        "num_fail_per_sec": {second: failure_count} if failure_count else {},
    }
    entry = StatsEntry.unserialize(cast("Any", data), stats)
    stats.entries[batch.name, batch.request_type].extend(entry)
    stats.total.extend(entry)
    for fault, count in batch.failures.items():
        key = StatsError.create_key(batch.request_type, batch.name, fault)
        error = stats.errors.get(key)
        if error is None:
            error = stats.errors[key] = StatsError(batch.request_type, batch.name, fault, first_seen=now_s)
        error.occurrences += count
        error.last_seen = now_s
