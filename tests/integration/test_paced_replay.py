"""What had waited comes at its pace; what comes meanwhile on another filter is not held up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import WITHIN_S, soon
from fake_gateway import RawClient, connect_packet
from mqtt_site import MqttSite, SessionDevice

from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.connection.replay_pace import BURST_S

pytestmark = pytest.mark.uvloop

PER_S = 100
COUNT = 60


def least_s(count: int) -> float:
    """What so many take at the pace: a burst may go at the start, and the last when its turn comes."""
    return (count - 2 * BURST_S * PER_S - 2) / PER_S


@pytest.fixture(params=["in the broker's process", "in processes of their own"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    made = MqttSite(tmp_path, in_flight_max=16, is_remote=request.param == "in processes of their own")
    made.mqtt_settings["replay_messages_per_s"] = PER_S
    await made.begin()
    await made.start("one")
    yield made
    await made.close()


async def connected(site: MqttSite, client_id: str, *, clean_session: bool = True) -> SessionDevice:
    device = SessionDevice(client_id)
    await device.connect(site.fronts["one"], clean_session=clean_session)
    return device


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_backlog_comes_at_its_pace_and_live_messages_in_between(site: MqttSite, qos: int) -> None:
    sender, device = await connected(site, "sender"), await connected(site, "d", clean_session=False)
    await device.subscribe(("old/#", qos), ("live", qos))
    await device.disconnect()
    for body in bodies(COUNT):
        await sender.publish("old/a", body, 1)
    # A message a second: the backlog would take longer than anything here is waited for.
    await start_slow(site)
    await device.connect(site.fronts["slow"], clean_session=False)
    await device.receives(1)
    await sender.publish("live", b"now", 1)
    await sender.publish("old/b", b"behind them", 1)
    await soon(lambda: ("live", b"now") in device.got, "the live message")
    assert len(device.got) < COUNT, "it has overtaken"
    assert ("old/b", b"behind them") not in device.got
    await device.leave()
    left = COUNT + 2 - len(device.got)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await device.connect(site.fronts["one"], clean_session=False)
    await soon(lambda: ("old/b", b"behind them") in device.got, "the last message")
    assert loop.time() - begun_s >= least_s(left)
    # With QoS 1 what was on its way while the device left may come twice.
    old = list(dict.fromkeys(message for message in device.got if message[0] != "live"))
    assert old == [*(("old/a", body) for body in bodies(COUNT)), ("old/b", b"behind them")]
    await sender.disconnect()
    await device.disconnect()


async def start_slow(site: MqttSite) -> None:
    """Another front end, at a message a second."""
    site.mqtt_settings["replay_messages_per_s"] = 1
    await site.start("slow")


async def test_a_device_that_is_there_is_not_paced_when_it_falls_behind(site: MqttSite) -> None:
    sender, device = await connected(site, "sender"), SessionDevice("d")
    await start_slow(site)
    await device.connect(site.fronts["slow"])
    await device.subscribe(("a", 1))
    device.is_acknowledging = False
    for body in bodies(COUNT):
        await sender.publish("a", body, 1)
    await device.receives(16)
    device.is_acknowledging = True
    device.acknowledge()
    # At a second each they would take longer than they are waited for.
    assert WITHIN_S < COUNT - 16
    assert await device.receives(COUNT) == [("a", body) for body in bodies(COUNT)]
    assert site.number("iotmq_mqtt_durable_read_total") > 0
    await sender.disconnect()
    await device.disconnect()


async def test_what_is_done_before_its_queue_was_read_so_far_is_not_sent_again(site: MqttSite) -> None:
    sender = await connected(site, "sender")
    await start_slow(site)

    async def come(name: str) -> RawClient:
        client = await RawClient.dial(site.fronts[name].mqtt.port)
        client.send(connect_packet("d", clean_session=False))
        assert (await client.packet())[0] == packets.CONNACK << 4
        return client

    def published(packet: tuple[int, bytes], *, is_repeated: bool = False) -> tuple[bytes, int]:
        first, body = packet
        assert first == packets.PUBLISH << 4 | 4 | is_repeated << 3
        return body[5:], int.from_bytes(body[3:5], "big")

    client = await come("one")
    await client.subscribe(("a", 2))
    await sender.publish("a", b"1", 2)
    await sender.publish("a", b"2", 2)
    (_, first_id), (_, second_id) = [published(await client.packet()) for _ in range(2)]
    client.send(packets.encode_acknowledgement(packets.PUBREC, second_id))
    pubrel = (packets.PUBREL << 4 | 2, second_id.to_bytes(2, "big"))
    assert await client.packet() == pubrel
    client.send(packets.DISCONNECT_PACKET)
    await client.rest()
    # One message a second: it is done with the other one before its turn has come.
    client = await come("slow")
    assert await client.packet() == pubrel
    assert published(await client.packet(), is_repeated=True) == (b"1", first_id)
    client.send(packets.encode_acknowledgement(packets.PUBCOMP, second_id))
    await client.ping()
    client.send(packets.DISCONNECT_PACKET)
    await client.rest()
    client = await come("one")
    assert published(await client.packet(), is_repeated=True) == (b"1", first_id)
    await sender.publish("a", b"3", 2)
    assert published(await client.packet())[0] == b"3"
    client.close()
    await sender.disconnect()


async def test_retained_messages_of_a_wide_filter_come_at_their_pace(site: MqttSite) -> None:
    sender, device = await connected(site, "sender"), await connected(site, "d")
    for number in range(COUNT):
        await sender.publish(f"r/{number}", b"x", is_retained=True)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await device.subscribe(("r/#", 0))
    await device.receives(COUNT)
    assert loop.time() - begun_s >= least_s(COUNT)
    await sender.disconnect()
    await device.disconnect()
