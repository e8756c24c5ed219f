"""Results in bulk, beside the same results one by one."""

from __future__ import annotations

import random

import locust.stats
import pytest
from locust.stats import RequestStats

from loadtest.users.faults import Fault
from loadtest.users.statistics import Batch, bucket, merge


@pytest.mark.parametrize(
    ("time_ms", "rounded"),
    [(0.0, 0.01), (0.123, 0.12), (0.996, 1.0), (3.44, 3.4), (9.96, 10), (56.4, 56), (99.4, 99), (99.6, 100),
     (147, 150), (3_432, 3_400), (58_760, 59_000)],
)  # fmt: skip
def test_times_have_two_digits(time_ms: float, rounded: float) -> None:
    assert bucket(time_ms) == rounded
    assert isinstance(bucket(time_ms), int) == (time_ms > 9.95)


def test_a_batch_is_what_its_requests_are_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locust.stats, "bucket_response_time", bucket)
    chance = random.Random(3)
    times_ns = [int(10 ** chance.uniform(3, 10)) for _ in range(3_000)]
    single, bulk = RequestStats(), RequestStats()
    for time_ns in times_ns:
        single.log_request("MQTT", "row", time_ns / 1e6, 7)  # type: ignore[arg-type]
    for part in (times_ns[:1_000], times_ns[1_000:]):
        batch = Batch("MQTT", "row", content_bytes=7 * len(part))
        counts = {each: part.count(each) for each in set(part)}
        batch.add_times(counts, total_ns=sum(part), max_ns=max(part))
        merge(bulk, batch)
    for one, other in ((single.total, bulk.total), (single.get("row", "MQTT"), bulk.get("row", "MQTT"))):
        assert other.response_times == one.response_times
        assert other.num_requests == one.num_requests == 3_000
        assert other.total_response_time == pytest.approx(one.total_response_time)
        assert other.min_response_time == one.min_response_time
        assert other.max_response_time == one.max_response_time
        assert other.total_content_length == one.total_content_length
        assert sum(other.num_reqs_per_sec.values()) == 3_000
        assert other.get_response_time_percentile(0.99) == one.get_response_time_percentile(0.99)


def test_failures_are_requests_and_errors() -> None:
    stats = RequestStats()
    for _ in range(2):
        batch = Batch("MQTT", "row")
        batch.add_untimed(5)
        batch.add_failures(Fault("lost"), 3)
        batch.mark_failed(Fault("repeated"), 1)
        merge(stats, batch)
    row = stats.get("row", "MQTT")
    assert (row.num_requests, row.num_none_requests, row.num_failures) == (16, 16, 8)
    assert {str(error.error): error.occurrences for error in stats.errors.values()} == {
        "lost": 6,
        "repeated": 2,
    }


def test_an_empty_batch_makes_no_row() -> None:
    stats = RequestStats()
    merge(stats, Batch("MQTT", "row"))
    assert not stats.entries
