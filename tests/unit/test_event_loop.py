"""A share of one turn of the loop."""

from __future__ import annotations

import asyncio

import pytest

from iotmq import event_loop
from iotmq.event_loop import (
    PACE_REST_S,
    PACE_SLICE_S,
    SLICE_S,
    LoopSlice,
    NextTurn,
    Pace,
    SomePerTurn,
    happens_within,
    some_at_once,
)
from tests.oracles.session_bench import turns


class Clock:
    """Stands in for `time` in the module."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waited_s = 0.0
        self.asked = 0

    def thread_time(self) -> float:
        self.asked += 1
        return self.now_s

    def monotonic(self) -> float:
        return 1_000.0 + self.now_s + self.waited_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(event_loop, "time", clock)
    return clock


async def test_long_work_rests_when_its_slice_is_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(event_loop.asyncio, "sleep", sleep)
    pace = Pace()
    for _ in range(3):
        await pace.step()
        clock.now_s += PACE_SLICE_S / 4
    assert not rests
    clock.now_s += PACE_SLICE_S / 4
    for _ in range(4):
        await pace.step()
        clock.now_s += PACE_SLICE_S / 4
    assert rests == [PACE_REST_S]
    await pace.step()
    await pace.step()
    assert rests == [PACE_REST_S] * 2


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


def test_time_in_which_others_had_the_processor_ends_no_slice(clock: Clock) -> None:
    part = LoopSlice()
    assert part.take()
    clock.waited_s += 10 * SLICE_S
    assert part.take()
    clock.now_s += SLICE_S
    assert not part.take()


def test_the_processors_clock_is_not_asked_while_the_other_one_suffices(clock: Clock) -> None:
    part = LoopSlice()
    assert all(part.take() for _ in range(100))
    assert clock.asked == 1


def test_the_first_step_is_taken_however_late_it_is(clock: Clock) -> None:
    part = LoopSlice(2)
    clock.now_s += 1
    assert [part.take(), part.take()] == [True, False]


async def test_what_is_scheduled_often_is_done_once_in_the_next_turn() -> None:
    done: list[int] = []
    next_turn = NextTurn(lambda: done.append(len(done)))
    next_turn.schedule()
    next_turn.schedule()
    assert done == []
    await turns(2)
    assert done == [0]


async def test_what_schedules_itself_is_done_in_the_turn_after() -> None:
    done: list[int] = []

    def act() -> None:
        done.append(len(done))
        if len(done) < 3:
            next_turn.schedule()

    next_turn = NextTurn(act)
    next_turn.schedule()
    await turns(1)
    assert len(done) == 1
    await turns(3)
    assert len(done) == 3


async def test_what_raises_can_be_scheduled_again() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    done: list[int] = []

    def act() -> None:
        done.append(len(done))
        raise ValueError("refused")

    next_turn = NextTurn(act)
    next_turn.schedule()
    await turns(2)
    next_turn.schedule()
    await turns(2)
    assert (len(done), len(reported)) == (2, 2)


async def test_a_few_are_done_in_a_turn_in_their_order() -> None:
    done: list[int] = []
    some = SomePerTurn(done.append, 3)
    for number in range(7):
        some.add(number)
    assert (done, len(some)) == ([], 7)
    for count in (3, 6, 7, 7):
        await turns(1)
        assert done == list(range(count))
    some.add(7)
    some.do_some()
    assert done == list(range(8)), "at once, for who asks"
    some.add(8)
    assert some.take_all() == [8]
    await turns(2)
    assert done == list(range(8))


async def test_one_that_fails_does_not_keep_the_others() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    done: list[int] = []

    def act(number: int) -> None:
        if number == 1:
            raise ValueError("refused")
        done.append(number)

    some = SomePerTurn(act, 2)
    for number in range(4):
        some.add(number)
    await turns(3)
    assert (done, len(reported)) == ([0, 2, 3], 1)


async def test_an_event_is_waited_for_so_long() -> None:
    event = asyncio.Event()
    assert not await happens_within(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await happens_within(event, 60)
    assert await happens_within(event, 0)


async def test_who_waits_for_an_event_can_be_cancelled_when_it_happens() -> None:
    event = asyncio.Event()
    waiting = asyncio.ensure_future(happens_within(event, 60))
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_some_are_at_work_at_once_and_the_results_are_in_the_order_of_the_items() -> None:
    at_work: list[int] = []
    seen: list[int] = []

    async def work(number: int) -> str:
        at_work.append(number)
        seen.append(len(at_work))
        # The first ones take longest.
        await turns(7 - number)
        at_work.remove(number)
        return str(number)

    assert await some_at_once(work, range(6), count=3) == [str(number) for number in range(6)]
    assert max(seen) == 3
    assert await some_at_once(work, [], count=3) == []
