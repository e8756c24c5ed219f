"""Deadlines of sends, the usual one and others."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from iotmq.client.sending.send_deadlines import SendDeadlines


class Send:
    """What a deadline needs of a send."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.deadline_s = 0.0
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("timeout_s", [3.0, 0.001])
async def test_a_send_that_is_done_is_not_kept_until_its_deadline(timeout_s: float) -> None:
    ended: list[Send] = []
    deadlines = SendDeadlines(usual_s=3.0, time_out=ended.append)  # type: ignore[arg-type]
    send = Send(60.0)
    deadlines.watch(send)  # type: ignore[arg-type]
    usual = Send(timeout_s)
    deadlines.watch(usual)  # type: ignore[arg-type]
    send.future.set_result(None)
    usual.future.set_result(None)
    deadlines.tidy()
    gone = [weakref.ref(send), weakref.ref(usual)]
    del send, usual
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    deadlines.stop()
    assert ended == []


async def test_sends_end_at_their_own_deadlines() -> None:
    ended: asyncio.Queue[Send] = asyncio.Queue()
    deadlines = SendDeadlines(usual_s=0.05, time_out=ended.put_nowait)  # type: ignore[arg-type]
    usual, short = Send(0.05), Send(0.01)
    deadlines.watch(usual)  # type: ignore[arg-type]
    deadlines.watch(short)  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        assert [await ended.get(), await ended.get()] == [short, usual]
    deadlines.stop()
