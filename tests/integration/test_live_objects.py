"""Connections that end in any way leave nothing behind in the front end and the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from live_objects import forget_silent, leaving_nothing_behind
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.broker.sessions.sessions import OWNER_GRACE_S
from iotmq.mqtt.codec import packets

pytestmark = pytest.mark.uvloop

ROUNDS = 8
# Of connections that wait a while before they are made again.
SLOW_ROUNDS = 3


@pytest.fixture
async def site(tmp_path: Path, is_remote: bool) -> AsyncIterator[MqttSite]:
    made = await open_site(tmp_path, "one", "two", in_flight_max=4, is_remote=is_remote)
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
    site.check_sessions()
    for packet_id in (900, 901):
        device.client.send(packets.encode_publish("v", b"x", qos=2, packet_id=packet_id))
        await device.answer(packets.PUBREC, packet_id)


async def by_loss(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    await device.drop()


async def by_disconnect(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    await device.leave()
    await device.drop()


async def by_takeover(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    """No time passes, so the broker may not keep until a time what nobody waits for any more."""
    await device.take_over(site.fronts["two"], clean_session=is_clean)
    await device.drop()


async def by_takeover_here(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    await device.take_over(site.fronts["one"], clean_session=is_clean)
    await device.drop()


async def by_hurry(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    """Taken over by connections that do not wait for their CONNACK."""
    for name in ("two", "one"):
        hasty = await RawClient.dial(site.fronts[name].mqtt.port)
        hasty.send(connect_packet(device.client_id, clean_session=is_clean))
        hasty.abort()
    await device.drop()


async def by_resuming(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    """And by losing that connection before anything of the former one is done."""
    await device.drop()
    await device.connect(site.fronts["two"], clean_session=is_clean)
    await device.drop()


async def by_violation(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    device.client.send(b"\xf0\0")
    await soon(lambda: not device.is_connected, "the server hangs up")
    await device.drop()


async def by_refusal(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    """Beside one that is refused from the start."""
    refused = await RawClient.dial(site.fronts["one"].mqtt.port)
    refused.send(connect_packet("", clean_session=False))
    await refused.rest()
    refused.abort()
    await device.drop()


async def by_kill(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    await site.kill_front("one")
    await device.drop()
    site.bench.pass_time(OWNER_GRACE_S)


async def by_lost_link(site: MqttSite, device: SessionDevice, *, is_clean: bool) -> None:
    """The front end loses its connections to the broker, and makes them again."""
    await site.cut_broker_links()
    await device.drop()
    site.bench.pass_time(OWNER_GRACE_S)


End = Callable[..., Awaitable[None]]
ENDS: list[End] = [
    by_loss,
    by_disconnect,
    by_takeover,
    by_takeover_here,
    by_hurry,
    by_resuming,
    by_violation,
    by_refusal,
    by_kill,
]
CASES = [
    *(pytest.param(False, end, id=f"{end.__name__}-in the broker's process") for end in ENDS),
    *(pytest.param(True, end, id=f"{end.__name__}-remote broker") for end in [*ENDS, by_lost_link]),
]


async def all_forgotten(site: MqttSite) -> None:
    for front in site.fronts.values():
        await forget_silent(front.mqtt)


@pytest.mark.parametrize("kind", ["kept", "clean", "shared"])
@pytest.mark.parametrize(("is_remote", "end"), CASES)
async def test_rough_ends_leave_nothing_behind(site: MqttSite, kind: str, end: End) -> None:
    async def round_of(number: int) -> None:
        device = SessionDevice("d")
        topic_filter = f"$share/g{number}/t" if kind == "shared" else "t"
        await hold_messages(site, device, topic_filter, is_clean=kind != "kept")
        await end(site, device, is_clean=kind != "kept")
        site.bench.broker.sessions.check_invariants()

    rounds = SLOW_ROUNDS if end is by_lost_link else ROUNDS
    await round_of(0)
    await all_forgotten(site)
    # What dies with its process is looked at here in a process that goes on.
    async with leaving_nothing_behind(
        f"{rounds} ends of {kind} sessions {end.__name__}", takes_cycles=end is by_kill
    ):
        for number in range(1, rounds):
            await round_of(number)
        await all_forgotten(site)
