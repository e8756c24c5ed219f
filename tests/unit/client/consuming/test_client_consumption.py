"""What a listener got done, over the last minute."""

from __future__ import annotations

from manual_clock import ManualClock

from iotmq.client.consuming.consumption import Consumption, Rate


def test_nothing_was_done_yet() -> None:
    consumption = Consumption(ManualClock())
    assert consumption.rate("T") == Rate()
    assert consumption.failed_total("T") == 0


def test_rates_are_of_the_last_minute() -> None:
    clock = ManualClock()
    consumption = Consumption(clock)
    for _ in range(120):
        consumption.count("T", consumed=8, failed=2, seconds=0.05)
        clock.advance(1)
    rate = consumption.rate("T")
    assert round(rate.consumed_tps) == 8
    assert round(rate.failed_tps) == 2
    assert round(rate.average_ms, 3) == 5.0
    assert consumption.failed_total("T") == 240
    clock.advance(30)
    assert 0 < consumption.rate("T").consumed_tps < 8
    clock.advance(60)
    assert consumption.rate("T") == Rate()
    consumption.count("T", consumed=60, failed=0, seconds=0.6)
    clock.advance(10)
    assert [round(value, 6) for value in consumption.rate("T")] == [6.0, 0.0, 10.0]


def test_a_first_second_is_not_a_moment() -> None:
    consumption = Consumption(ManualClock())
    consumption.count("T", consumed=20, failed=0, seconds=0.0)
    assert consumption.rate("T").consumed_tps == 20.0
