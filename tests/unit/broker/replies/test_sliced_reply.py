"""Answers in slices: how many at a time, what interrupts them, what ends them; and how large one may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from eventually import soon
from fake_connection import FakeConnection

from iotmq import limits
from iotmq.broker.replies.reply_body import ReplySize, reply_json
from iotmq.broker.replies.sliced_reply import SlicedReplies, Work
from iotmq.errors import RequestError
from iotmq.remoting.command import Command


class FakeColdReads:
    """Loads what a test says, when it says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[OSError | None], None]] = []

    def start(self, plan: object, ready: Callable[[OSError | None], None]) -> None:
        self.waiting.append(ready)


class Site:
    """Long answers, and one connection that asks."""

    def __init__(self, *, slice_s: float = 0.0, running_max: int = limits.LONG_ANSWERS_MAX) -> None:
        self.cold_reads: Any = FakeColdReads()
        self.answers = SlicedReplies(self.cold_reads, running_max=running_max, slice_s=slice_s)
        self.connection: Any = FakeConnection()
        self.request = Command.request(208)

    def ask(self, work: Work) -> Command | None:
        return self.answers.answer(self.connection, self.request, work)

    def running(self) -> float:
        return next(iter(self.answers.metrics())).value


def steps(site: Site, count: int, *, plan: Any = None, error: Exception | None = None) -> Work:
    for _ in range(count):
        yield plan
    if error is not None:
        raise error
    return site.request.reply(0, remark=f"{count} steps")


async def test_an_answer_of_one_slice_is_there_at_once() -> None:
    site = Site(slice_s=60)
    response = site.ask(steps(site, 1_000))
    assert response is not None
    assert response.remark == "1000 steps"
    assert (site.running(), site.connection.replies) == (0, [])


async def test_others_get_their_turn_between_slices() -> None:
    site = Site()
    assert site.ask(steps(site, 5)) is None
    turns = 0
    while not site.connection.replies:
        await asyncio.sleep(0)
        turns += 1
    assert 4 <= turns <= 6
    assert site.connection.replies[0].remark == "5 steps"
    assert site.running() == 0


async def test_the_disk_is_waited_for() -> None:
    site = Site(slice_s=60)
    assert site.ask(steps(site, 1, plan="plan")) is None
    assert site.connection.replies == []
    site.cold_reads.waiting[0](None)
    await soon(lambda: site.connection.replies, "the answer")
    assert site.connection.replies[0].code == 0


async def test_many_answers_take_turns_and_no_more_of_the_loop_than_one() -> None:
    site = Site()
    done: list[str] = []

    def work(name: str) -> Work:
        for number in range(3):
            done.append(f"{name}{number}")
            yield None
        return site.request.reply(0)

    for name in "abc":
        assert site.ask(work(name)) is None
    at_start = len(done)
    assert at_start == 1
    counts = []
    while len(site.connection.replies) < 3:
        await asyncio.sleep(0)
        counts.append(len(done))
    # One slice, which here is one step, in a turn of the loop; each in its turn.
    assert all(after - before <= 1 for before, after in zip([at_start, *counts], counts, strict=False))
    assert done == ["a0", "a1", "b0", "c0", "a2", "b1", "c1", "b2", "c2"]


async def test_a_disk_that_refuses_is_the_answer() -> None:
    site = Site(slice_s=60)
    site.ask(steps(site, 1, plan="plan"))
    site.cold_reads.waiting[0](OSError("bad sector"))
    (response,) = site.connection.replies
    assert (response.code, "bad sector" in (response.remark or "")) == (1, True)
    assert site.running() == 0


@pytest.mark.parametrize(
    ("error", "code"), [(RequestError(17, "no such topic"), 17), (ValueError("a mistake of ours"), 1)]
)
async def test_what_fails_on_the_way_is_answered(error: Exception, code: int) -> None:
    site = Site()
    assert site.ask(steps(site, 3, error=error)) is None
    await soon(lambda: site.connection.replies, "the answer")
    (response,) = site.connection.replies
    assert response.code == code
    assert str(error) in (response.remark or "")
    assert site.running() == 0


async def test_only_so_many_are_worked_on_at_a_time() -> None:
    site = Site(running_max=2)
    for _ in range(2):
        assert site.ask(steps(site, 10)) is None
    with pytest.raises(RequestError, match="long answers") as refusal:
        site.ask(steps(site, 10))
    assert refusal.value.code == 2
    await soon(lambda: len(site.connection.replies) == 2, "both answers")
    assert site.ask(steps(site, 10)) is None
    site.answers.stop()


async def test_the_limit_of_the_broker_is_the_default() -> None:
    site = Site()
    for _ in range(limits.LONG_ANSWERS_MAX):
        assert site.ask(steps(site, 10)) is None
    with pytest.raises(RequestError):
        site.ask(steps(site, 10))
    site.answers.stop()


async def test_nobody_works_for_a_connection_that_ended() -> None:
    site = Site()
    site.ask(steps(site, 1, plan="plan"))
    site.ask(steps(site, 10))
    site.answers.connection_lost(site.connection)
    assert site.running() == 0
    site.cold_reads.waiting[0](None)
    for _ in range(20):
        await asyncio.sleep(0)
    assert site.connection.replies == []


async def test_a_stop_ends_all_of_them() -> None:
    site = Site()
    site.ask(steps(site, 10))
    site.answers.stop()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (site.running(), site.connection.replies) == (0, [])


def test_an_answer_may_have_so_many_bytes_and_no_more() -> None:
    most = limits.ANSWER_BODY_BYTES_MAX
    assert most < limits.FRAME_BYTES_MAX - limits.HEADER_FIELDS_MAX
    size = ReplySize("ask for less")
    size.add(most - 1)
    size.add(1)
    with pytest.raises(RequestError, match="ask for less") as refusal:
        size.add(1)
    assert refusal.value.code == 1
    request = Command.request(0)
    assert reply_json(request, " " * (most - 2), instead="ask for less").body_bytes()[:2] == b'" '
    with pytest.raises(RequestError, match="ask for less"):
        reply_json(request, " " * (most - 1), instead="ask for less")
