"""Readings out of samples."""

from __future__ import annotations

import math
from typing import Any

import pytest

from iotmq import limits
from iotmq.alarms.condition import Condition, Labels, number_text
from iotmq.alarms.measures import Measures

NONE: Labels = ()


def condition(**more: Any) -> Condition:
    values: dict[str, Any] = {
        "name": "c",
        "sources": ("m",),
        "fires_at": 10,
        "clears_at": 1,
        "owner": "us",
        "says": "",
        "what_to_do": "",
    }
    return Condition(**{**values, **more})


class Series:
    """One condition, and one number a look."""

    def __init__(self, *, counts_from_start: bool = True, **more: Any) -> None:
        self.measures = Measures([condition(**more)], counts_from_start=counts_from_start)

    def at(self, second: float, *values: float) -> list[float]:
        samples = {"m": [((("n", str(number)),), value) for number, value in enumerate(values)]}
        readings, looked_at = self.measures.read(samples, round(second * 1000))
        assert looked_at == {"c"}
        return [reading.value for reading in readings]


def test_a_number_is_as_it_is() -> None:
    series = Series()
    assert series.at(0, 5) == [5]
    assert series.at(1, 7, 8) == [7, 8]
    assert series.at(2) == []


def test_what_is_no_number_is_left_out_and_what_has_no_end_is_very_much() -> None:
    series = Series()
    assert series.at(0, math.nan, 5) == [5]
    (much, little) = series.at(1, math.inf, -math.inf)
    assert math.isfinite(much)
    assert (number_text(much), number_text(little)) == ("1e+300", "-1e+300")


def test_a_counter_of_this_process_counts_from_the_start() -> None:
    series = Series(reads="increase", window_s=60)
    assert series.at(0, 3) == [3]
    assert series.at(10, 5) == [5]
    assert series.at(59, 5) == [5]
    # What was counted until 0 is older than the window then.
    assert series.at(60, 5) == [2]
    assert series.at(130, 5) == [0]


def test_a_counter_of_others_counts_from_the_first_look() -> None:
    series = Series(counts_from_start=False, reads="increase", window_s=60)
    assert series.at(0, 300) == [0]
    assert series.at(10, 301) == [1]


def test_a_series_that_begins_later_has_grown_from_nothing() -> None:
    series = Series(counts_from_start=False, reads="increase", window_s=60)
    assert series.at(0, 300) == [0]
    assert series.at(10, 300, 4) == [0, 4]


def test_a_counter_that_begins_anew_has_not_shrunk() -> None:
    series = Series(reads="increase", window_s=60)
    series.at(0, 300)
    assert series.at(10, 2) == [0]
    assert series.at(20, 7) == [5]


def test_growth_a_second_needs_two_looks() -> None:
    series = Series(reads="rate", window_s=60)
    assert series.at(0, 100) == []
    assert series.at(10, 150) == [5]
    assert series.at(20, 150) == [2.5]


def test_a_time_is_told_by_how_far_away_it_is() -> None:
    assert Series(reads="seconds_left").at(100, 160) == [60]


def test_a_long_window_keeps_few_points() -> None:
    series = Series(reads="increase", window_s=3600)
    for second in range(0, 7_200, 10):
        (grown,) = series.at(second, second)
    assert 3_590 <= grown <= 3_660
    (known,) = series.measures._series.values()
    assert all(len(points) <= 62 for points in known.values())


def test_labels_that_are_asked_for_choose_samples() -> None:
    measures = Measures([condition(where=(("a", "1"),))], counts_from_start=True)
    samples = {"m": [((("a", "1"), ("b", "2")), 4.0), ((("a", "2"),), 5.0), (NONE, 6.0)]}
    assert [reading.value for reading in measures.read(samples, 0)[0]] == [4]


@pytest.mark.parametrize(("clears_at", "worst"), [(1, 9), (100, 2)])
def test_the_worst_of_the_samples_counts(clears_at: float, worst: float) -> None:
    measures = Measures([condition(by=("a",), clears_at=clears_at)], counts_from_start=True)
    samples = {
        "m": [
            ((("a", "1"), ("b", "1"), ("process", "p")), 9.0),
            ((("a", "1"), ("b", "2"), ("process", "p")), 2.0),
        ]
    }
    ((_, labels, value),) = measures.read(samples, 0)[0]
    # The process is always a part of who it is.
    assert (labels, value) == ((("a", "1"), ("process", "p")), worst)


def test_what_was_not_asked_was_not_looked_at() -> None:
    measures = Measures([condition(), condition(name="d", sources=("n", "o"))], counts_from_start=True)
    assert measures.sources == {"m", "n", "o"}
    assert measures.read({"o": [(NONE, 1.0)]}, 0)[1] == {"d"}


@pytest.mark.parametrize("extra", [0, 1])
def test_so_many_series_are_remembered(extra: int) -> None:
    measures = Measures([condition(reads="increase")], counts_from_start=True)
    count = limits.ALARM_SERIES_MAX + extra
    samples = {"m": [((("n", str(number)),), 1.0) for number in range(count)]}
    readings, _ = measures.read(samples, 0)
    assert (len(readings), measures.refused_count) == (limits.ALARM_SERIES_MAX, extra)
    # Series that have gone make room.
    measures.read({"m": []}, 1)
    assert len(measures.read({"m": samples["m"][-1:]}, 1)[0]) == 1
    measures.refused_count = 0
    readings, _ = measures.read(samples, 2)
    assert (len(readings), measures.refused_count) == (limits.ALARM_SERIES_MAX, extra)
