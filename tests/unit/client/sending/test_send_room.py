"""The room of a producer at its limits and past them."""

from __future__ import annotations

import asyncio

import pytest

from iotmq.client.sending.send_room import SendRoom
from iotmq.errors import ProducerBusyError


@pytest.mark.parametrize(
    ("count", "size", "is_full"), [(2, 9, False), (3, 9, True), (2, 10, True), (0, 11, True)]
)
def test_there_is_room_below_the_maxima_only(count: int, size: int, *, is_full: bool) -> None:
    room = SendRoom(count_max=3, bytes_max=10)
    room.add(size, count)
    assert room.is_full == is_full
    if is_full:
        with pytest.raises(ProducerBusyError, match=f"{count} sends with {size} bytes"):
            room.refuse_when_full()
    else:
        room.refuse_when_full()
    room.remove(size, count)
    assert not room.is_full


async def test_who_waits_goes_on_in_turn_as_there_is_room_for_items_and_bytes() -> None:
    room = SendRoom(count_max=2, bytes_max=10)
    room.add(10)
    order: list[int] = []

    async def wait(number: int) -> None:
        await room.wait()
        room.add(1)
        order.append(number)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    room.add(0)
    room.remove(0)
    await asyncio.sleep(0)
    assert not order, "there is room for items, not for bytes"
    room.remove(10)
    await asyncio.gather(*tasks[:2])
    assert (order, room.count, tasks[2].done()) == ([0, 1], 2, False)
    room.remove(1)
    await tasks[2]
    assert order == [0, 1, 2]


async def test_waiting_senders_that_have_given_up_are_forgotten() -> None:
    room = SendRoom(count_max=1, bytes_max=10)
    room.add(1)
    for _ in range(3):
        waiting = asyncio.ensure_future(room.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert room.waiting_count == 0
    room.remove(1)
    await asyncio.wait_for(room.wait(), 30)
    await room.drain()


async def test_what_comes_back_from_a_refused_request_is_waited_for() -> None:
    room = SendRoom(count_max=2, bytes_max=10)
    room.add(1, 2)
    draining = asyncio.ensure_future(room.drain())
    await asyncio.sleep(0)
    room.remove(1, 2)
    room.add(1, 1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not draining.done()
    room.remove(1, 1)
    await draining
