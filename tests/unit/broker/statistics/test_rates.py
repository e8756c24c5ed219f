"""Rates over several windows."""

from __future__ import annotations

from manual_clock import ManualClock

from iotmq.broker.statistics.rates import Rates


def test_nothing_happened_yet() -> None:
    rates = Rates(ManualClock(), ("put",))
    assert rates.text("put", 0) == "0.00 0.00 0.00"


def test_each_window_sees_its_own_past() -> None:
    clock = ManualClock()
    rates = Rates(clock, ("put", "get"))
    put = 0
    for round_number in range(60):
        clock.advance(10)
        put += 100 if round_number < 54 else 20
        rates.sample((put, 0))
    assert rates.rate("put", put, 10) == 2.0
    assert rates.rate("put", put, 60) == 2.0
    assert rates.rate("put", put, 600) == (54 * 100 + 6 * 20) / 600
    assert rates.rate("get", 0, 600) == 0.0


def test_asking_often_does_not_shorten_the_windows() -> None:
    clock = ManualClock()
    rates = Rates(clock, ("put",))
    for _ in range(60):
        clock.advance(10)
        rates.sample((0,))
    for _ in range(1_000):
        rates.text("put", 600)
    assert rates.rate("put", 600, 600) == 1.0
