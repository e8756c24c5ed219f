"""Replays of dead letters as jobs: what they say of themselves, what is tried again, how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from eventually import until
from manual_clock import ManualClock

from iotmq.client.admin.dead_letters import Resent, Selection
from iotmq.console.api import replays as replays_module
from iotmq.console.api.problems import CONFLICT, TOO_MANY, ProblemError
from iotmq.console.api.replays import ReplayJob, Replays
from iotmq.errors import MessageRefusedError, RequestTimeoutError, RouteNotFoundError
from iotmq.limits import HTTP_REPLAYS_KEPT_MAX, HTTP_REPLAYS_MAX
from iotmq.supervised import FAILURES


class Letters:
    """Stands for a replay: each run does what `runs` says, a count to send or an error; then one goes on."""

    def __init__(self, *runs: int | Exception) -> None:
        self.resent = Resent()
        self.stopping = asyncio.Event()
        self.runs = list(runs)

    async def run(self) -> AsyncIterator[Resent]:
        if not self.runs:
            await self.stopping.wait()
            return
        step = self.runs.pop(0)
        if isinstance(step, Exception):
            raise step
        self.resent = Resent(self.resent.sent_count + step)
        yield self.resent


def start(replays: Replays, letters: Any, group: str = "g") -> ReplayJob:
    return replays.start(letters, Selection(), group=group, by="me", per_second=0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays_module, "_PAUSE_S_MIN", 0.0)
    monkeypatch.setattr(replays_module, "_PAUSE_S_MAX", 0.0)


@pytest.fixture
def replays() -> Replays:
    return Replays(ManualClock())


async def test_a_broker_that_fails_is_waited_for(replays: Replays) -> None:
    letters = Letters(RequestTimeoutError("no answer"), RouteNotFoundError("no broker"), ConnectionError(), 3)
    job = start(replays, letters)
    assert (job.state, job.is_over) == ("running", False)
    await until(lambda: job.is_over)
    assert (job.state, job.problem, letters.resent.sent_count) == ("done", "", 3)
    assert replays.find("g") is job


async def test_what_does_not_change_by_itself_is_the_end(replays: Replays) -> None:
    job = start(replays, Letters(MessageRefusedError("no name of a topic"), 3))
    await until(lambda: job.is_over)
    assert (job.state, job.problem) == ("failed", "no name of a topic")


async def test_so_often_in_a_row_it_is_tried_again(replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays_module, "_TRIES_MAX", 2)
    error = RequestTimeoutError("no answer")
    job = start(replays, Letters(error, error, 1))
    await until(lambda: job.is_over)
    assert job.state == "done"
    job = start(replays, Letters(error, error, error, 1))
    await until(lambda: job.is_over)
    assert (job.state, job.problem) == ("failed", "no answer")


async def test_a_fault_of_ours_is_the_end_and_is_noted(replays: Replays) -> None:
    before = FAILURES.count("replay of dead letters")
    job = start(replays, Letters(KeyError("x")))
    await until(lambda: job.is_over)
    assert job.state == "failed"
    assert FAILURES.count("replay of dead letters") == before + 1


async def test_a_replay_is_stopped_while_it_sends_and_while_it_waits(
    replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(replays, Letters())
    await job.stop()
    assert job.state == "stopped"
    monkeypatch.setattr(replays_module, "_PAUSE_S_MIN", 1000.0)
    monkeypatch.setattr(replays_module, "_PAUSE_S_MAX", 1000.0)
    job = start(replays, Letters(RequestTimeoutError("no answer")))
    await until(lambda: job.state == "waiting")
    assert job.problem == "no answer"
    await replays.stop()
    assert job.state == "stopped"


async def test_one_that_does_not_end_is_ended(replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays_module, "_STOP_S", 0.0)

    class Hanging(Letters):
        async def run(self) -> AsyncIterator[Resent]:
            await asyncio.Event().wait()
            yield self.resent

    job = start(replays, Hanging())
    await asyncio.sleep(0)
    await job.stop()
    assert job.state == "stopped"


async def test_a_group_has_one_and_there_are_so_many(replays: Replays) -> None:
    for number in range(HTTP_REPLAYS_MAX):
        start(replays, Letters(), f"g{number}")
    with pytest.raises(ProblemError, match="sent by me") as raised:
        start(replays, Letters(), "g0")
    assert raised.value.kind is CONFLICT
    with pytest.raises(ProblemError, match="8 replays") as raised:
        start(replays, Letters(), "more")
    assert raised.value.kind is TOO_MANY
    first = replays.find("g0")
    assert first is not None
    await first.stop()
    assert start(replays, Letters(), "g0").state == "running"
    await replays.stop()


async def test_so_many_are_known_and_those_that_go_on_are_among_them(replays: Replays) -> None:
    going = start(replays, Letters(), "going")
    for number in range(HTTP_REPLAYS_KEPT_MAX):
        job = start(replays, Letters(0), f"g{number}")
        await until(lambda job=job: job.is_over)
    assert replays.find("going") is going
    assert replays.find("g0") is None
    assert replays.find("g1") is not None
    assert replays.find(f"g{HTTP_REPLAYS_KEPT_MAX - 1}") is not None
    await replays.stop()
