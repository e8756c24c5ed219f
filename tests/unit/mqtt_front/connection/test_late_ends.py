"""Devices that are late at one time do not make those who are well wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from front_site import Site, running, tick_quickly

from iotmq.mqtt_front.connection import late_ends
from iotmq.mqtt_front.connection.device import Device
from tests.oracles.session_bench import turns

LATE = 20


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    tick_quickly(monkeypatch)
    async with running() as site:
        yield site


async def test_a_few_are_ended_in_a_turn(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: Counter[int] = Counter()
    end_late, now = site.front._end_late, 0

    def counted(device: Device, now_s: float) -> None:
        ended[now] += 1
        end_late(device, now_s)

    well = await site.connect("well", keep_alive_s=0)
    silent = [await site.dial() for _ in range(LATE)]
    await well.ping()  # they are accepted by then
    monkeypatch.setattr(site.front, "_end_late", counted)
    ends = site.front._late_ends
    site.clock.advance(1_000)
    group = site.front.parts.group
    ends.tick(group, counted, site.clock.monotonic_s())
    assert ended.total() == late_ends.ENDS_PER_TURN, "the first ones at once"
    while len(ends._ends):
        now += 1
        await turns(1)
    assert ended.total() == LATE
    assert max(ended.values()) == late_ends.ENDS_PER_TURN
    for client in silent:
        assert await client.rest() == b""
    await site.gone("connect_timeout", LATE)
    await well.ping()


async def test_one_that_is_in_time_after_all_is_left_alone(site: Site) -> None:
    """It has done something while others were ended."""
    client = await site.connect("d", keep_alive_s=10)
    (device,) = site.front.parts.sessions.devices()
    site.front._end_late(device, site.clock.monotonic_s())
    await client.ping()
    assert device.close_reason is None
