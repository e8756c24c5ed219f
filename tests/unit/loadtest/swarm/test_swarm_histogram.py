"""Histograms of times beside numpy's percentiles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.swarm.histogram import Histogram

FRACTIONS = (0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)
# Small ones and those of every power of two that 64 bits of nanoseconds have room for.
TIMES = st.lists(
    st.one_of(
        st.integers(0, 300),
        st.integers(0, 62).flatmap(lambda power: st.integers(2**power, 2 ** (power + 1) - 1)),
    ),
    min_size=1,
    max_size=300,
)


def histogram_of(times: list[int]) -> Histogram:
    histogram = Histogram()
    for time_ns in times:
        histogram.record(time_ns)
    return histogram


@given(TIMES)
def test_percentiles_are_those_of_numpy_to_a_64th(times: list[int]) -> None:
    histogram = histogram_of(times)
    ordered = np.sort(np.array(times, dtype=np.uint64))
    for fraction in FRACTIONS:
        exact = int(ordered[min(int(fraction * len(times)), len(times) - 1)])
        found = histogram.percentile(fraction)
        assert exact <= found <= exact + exact // 64
        if exact < 128:
            assert found == exact


@given(TIMES, st.sampled_from(FRACTIONS))
def test_percentiles_lie_between_those_that_numpy_interpolates(times: list[int], fraction: float) -> None:
    found = histogram_of(times).percentile(fraction)
    higher = int(np.percentile(np.array(times, dtype=np.uint64), fraction * 100, method="higher"))
    lower = int(np.percentile(np.array(times, dtype=np.uint64), fraction * 100, method="lower"))
    # One rank apart at most: numpy counts from the first to the last, and the histogram counts all.
    ordered = sorted(times)
    after = ordered[min(ordered.index(higher) + ordered.count(higher), len(ordered) - 1)]
    assert lower <= found <= after + after // 64


@given(st.lists(TIMES, min_size=1, max_size=4))
def test_parts_that_are_added_up_are_the_whole(parts: list[list[int]]) -> None:
    merged = Histogram()
    for part in parts:
        merged.load(json.loads(json.dumps(histogram_of(part).dump())))
    whole = histogram_of([time_ns for part in parts for time_ns in part])
    assert merged.summary() == pytest.approx(whole.summary())
    assert merged.dump()["buckets"] == whole.dump()["buckets"]
    assert merged.count == sum(map(len, parts))


@given(TIMES)
def test_mean_and_maximum_are_exact(times: list[int]) -> None:
    summary = histogram_of(times).summary()
    assert summary["max_ns"] == max(times)
    assert summary["mean_ns"] == pytest.approx(sum(times) / len(times))
    assert summary["count"] == len(times)


@given(TIMES, st.integers(0, 2**63))
def test_counts_below_a_bound_leave_out_only_the_bucket_around_it(times: list[int], bound: int) -> None:
    counted = histogram_of(times).count_until(bound)
    assert sum(time_ns + time_ns // 64 < bound for time_ns in times) <= counted
    assert counted <= sum(time_ns <= bound for time_ns in times)


def test_negative_times_count_as_none() -> None:
    histogram = histogram_of([-5, 7])
    assert histogram.percentile(0.0) == 0
    assert histogram.summary()["max_ns"] == 7


def test_a_cleared_histogram_is_an_empty_one() -> None:
    histogram = histogram_of([5, 10**9])
    histogram.clear()
    assert histogram.summary() == Histogram().summary()
    assert histogram.dump()["buckets"] == []


@pytest.mark.parametrize("bucket", [[-1, 1], [3_776, 1], [5, -1]])
def test_what_no_histogram_dumped_is_refused(bucket: list[int]) -> None:
    with pytest.raises(ValueError, match="no bucket"):
        Histogram().load({"buckets": [bucket], "total_ns": 0.0, "max_ns": 0})
