"""Connections that end in any way leave nothing behind in the front end and the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from eventually import soon
from fake_gateway import RawClient, connect_packet
from live_objects import LiveObjects
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.mqtt import packets
from iotmq.mqtt_front.deadlines import RECHECK_S

ROUNDS = 8


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[MqttSite]:
    made = await open_site(tmp_path, "one", "two", in_flight_max=4)
    yield made
    await made.close()


async def hold_messages(site: MqttSite, device: SessionDevice, topic_filter: str, *, is_clean: bool) -> None:
    """Connect, and have messages of QoS 1 and 2 in flight both ways."""
    await device.connect(site.fronts["one"], clean_session=is_clean)
    device.is_acknowledging = True
    await device.subscribe((topic_filter, 2), (topic_filter.replace("t", "u"), 1))
    device.is_acknowledging = False
    device.got.clear()
    site.bench.publish("t", b"1", b"2")
    site.bench.publish("u", b"3", b"4")
    await device.receives(4)
    assert device._client is not None
    for packet_id in (900, 901):
        device._client.send(packets.encode_publish("v", b"x", qos=2, packet_id=packet_id))
        await device._answer(packets.PUBREC, packet_id)


async def by_loss(site: MqttSite, device: SessionDevice) -> None:
    await device.drop()


async def by_disconnect(site: MqttSite, device: SessionDevice) -> None:
    await device.leave()
    await device.drop()


async def by_resuming(site: MqttSite, device: SessionDevice) -> None:
    """And by losing that connection before anything of the former one is done."""
    await device.drop()
    await device.connect(site.fronts["two"])
    await device.drop()


async def by_violation(site: MqttSite, device: SessionDevice) -> None:
    assert device._client is not None
    device._client.send(b"\xf0\0")
    await soon(lambda: not device.is_connected, "the server hangs up")
    await device.drop()


async def by_refusal(site: MqttSite, device: SessionDevice) -> None:
    """Beside one that is refused from the start."""
    refused = await RawClient.dial(site.fronts["one"].mqtt.port)
    refused.send(connect_packet("", clean_session=False))
    await refused.rest()
    refused.abort()
    await device.drop()


async def forget_silent(site: MqttSite) -> None:
    """Let the minute be over for which a device that has gone may wait to be looked at."""
    for front in site.fronts.values():
        parts = front.mqtt._parts
        assert parts is not None
        await soon(lambda parts=parts: not list(parts.sessions.devices()), "all devices have gone")  # type: ignore[misc]
        assert not front.mqtt._deadlines.late(front.mqtt._deadlines._next_s + 2 * RECHECK_S)


ENDS: list[Callable[[MqttSite, SessionDevice], Awaitable[None]]] = [
    by_loss,
    by_disconnect,
    by_resuming,
    by_violation,
    by_refusal,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_rough_ends_leave_nothing_behind(
    site: MqttSite, end: Callable[[MqttSite, SessionDevice], Awaitable[None]]
) -> None:
    async def round_of(number: int) -> None:
        device = SessionDevice("d")
        await hold_messages(site, device, "t", is_clean=False)
        await end(site, device)

    await round_of(0)
    await forget_silent(site)
    alive = LiveObjects()
    for number in range(1, ROUNDS):
        await round_of(number)
    await forget_silent(site)
    await alive.check(f"{ROUNDS} ends of kept sessions {end.__name__}")
