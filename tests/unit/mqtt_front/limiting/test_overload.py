"""Levels of overload: when they are entered, and when they are left."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from eventually import soon
from manual_clock import ManualClock

from iotmq.mqtt_front.limiting import overload as overload_module
from iotmq.mqtt_front.limiting.overload import LEVELS, Measured, Overload, memory_bytes
from iotmq.mqtt_front.settings.limiting import OverloadSettings


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.levels: list[int] = []
        self.overload = Overload(
            OverloadSettings(**settings),
            asyncio.new_event_loop(),
            self.clock,
            lambda: 0.0,
            self.levels.append,
        )
        self.overload._loop.close()

    def look(self, count: int = 1, *, lag_ms: float = 0, memory: int = 0, latency_ms: float = 0) -> int:
        for _ in range(count):
            self.clock.advance(0.25)
            self.overload.look(Measured(lag_ms, memory, latency_ms))
        return self.overload.level


LAG = {"refuse_loop_lag_ms": 100, "shed_loop_lag_ms": 1_000, "calm_s": 5}


def test_a_level_is_entered_past_its_limit_and_not_at_it() -> None:
    bench = Bench(**LAG)
    assert bench.look(20, lag_ms=100) == 0
    assert bench.look(3, lag_ms=101) == 0
    assert bench.overload.reason is None
    assert bench.look(1, lag_ms=101) == 1
    cause = "mqtt.device_limits.overload.refuse_loop_lag_ms"
    assert bench.overload.reason == f"overload, it {LEVELS[1]} ({cause})"
    assert bench.levels == [1]


def test_one_pause_is_no_overload() -> None:
    bench = Bench(**LAG)
    for _ in range(10):
        bench.look(3, lag_ms=5_000)
        bench.look(1)
    assert bench.levels == []


def test_the_second_level_comes_with_the_first() -> None:
    bench = Bench(**LAG)
    assert bench.look(4, lag_ms=1_001) == 2
    assert bench.levels == [2]
    assert bench.overload.entered_total == [1, 1]
    assert bench.overload.cause == "shed_loop_lag_ms"


def test_a_level_is_left_when_all_is_well_for_a_while() -> None:
    bench = Bench(**LAG)
    bench.look(4, lag_ms=1_001)
    # Between four fifths and the limit nothing changes.
    assert bench.look(100, lag_ms=900) == 2
    assert bench.look(20, lag_ms=790) == 2
    assert bench.look(1, lag_ms=790) == 1
    assert bench.look(100, lag_ms=81) == 1
    assert bench.look(20, lag_ms=10) == 1
    assert bench.look(1, lag_ms=10) == 0
    assert bench.levels == [2, 1, 0]


def test_calm_that_is_interrupted_begins_anew() -> None:
    bench = Bench(**LAG)
    bench.look(4, lag_ms=101)
    bench.look(15, lag_ms=0)
    bench.look(1, lag_ms=90)
    assert bench.look(20, lag_ms=0) == 1
    assert bench.look(1, lag_ms=0) == 0


@pytest.mark.parametrize(
    ("settings", "measured", "level"),
    [
        ({"refuse_memory_bytes": 1_000}, {"memory": 1_001}, 1),
        ({"refuse_memory_bytes": 1_000}, {"memory": 1_000}, 0),
        ({"shed_memory_bytes": 1_000}, {"memory": 1_001}, 2),
        ({"refuse_broker_latency_ms": 500}, {"latency_ms": 501}, 1),
        ({"shed_broker_latency_ms": 500}, {"latency_ms": 501}, 2),
        ({"refuse_loop_lag_ms": 0, "shed_loop_lag_ms": 0}, {"lag_ms": 10**6}, 0),
    ],
)
def test_each_measure_has_its_limits(settings: dict[str, int], measured: dict[str, Any], level: int) -> None:
    bench = Bench(**settings)
    assert bench.look(10, **measured) == level


def test_memory_is_that_of_this_process() -> None:
    assert 10_000_000 < memory_bytes() < 1 << 40


async def test_a_loop_that_is_really_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload_module, "MEASURE_S", 0.01)
    loop = asyncio.get_running_loop()
    levels: list[int] = []
    overload = Overload(
        OverloadSettings(refuse_loop_lag_ms=30, shed_loop_lag_ms=0, refuse_broker_latency_ms=0, calm_s=0.1),
        loop,
        overload_clock(loop),
        lambda: 0.0,
        levels.append,
    )
    overload.start()
    stop_s = loop.time() + 30

    def block() -> None:
        time.sleep(0.05)  # the overload itself, not a wait of the test
        if not levels and loop.time() < stop_s:
            loop.call_soon(block)

    loop.call_soon(block)
    await soon(lambda: levels, "level 1", step_s=0.001)
    assert levels[0] == 1
    await soon(lambda: overload.level == 0, "level 0", step_s=0.001)
    overload.stop()
    overload.stop()


def overload_clock(loop: asyncio.AbstractEventLoop) -> Any:
    class LoopClock:
        def monotonic_s(self) -> float:
            return loop.time()

        def now_ms(self) -> int:
            return round(loop.time() * 1000)

    return LoopClock()


async def test_nothing_is_measured_without_limits() -> None:
    overload = Overload(
        OverloadSettings(refuse_loop_lag_ms=0, shed_loop_lag_ms=0, refuse_broker_latency_ms=0),
        asyncio.get_running_loop(),
        ManualClock(),
        lambda: 0.0,
        lambda level: None,
    )
    overload.start()
    assert overload._timer is None
