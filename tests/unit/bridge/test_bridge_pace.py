"""When a stream lets its next batch go."""

from __future__ import annotations

from manual_clock import ManualClock

from iotmq.bridge.pace import Pace


def test_without_a_minimum_batches_begin_at_once() -> None:
    pace = Pace(None, 60.0, clock=ManualClock())
    assert [pace.lets_go(rows) for rows in (1, 0, 1)] == [True, True, True]


def test_the_first_batch_begins_at_once_and_others_when_enough_is_there() -> None:
    pace = Pace(100, 60.0, clock=ManualClock())
    assert pace.lets_go(1)
    assert not pace.lets_go(99)
    assert pace.lets_go(100)
    assert not pace.lets_go(1)


def test_less_is_read_when_it_has_waited_long_enough() -> None:
    clock = ManualClock()
    pace = Pace(100, 60.0, clock=clock)
    assert pace.lets_go(1)
    clock.advance(59.5)
    assert not pace.lets_go(1)
    clock.advance(0.5)
    assert pace.lets_go(1)
    assert not pace.lets_go(1)


def test_nothing_to_read_is_no_batch() -> None:
    clock = ManualClock()
    pace = Pace(100, 60.0, clock=clock)
    assert pace.lets_go(5)
    clock.advance(60.0)
    assert pace.lets_go(0)
    assert pace.lets_go(5)
