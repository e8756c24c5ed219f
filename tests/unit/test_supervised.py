"""Background work that fails goes on, and is counted; it ends when it is done or cancelled."""

from __future__ import annotations

import asyncio
import logging

import pytest

from iotmq.supervised import FAILURES, end, repeat, supervise, surviving


async def test_work_that_raises_is_logged_counted_and_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    before = FAILURES.count("a test")
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise KeyError("nobody expected this")

    with caplog.at_level(logging.ERROR):
        await supervise("a test", work, pause_s=0)
    assert tries == 3
    assert FAILURES.count("a test") == before + 2
    assert [record.__dict__["work"] for record in caplog.records] == ["a test", "a test"]
    assert all(record.exc_info for record in caplog.records)
    shown = {metric.labels: metric.value for metric in FAILURES.metrics()}
    assert shown[(("work", "a test"),)] == before + 2


async def test_a_cancellation_ends_it_and_one_of_somebody_else_does_not() -> None:
    before = FAILURES.count("a test")
    started = asyncio.Event()
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled
        started.set()
        await asyncio.Event().wait()

    task = supervise("a test", work, pause_s=0)
    await started.wait()
    assert FAILURES.count("a test") == before + 1
    await end([task])
    assert task.cancelled()
    assert FAILURES.count("a test") == before + 1


async def test_a_pause_after_a_failure_can_be_cancelled() -> None:
    failed = asyncio.Event()

    async def work() -> None:
        failed.set()
        raise ValueError

    task = supervise("a test", work, pause_s=3600)
    await failed.wait()
    await end([task])
    assert task.cancelled()


async def test_what_repeats_goes_on_after_a_failure() -> None:
    done = asyncio.Event()
    calls = 0

    def action() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError
        if calls == 4:
            done.set()

    task = supervise("a test", lambda: repeat(0, action), pause_s=0)
    async with asyncio.timeout(5):
        await done.wait()
    await end([task])
    assert calls >= 4


async def test_a_timers_callback_survives() -> None:
    before = FAILURES.count("a test")
    fired = asyncio.Event()

    def tick(error: BaseException) -> None:
        with surviving("a test"):
            raise error

    loop = asyncio.get_running_loop()
    loop.call_soon(tick, OSError())
    loop.call_soon(tick, asyncio.CancelledError())
    loop.call_soon(fired.set)
    await fired.wait()
    assert FAILURES.count("a test") == before + 2


def test_what_ends_the_process_is_not_survived() -> None:
    with pytest.raises(KeyboardInterrupt), surviving("a test"):
        raise KeyboardInterrupt
