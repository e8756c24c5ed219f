"""How late the loop is, measured and told."""

from __future__ import annotations

import asyncio
import time

from eventually import until
from manual_clock import ManualClock

from iotmq.metrics import Metric
from iotmq.telemetry.loop_lag import LoopLag


def values(lag: LoopLag) -> dict[str, float]:
    return {metric.name: metric.value for metric in lag.metrics()}


async def test_a_blocked_loop_is_seen() -> None:
    lag = LoopLag(ManualClock())
    lag.start()
    time.sleep(0.25)  # noqa: ASYNC251 (it is what is measured)
    await until(lambda: values(lag)["iotmq_loop_lag_seconds_count"] > 0)
    lag.stop()
    assert values(lag)["iotmq_loop_lag_max_seconds"] >= 0.14
    assert values(lag)["iotmq_loop_lag_seconds_sum"] >= 0.14


async def test_nothing_is_measured_after_the_stop() -> None:
    lag = LoopLag(ManualClock())
    lag.stop()
    lag.start()
    timers = {handle for handle in [lag._timer] if handle is not None}
    lag.stop()
    assert [handle.cancelled() for handle in timers] == [True]
    await asyncio.sleep(0)
    assert values(lag)["iotmq_loop_lag_seconds_count"] == 0


def test_the_longest_lag_is_forgotten_after_a_minute() -> None:
    lag = LoopLag(ManualClock())
    lag.note(2_000_000)
    for _ in range(599):
        lag.note(10)
    assert values(lag)["iotmq_loop_lag_max_seconds"] == 2.0
    for _ in range(100):
        lag.note(10)
    assert values(lag)["iotmq_loop_lag_max_seconds"] == 0.00001
    assert values(lag)["iotmq_loop_lag_seconds_count"] == 700


def test_buckets_count_what_is_below_them() -> None:
    lag = LoopLag(ManualClock())
    for lag_us in (0, 127, 128, 1_000, 30_000_000):
        lag.note(lag_us)
    buckets: dict[str, Metric] = {
        dict(metric.labels)["le"]: metric for metric in lag.metrics() if metric.name.endswith("_bucket")
    }
    assert buckets["0.000128"].value == 2
    assert buckets["0.000256"].value == 3
    assert buckets["0.001024"].value == 4
    assert [metric.value for metric in buckets.values()][-2:] == [4, 5]
