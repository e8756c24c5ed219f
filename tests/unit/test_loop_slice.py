"""A share of one turn of the loop."""

from __future__ import annotations

import pytest

from iotmq import loop_slice
from iotmq.loop_slice import SLICE_S, LoopSlice


class Clock:
    """Stands in for `time` in the module."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def thread_time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop_slice, "time", clock)
    return clock


def test_so_many_steps_are_taken_and_no_more(clock: Clock) -> None:
    part = LoopSlice(3)
    assert [part.take() for _ in range(5)] == [True, True, True, False, False]
    assert part.is_over


def test_no_step_begins_when_the_time_is_over(clock: Clock) -> None:
    part = LoopSlice()
    assert part.take()
    clock.now_s += SLICE_S / 2
    assert part.take()
    clock.now_s += SLICE_S / 2
    assert not part.take()


def test_the_first_step_is_taken_however_late_it_is(clock: Clock) -> None:
    part = LoopSlice(2)
    clock.now_s += 1
    assert [part.take(), part.take()] == [True, False]
