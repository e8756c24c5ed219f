"""The ticks of long tests."""

from __future__ import annotations

from typing import Any

from loadtest.runs.ticks import TICKS_MAX, within_limit


def tick(second: int) -> dict[str, Any]:
    times = {
        "count": 10 if second % 2 else 30,
        "mean_ns": 100.0 + second % 2,
        "p99_ns": 5 * (second % 3),
        "max_ns": second,
    }
    counters = {"published": 10 * second}
    return {
        "at_s": float(second), "phase": "measure", "counters": counters, "latencies": {"delivery": times},
    }  # fmt: skip


def test_ticks_up_to_the_limit_are_kept() -> None:
    ticks = [tick(second) for second in range(TICKS_MAX)]
    assert within_limit(ticks) is ticks


def test_past_the_limit_two_ticks_become_one() -> None:
    joined = within_limit([tick(second) for second in range(TICKS_MAX + 1)])
    assert len(joined) == TICKS_MAX // 2 + 1
    assert joined[0] == {
        "at_s": 1.0, "phase": "measure", "counters": {"published": 10},
        "latencies": {"delivery": {"count": 40, "mean_ns": 100.25, "p99_ns": 5, "max_ns": 1}},
    }  # fmt: skip
    assert joined[-1] == tick(TICKS_MAX)


def test_a_kind_of_time_that_one_tick_has_is_kept() -> None:
    ticks = [tick(second) for second in range(TICKS_MAX + 1)]
    ticks[0]["latencies"] = {}
    ticks[3]["latencies"] = {}
    joined = within_limit(ticks)
    assert joined[0]["latencies"] == tick(1)["latencies"]
    assert joined[1]["latencies"] == tick(2)["latencies"]
