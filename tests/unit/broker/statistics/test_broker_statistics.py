"""Counters under bounded keys, their windows, percentiles and midnights."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.handlers.admin.runtime_info import duration_text, size_text
from iotmq.broker.statistics.counters import CounterTable
from iotmq.broker.statistics.latency_window import LatencyWindow
from iotmq.broker.statistics.rates import DailyTotals
from iotmq.broker.statistics.statistics import STATISTIC_NAMES, WINDOWS, Statistics
from iotmq.telemetry.latencies import BUCKET_COUNT, Latencies, bucket_end_us, now_us


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def statistics(clock: ManualClock) -> Statistics:
    return Statistics(clock)


def pass_time(clock: ManualClock, statistics: Statistics, seconds: int) -> None:
    for _ in range(seconds // 10):
        clock.advance(10)
        statistics.sample()


def test_a_table_gives_back_what_was_added(clock: ManualClock) -> None:
    table = CounterTable(3, keys_max=10, monotonic_s=clock.monotonic_s)
    for number in range(200):
        table.add(("k", number % 7), 1, number)
    assert len(table) == 7
    found = table.totals(("k", 3))
    assert found is not None
    assert found[1] == (len(range(3, 200, 7)), sum(range(3, 200, 7)), 0)
    assert table.totals("unknown") is None


def test_a_table_grows_and_keeps_its_totals(clock: ManualClock) -> None:
    table = CounterTable(1, keys_max=5_000, monotonic_s=clock.monotonic_s)
    for number in range(5_000):
        table.add(number, number)
    assert table.dropped_count == 0
    assert [found[1][0] for number in range(5_000) if (found := table.totals(number))] == list(range(5_000))


def test_past_the_limit_the_keys_unused_for_longest_go(clock: ManualClock) -> None:
    table = CounterTable(1, keys_max=16, monotonic_s=clock.monotonic_s)
    for number in range(16):
        table.add(number, 1)
    table.copy()
    for number in range(0, 16, 2):
        table.add(number, 1)
    assert len(table) == 16
    table.add("new", 1)
    assert (len(table), table.dropped_count) == (16, 1)
    assert set(table.all_keys()) == {"new", *range(0, 16, 2), *range(3, 16, 2)}
    table.copy()
    for number in range(7):
        table.add(f"new {number}", 1)
    # All that were not used in the second round; then those of the round before the last.
    assert set(table.all_keys()) == {"new", *range(0, 16, 2), *(f"new {number}" for number in range(7))}
    table.add("one more", 1)
    assert 0 not in table.all_keys()


def test_more_keys_in_use_than_there_is_room_for_cost_no_search(clock: ManualClock) -> None:
    table = CounterTable(1, keys_max=1_000, monotonic_s=clock.monotonic_s)
    begun_us = now_us()
    for number in range(200_000):
        table.add(number % 5_000, 1)
    assert len(table) == 1_000
    assert table.dropped_count > 100_000
    # A search among all keys for each new one would take a minute.
    assert now_us() - begun_us < 10_000_000


def test_a_slot_taken_over_starts_from_nothing(clock: ManualClock, statistics: Statistics) -> None:
    table = CounterTable(1, keys_max=1, monotonic_s=clock.monotonic_s)
    table.add("old", 100)
    table.add("new", 5)
    found = table.totals("new")
    assert found is not None
    _, totals, origins, _ = found
    assert (totals[0] - origins[0], table.totals("old")) == (5, None)
    assert table.drop("new")
    assert not table.drop("new")
    statistics.counters.topic_puts.add("a", 1, 100, 100)
    pass_time(clock, statistics, 30)
    statistics.counters.topic_puts.drop("a")
    statistics.counters.topic_puts.add("b", 1, 7, 7)
    found_now = statistics.find("TOPIC_PUT_NUMS", "b", "minute")
    assert found_now is not None
    assert found_now.sum == 7


def test_the_limit_of_the_broker_holds(clock: ManualClock) -> None:
    statistics = Statistics(clock)
    for number in range(limits.STATISTICS_KEYS_MAX):
        statistics.counters.count_send_back(f"t{number}", "g")
    assert statistics.counters.send_backs.dropped_count == 0
    statistics.counters.count_send_back("one too many", "g")
    assert statistics.counters.send_backs.dropped_count == 1
    assert any(metric.value and "dropped" in metric.name for metric in statistics.metrics())


def test_puts_and_gets_show_under_their_names(clock: ManualClock, statistics: Statistics) -> None:
    counters = statistics.counters
    for _ in range(4):
        counters.count_put("T", 3, 10, 1_000)
    counters.count_get("T", 3, "g", 20, 2_000, 3_000, False)
    counters.count_get("T", 3, "g", 5, 500, 5_000, True)
    counters.count_send_back("T", "g")
    clock.advance(10)
    sums = {
        ("TOPIC_PUT_NUMS", "T"): 40,
        ("TOPIC_PUT_SIZE", "T"): 4_000,
        ("QUEUE_PUT_NUMS", "T@3"): 40,
        ("QUEUE_PUT_SIZE", "T@3"): 4_000,
        ("GROUP_GET_NUMS", "T@g"): 25,
        ("GROUP_GET_SIZE", "T@g"): 2_500,
        ("GROUP_GET_FROM_DISK_NUMS", "T@g"): 5,
        ("GROUP_GET_FROM_DISK_SIZE", "T@g"): 500,
        ("QUEUE_GET_NUMS", "T@3@g"): 25,
        ("QUEUE_GET_SIZE", "T@g@3"): 2_500,
        ("GROUP_GET_LATENCY", "3@T@g"): 8,
        ("SNDBCK_PUT_NUMS", "T@g"): 1,
        ("BROKER_PUT_NUMS", "DefaultCluster"): 40,
        ("BROKER_GET_NUMS", "DefaultCluster"): 25,
        ("BROKER_GET_FROM_DISK_NUMS", "DefaultCluster"): 5,
        ("BROKER_GET_FROM_DISK_SIZE", "DefaultCluster"): 500,
    }
    assert {name for name, _ in sums} == STATISTIC_NAMES
    for (name, key), expected in sums.items():
        for window in WINDOWS:
            found = statistics.find(name, key, window)
            assert found is not None, name
            assert (found.sum, found.tps) == (expected, expected / 10), name
    average = statistics.find("TOPIC_PUT_NUMS", "T", "minute")
    assert average is not None
    assert average.average == 10
    assert statistics.get_tps("T", "g") == 2.5


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "other"),
        ("QUEUE_PUT_NUMS", "T"),
        ("QUEUE_PUT_NUMS", "T@x"),
        ("QUEUE_PUT_NUMS", "T@" + "9" * 30),
        ("GROUP_GET_NUMS", "T"),
        ("QUEUE_GET_NUMS", "T@g"),
        ("GROUP_GET_LATENCY", "a@b@c"),
    ],
)
def test_what_was_never_counted_is_not_there(statistics: Statistics, name: str, key: str) -> None:
    statistics.counters.count_put("T", 3, 1, 1)
    statistics.counters.count_get("T", 3, "g", 1, 1, 1, False)
    assert statistics.find(name, key, "minute") is None


def test_the_windows_forget_what_is_older_than_they_are(clock: ManualClock, statistics: Statistics) -> None:
    statistics.counters.count_put("T", 0, 100, 1)
    pass_time(clock, statistics, 70)
    statistics.counters.count_put("T", 0, 1, 1)

    def sums() -> list[int]:
        return [found.sum for window in WINDOWS if (found := statistics.find("TOPIC_PUT_NUMS", "T", window))]

    assert sums() == [1, 101, 101]
    pass_time(clock, statistics, 4_200)
    assert sums() == [0, 0, 101]
    pass_time(clock, statistics, 86_400)
    assert sums() == [0, 0, 0]


def test_a_share_of_what_was_measured_took_at_most_the_percentile() -> None:
    latencies = Latencies()
    window = LatencyWindow(latencies)
    assert (window.percentile_ms(0.99), window.max_ms) == (0.0, 0)
    for took_us in range(1, 10_001):
        latencies.add(took_us)
    assert 9.9 <= window.percentile_ms(0.99) <= 9.9 * 1.125
    assert 9.99 <= window.percentile_ms(0.999) <= 9.99 * 1.125
    assert window.max_ms == 10
    for _ in range(6):
        window.sample()
    assert window.percentile_ms(0.5) > 0
    window.sample()
    assert window.percentile_ms(0.5) == 0.0
    assert window.max_ms == 10


def test_every_duration_is_in_the_bucket_that_ends_behind_it() -> None:
    for took_us in (0, 1, 7, 8, 15, 16, 17, 999, 1_000, 12_345, 2**31, 2**39 - 1):
        latencies = Latencies()
        latencies.add(took_us)
        bucket = latencies.counted().index(1)
        assert (0 if bucket == 0 else bucket_end_us(bucket - 1)) <= took_us < bucket_end_us(bucket)
    for took_us in (-5, 2**62):
        latencies = Latencies()
        latencies.add(took_us)
        assert latencies.counted().index(1) in (0, BUCKET_COUNT - 1)
    assert latencies.end(now_us()) < 1_000_000


def test_the_distribution_has_every_range() -> None:
    latencies = Latencies()
    window = LatencyWindow(latencies)
    for took_ms in (0.5, 5, 20, 70, 150, 300, 700, 1_500, 2_500, 3_500, 4_500, 7_000, 20_000):
        latencies.add(round(took_ms * 1_000))
    assert [part.rpartition(":")[2] for part in window.distribution().split()] == ["1"] * 13
    assert window.distribution().startswith("[<=0ms]:1 [0~10ms]:1 ")


def topics_of(statistics: Statistics, pattern: str) -> dict[tuple[str, ...], float]:
    """(metric without its prefix, labels...) -> value."""
    return {
        (metric.name.removeprefix("iotmq_topic_"), *(value for _, value in metric.labels)): metric.value
        for metric in statistics.topic_metrics(pattern)
    }


def test_the_traffic_of_topics_that_match_is_told(statistics: Statistics) -> None:
    for topic in ("telemetry", "tell", "orders"):
        statistics.counters.count_put(topic, 0, 3, 300)
    statistics.counters.count_get("telemetry", 0, "billing", 2, 200, 5, False)
    assert topics_of(statistics, "tele*") == {
        ("records_total", "telemetry"): 3,
        ("bytes_total", "telemetry"): 300,
        ("pulled_records_total", "telemetry", "billing"): 2,
        ("pulled_bytes_total", "telemetry", "billing"): 200,
    }
    assert len(topics_of(statistics, "*")) == 3 * 2 + 2
    assert topics_of(statistics, "none") == {}


def test_too_many_topics_are_refused_as_a_whole(
    statistics: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        statistics.counters.count_put(f"t{number}", 0, 1, 1)
    monkeypatch.setattr(limits, "TOPIC_METRICS_MAX", 3)
    assert len(topics_of(statistics, "t*")) == 6
    statistics.counters.count_put("t4", 0, 1, 1)
    with pytest.raises(ValueError, match="4 topics"):
        list(statistics.topic_metrics("t*"))


def test_midnights_are_remembered() -> None:
    noon = datetime.fromtimestamp(time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1)))
    clock = ManualClock(round(noon.timestamp() * 1_000))
    days = DailyTotals(clock, totals=2)
    days.sample((10, 1))
    assert (days.today_morning, days.yesterday_morning) == ((0, 0), (0, 0))
    clock.advance(86_400)
    days.sample((100, 2))
    assert (days.today_morning, days.yesterday_morning) == ((100, 2), (0, 0))
    clock.advance(86_400)
    days.sample((300, 3))
    assert (days.today_morning, days.yesterday_morning) == ((300, 3), (100, 2))
    clock.advance(5 * 86_400)
    days.sample((400, 4))
    assert (days.today_morning, days.yesterday_morning) == ((400, 4), (400, 4))


def test_deleted_topics_and_groups_begin_at_nothing(statistics: Statistics) -> None:
    counters = statistics.counters
    for topic in ("T", "U"):
        counters.count_put(topic, 0, 1, 1)
        for group in ("g", "h"):
            counters.count_get(topic, 0, group, 1, 1, 1, False)
            counters.count_send_back(topic, group)
    statistics.forget_topic("T")
    statistics.forget_group("h")
    kept = {
        ("TOPIC_PUT_NUMS", "U"),
        ("QUEUE_PUT_NUMS", "U@0"),
        ("GROUP_GET_NUMS", "U@g"),
        ("QUEUE_GET_NUMS", "U@0@g"),
        ("SNDBCK_PUT_NUMS", "U@g"),
    }
    for topic in ("T", "U"):
        for name, keys in (
            ("TOPIC_PUT_NUMS", [topic]),
            ("QUEUE_PUT_NUMS", [f"{topic}@0"]),
            ("GROUP_GET_NUMS", [f"{topic}@g", f"{topic}@h"]),
            ("QUEUE_GET_NUMS", [f"{topic}@0@g", f"{topic}@0@h"]),
            ("SNDBCK_PUT_NUMS", [f"{topic}@g", f"{topic}@h"]),
        ):
            for key in keys:
                assert (statistics.find(name, key, "minute") is not None) == ((name, key) in kept), (
                    name,
                    key,
                )
    assert statistics.find("BROKER_PUT_NUMS", "any", "minute") is not None


def test_durations_and_sizes_for_people() -> None:
    assert duration_text(0) == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
    assert duration_text(-5) == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
    assert duration_text(((26 * 60 + 3) * 60 + 4) * 1_000) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert [size_text(size) for size in (0, 1_023, 1_024, 3 << 29, 1 << 60)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
        "1024.0 PiB",
    ]
