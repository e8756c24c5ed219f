"""Turns at a service: so many at one time, so many a second, and what waits is bounded."""

from __future__ import annotations

import asyncio
import time

import pytest

from iotmq.credentials.pace import Pace


def wanted() -> bool:
    return True


async def test_so_many_at_one_time_and_the_next_in_their_order() -> None:
    pace = Pace(at_once_max=2, per_s_max=0, waiting_max=10)
    order: list[int] = []

    async def one(number: int) -> None:
        assert await pace.turn(wanted, wait_s=20)
        order.append(number)

    for number in range(2):
        await one(number)
    tasks = [asyncio.ensure_future(one(number)) for number in range(2, 5)]
    await asyncio.sleep(0)
    assert (pace.under_way_count, pace.waiting_count, order) == (2, 3, [0, 1])
    for _ in range(3):
        pace.done()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert (pace.under_way_count, pace.waiting_count) == (2, 0)


async def test_who_waits_for_too_long_or_behind_too_many_is_told() -> None:
    pace = Pace(at_once_max=1, per_s_max=0, waiting_max=1)
    assert await pace.turn(wanted, wait_s=20)
    waiting = asyncio.ensure_future(pace.turn(wanted, wait_s=0.05))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await pace.turn(wanted, wait_s=20)
    with pytest.raises(TimeoutError):
        await waiting
    assert pace.waiting_count == 0
    pace.done()
    assert await pace.turn(wanted, wait_s=20)


async def test_a_device_that_has_gone_takes_no_turn() -> None:
    pace = Pace(at_once_max=1, per_s_max=0, waiting_max=10)
    assert await pace.turn(wanted, wait_s=20)
    is_here = True
    gone = asyncio.ensure_future(pace.turn(lambda: is_here, wait_s=20))
    other = asyncio.ensure_future(pace.turn(wanted, wait_s=20))
    await asyncio.sleep(0)
    is_here = False
    pace.done()
    assert not await gone
    assert await other
    assert pace.under_way_count == 1


async def test_so_many_a_second() -> None:
    pace = Pace(at_once_max=1_000, per_s_max=100, waiting_max=1_000)
    began = time.monotonic()
    for _ in range(130):
        assert await pace.turn(wanted, wait_s=20)
        pace.done()
    # A second's worth begins at once, the rest one every 10 ms.
    assert time.monotonic() - began >= 0.25
    pace.close()


async def test_a_wait_that_is_cancelled_gives_its_turn_back() -> None:
    pace = Pace(at_once_max=1, per_s_max=0, waiting_max=10)
    assert await pace.turn(wanted, wait_s=20)
    waiting = asyncio.ensure_future(pace.turn(wanted, wait_s=20))
    await asyncio.sleep(0)
    pace.done()  # it is its turn
    waiting.cancel()  # in the same moment
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pace.under_way_count == 0
    assert await pace.turn(wanted, wait_s=20)
