"""What fails again and again is left alone, and tried now and then."""

from __future__ import annotations

from manual_clock import ManualClock

from iotmq.mqtt_front.plugins.breaker import Breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(ManualClock(), failures_max=3, pause_s=5)
    for _ in range(2):
        assert not breaker.failed()
    breaker.succeeded()
    assert [breaker.failed() for _ in range(3)] == [False, False, True]
    assert breaker.is_open
    assert not breaker.may_ask()
    assert breaker.opened_total == 1


def test_one_tries_after_the_pause_and_its_success_lets_all_ask() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, failures_max=1, pause_s=5)
    breaker.failed()
    clock.advance(5)
    assert breaker.may_ask()
    assert not breaker.may_ask()
    breaker.succeeded()
    assert breaker.may_ask()
    assert breaker.may_ask()


def test_a_try_that_fails_begins_another_pause_of_the_same_time() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, failures_max=1, pause_s=5)
    breaker.failed()
    clock.advance(5)
    assert breaker.may_ask()
    assert not breaker.failed(), "it was open already"
    assert not breaker.may_ask()
    clock.advance(5)
    assert breaker.may_ask()
    assert breaker.opened_total == 1


def test_a_try_that_never_reports_is_followed_by_another() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, failures_max=1, pause_s=5)
    breaker.failed()
    clock.advance(5)
    assert breaker.may_ask()
    clock.advance(5)
    assert breaker.may_ask()


def test_without_a_maximum_it_never_opens() -> None:
    breaker = Breaker(ManualClock(), failures_max=0, pause_s=5)
    assert not any(breaker.failed() for _ in range(1000))
    assert breaker.may_ask()
