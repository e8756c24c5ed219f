"""A clock that is never set back."""

from __future__ import annotations

from manual_clock import ManualClock

from iotmq.clock import SteadyClock


def test_it_shows_what_the_other_one_shows_until_that_is_set_back() -> None:
    clock = ManualClock(1_000)
    steady = SteadyClock(clock)
    clock.advance(1.5)
    assert (steady.now_ms(), steady.monotonic_s()) == (2_500, clock.monotonic_s())
    clock.step(10)
    assert steady.now_ms() == 12_500
    clock.step(-5)
    assert steady.now_ms() == 12_500
    clock.advance(2)
    assert steady.now_ms() == 14_500
    clock.step(4)
    clock.advance(2)
    assert (clock.now_ms(), steady.now_ms()) == (15_500, 16_500)
    clock.step(4)
    assert steady.now_ms() == 19_500


def test_it_goes_on_from_what_was_shown_in_a_former_life() -> None:
    clock = ManualClock(1_000)
    steady = SteadyClock(clock)
    steady.raise_to(500)
    assert steady.now_ms() == 1_000
    steady.raise_to(3_000)
    clock.advance(0.5)
    assert steady.now_ms() == 3_500
