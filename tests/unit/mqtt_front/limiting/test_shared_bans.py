"""Bans at real brokers: every front end has them, and so it has after a start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon, until
from fake_gateway import RawClient, connect_packet
from mqtt_site import MqttSite, open_site

from iotmq import limits
from iotmq.client.admin.devices.bans import BanAdmin
from iotmq.client.sending.producer import Producer, ProducerSettings
from iotmq.client.transport.client import ClientSettings, ClientTransport
from iotmq.client.transport.message import Message
from iotmq.message.properties import MQTT_RETAIN, MQTT_TOPIC
from iotmq.mqtt.bans import Ban, ban_topic
from iotmq.mqtt.codec import packets
from iotmq.mqtt.operator_state import OPERATOR_TOPIC
from iotmq.mqtt_front.limiting import shared_bans


@pytest.fixture(params=[False, True], ids=["local", "remote"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    names = ("one", "two") if request.param else ("one",)
    found = await open_site(tmp_path, *names, is_remote=request.param)
    try:
        yield found
    finally:
        await found.close()


def known(site: MqttSite, name: str) -> list[tuple[str, str]]:
    return sorted((ban.kind, ban.value) for ban in site.fronts[name].mqtt.parts.guard.bans)


async def told_everywhere(site: MqttSite, *bans: tuple[str, str]) -> None:
    await soon(lambda: all(known(site, name) == sorted(bans) for name in site.fronts), f"{bans} everywhere")


async def test_a_ban_of_one_front_end_is_that_of_all_and_survives_a_restart(site: MqttSite) -> None:
    first = site.fronts["one"].mqtt.parts.guard
    now_ms = first._clock.now_ms()
    first.shared_bans.put(Ban(kind="client", value="c", until_ms=now_ms + 3_600_000, made_ms=now_ms))
    first.shared_bans.put(Ban(kind="network", value="192.0.2.0/24", made_ms=now_ms))
    await told_everywhere(site, ("client", "c"), ("network", "192.0.2.0/24"))
    await site.restart_broker()
    await told_everywhere(site, ("client", "c"), ("network", "192.0.2.0/24"))
    for front in site.fronts.values():
        client = await RawClient.dial(front.mqtt.port)
        client.send(connect_packet("c"))
        assert await client.packet() == (packets.CONNACK << 4, b"\x00\x05")


@pytest.fixture
async def remote(tmp_path: Path) -> AsyncIterator[MqttSite]:
    found = await open_site(tmp_path, "one", "two", is_remote=True)
    try:
        yield found
    finally:
        await found.close()


async def test_an_operator_bans_lists_and_ends(remote: MqttSite) -> None:
    assert remote.registry is not None
    registries = (f"127.0.0.1:{remote.registry.port}",)
    now_ms = remote.fronts["one"].mqtt.parts.guard._clock.now_ms()
    device = await RawClient.connect(remote.fronts["two"].mqtt.port, "c")
    async with ClientTransport(ClientSettings(registries=registries)) as client:
        admin = BanAdmin(client)
        assert await admin.all(now_ms) == []
        ban = Ban(kind="client", value="c", reason="it was rude", by="operator", made_ms=now_ms)
        assert len(await admin.put(ban, now_ms)) == 1
        await told_everywhere(remote, ("client", "c"))
        assert await device.rest() == b""
        assert await admin.all(now_ms) == [ban]
        await admin.remove("client", "c")
        await told_everywhere(remote)
        assert await admin.all(now_ms) == []


async def test_a_ban_past_what_may_be_is_nowhere(site: MqttSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are not told of it again and again, either."""
    monkeypatch.setattr(limits, "MQTT_BANS_MAX", 2)
    guard = site.fronts["one"].mqtt.parts.guard
    for number in range(4):
        guard.shared_bans.put(Ban(kind="client", value=f"c{number}", made_ms=guard._clock.now_ms()))
    await told_everywhere(site, ("client", "c0"), ("client", "c1"))
    assert guard.bans.refused_total == 2
    await guard.shared_bans._read_all()
    assert guard.bans.refused_total == 2, "the brokers do not have them"


async def test_what_comes_from_elsewhere_is_no_ban(remote: MqttSite) -> None:
    assert remote.registry is not None
    registries = (f"127.0.0.1:{remote.registry.port}",)
    guard = remote.fronts["one"].mqtt.parts.guard
    async with ClientTransport(ClientSettings(registries=registries)) as client:
        producer = Producer(client, "g", ProducerSettings())
        await producer.start()
        ban = Ban(kind="client", value="c")
        properties = {MQTT_TOPIC: ban.topic, MQTT_RETAIN: "1"}
        await producer.send(Message("T", ban.body, properties=properties))
        await until(lambda: guard.bans.malformed_total == 1)
        await producer.send(Message(OPERATOR_TOPIC, b"nonsense", properties=properties))
        await until(lambda: guard.bans.malformed_total == 2)
        await producer.stop()
        assert await BanAdmin(client).all(0) == []
    assert len(guard.bans) == 0
    # Nor is the first one retained, in the place of a real one.
    await guard.shared_bans._read_all()
    assert guard.bans.malformed_total == 3


async def test_devices_have_nothing_to_do_with_bans(remote: MqttSite) -> None:
    port = remote.fronts["one"].mqtt.port
    for wanted in ("$iotmq/#", "$iotmq/bans/+/+", "$iotmq", "$share/g/$iotmq/#", "$exclusive/$iotmq/bans/#"):
        client = await RawClient.connect(port, "")
        client.send(packets.encode_subscribe(1, [(wanted, 1)]))
        assert await client.packet() == (packets.SUBACK << 4, b"\0\1\x80")
    client = await RawClient.connect(port, "")
    client.send(packets.encode_publish(ban_topic("client", "c"), b"x", qos=1, packet_id=1))
    assert await client.rest() == b""


async def test_what_was_missed_is_found_by_looking(remote: MqttSite, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (front.mqtt.parts.guard for front in remote.fronts.values())
    now_ms = first._clock.now_ms()
    first.shared_bans.put(Ban(kind="client", value="c", made_ms=now_ms))
    await told_everywhere(remote, ("client", "c"))
    # As if it had heard of neither the one nor the end of another.
    second.bans.remove("client", "c")
    second.bans.put(Ban(kind="client", value="old", made_ms=1))
    second.bans.put(Ban(kind="client", value="new", made_ms=now_ms))
    await second.shared_bans._read_all()
    # What was made a moment ago may be on its way still.
    assert known(remote, "two") == [("client", "c"), ("client", "new")]
    monkeypatch.setattr(shared_bans, "READ_INTERVAL_S", -1)
    await second.shared_bans._read_all()
    assert known(remote, "two") == [("client", "c")]
