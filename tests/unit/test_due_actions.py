"""Actions that wait for a time."""

from __future__ import annotations

import pytest
from eventually import soon
from manual_clock import ManualClock

from iotmq import event_loop
from iotmq.errors import StoreError
from iotmq.event_loop import ACTIONS_PER_TURN, CANCELLED_ACTIONS_KEPT, DueActions


async def test_of_very_many_that_are_due_some_are_done_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow the processor is: what time has to say of it is test_loop_slice's.
    monkeypatch.setattr(event_loop.time, "thread_time", lambda: 0.0)
    clock = ManualClock()
    actions = DueActions(clock, refused=lambda error: None)
    done: list[int] = []
    for number in range(ACTIONS_PER_TURN + 1):
        actions.do_later(1, lambda number=number: done.append(number))  # type: ignore[misc]
    clock.advance(2)
    actions.run()
    actions.check_invariants()
    assert done == list(range(ACTIONS_PER_TURN))
    await soon(lambda: not len(actions), "the last one")
    assert done == list(range(ACTIONS_PER_TURN + 1))
    actions.check_invariants()


async def test_cancelled_actions_take_no_more_room_than_the_others_and_a_few() -> None:
    actions = DueActions(ManualClock(), refused=lambda error: None)
    kept = [actions.do_later(3_600, lambda: None) for _ in range(100)]
    for _ in range(1_000):
        actions.cancel(actions.do_later(3_600, lambda: None))
        actions.check_invariants()
        assert len(actions._heap) <= 2 * len(kept) + CANCELLED_ACTIONS_KEPT + 1
    assert len(actions) == 100
    for due in kept:
        actions.cancel(due)
        actions.cancel(due)
        actions.check_invariants()
    assert len(actions) == 0
    assert len(actions._heap) <= CANCELLED_ACTIONS_KEPT
    actions.stop()


async def test_nothing_is_done_after_the_stop_whatever_is_added_or_cancelled() -> None:
    clock = ManualClock()
    refused: list[StoreError] = []
    actions = DueActions(clock, refused=refused.append)
    done: list[int] = []

    def fail() -> None:
        raise StoreError("closed")

    first = actions.do_later(1, lambda: done.append(1))
    actions.stop()
    actions.cancel(first)
    actions.do_later(1, lambda: done.append(2))
    # What the database refuses is not tried again: it is closed.
    actions.do_surely(fail)
    assert len(refused) == 1
    clock.advance(10)
    actions.run()
    actions.check_invariants()
    assert (done, len(actions), len(refused)) == ([], 0, 1)
