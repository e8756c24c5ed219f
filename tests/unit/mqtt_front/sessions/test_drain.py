"""Where devices are sent: by a front end that is drained, is full, or stops."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from front_site import Site, running

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, read_properties
from iotmq.mqtt_front.listen import admission
from iotmq.mqtt_front.sessions.drain import Drain
from iotmq.ports.sessions import DrainOrder

ELSEWHERE = "other.example:1883"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running(server_reference=ELSEWHERE) as found:
        yield found


async def dial5(site: Site, client_id: str = "", properties: Properties = NO_PROPERTIES) -> RawClient:
    client = await site.dial()
    client.send(connect_packet(client_id, protocol_level=5, properties=properties))
    return client


async def connect5(site: Site, client_id: str = "", properties: Properties = NO_PROPERTIES) -> RawClient:
    client = await dial5(site, client_id, properties)
    first, body = await client.packet()
    assert (first >> 4, body[1]) == (packets.CONNACK, 0)
    return client


async def answer(client: RawClient) -> tuple[int, int, str | None]:
    """(packet type, reason code, server reference) of the next packet, the last one of its connection."""
    first, body = await client.packet()
    kind = first >> 4
    reader = FieldReader(body, "CONNACK or DISCONNECT")
    if kind == packets.CONNACK:
        reader.u8()
    code = reader.u8()
    properties = read_properties(reader, kind)
    assert await client.rest() == b""
    return kind, code, properties.server_reference


def drain_of(site: Site) -> Drain:
    return site.front.parts.drain


def order(per_second: int = 1_000, server_reference: str = "", *, has_moved: bool = False) -> DrainOrder:
    return DrainOrder(
        is_draining=True, per_second=per_second, server_reference=server_reference, has_moved=has_moved
    )


END = DrainOrder(is_draining=False)


async def test_connected_devices_and_those_that_come_are_sent_elsewhere(site: Site) -> None:
    five, three = await connect5(site, "five"), await site.connect("three")
    assert site.front.not_ready_reason is None
    drain_of(site).ordered(order())
    assert site.front.not_ready_reason == "the front end is being drained"
    assert await answer(five) == (packets.DISCONNECT, 0x9C, ELSEWHERE)
    assert await three.rest() == b"", "MQTT 3.1.1 has no DISCONNECT from the server"
    assert await answer(await dial5(site, "six")) == (packets.CONNACK, 0x9C, ELSEWHERE)
    old = await site.dial()
    old.send(connect_packet("four"))
    assert await old.packet() == (packets.CONNACK << 4, b"\0\3")
    assert site.number("iotmq_mqtt_draining") == 1
    assert site.number("iotmq_mqtt_drained_total") == 2
    assert site.number("iotmq_mqtt_drain_refused_total") == 2
    await site.gone("use_another_server", 4)


async def test_it_can_be_undone(site: Site) -> None:
    drain_of(site).ordered(order())
    drain_of(site).ordered(order())
    assert (await answer(await dial5(site)))[1] == 0x9C
    drain_of(site).ordered(END)
    drain_of(site).ordered(END)
    assert site.front.not_ready_reason is None
    client = await connect5(site)
    drain_of(site).ordered(order())
    assert (await answer(client))[1] == 0x9C, "and done again"


async def test_the_order_says_where_and_whether_for_good(site: Site) -> None:
    client = await connect5(site)
    drain_of(site).ordered(order(server_reference="third:1", has_moved=True))
    assert await answer(client) == (packets.DISCONNECT, 0x9D, "third:1")
    drain_of(site).ordered(order())
    assert await answer(await dial5(site)) == (packets.CONNACK, 0x9C, ELSEWHERE)


async def test_without_a_reference_devices_are_told_only_to_go() -> None:
    async with running() as site:
        client = await connect5(site)
        drain_of(site).ordered(order())
        assert await answer(client) == (packets.DISCONNECT, 0x9C, None)
        assert await answer(await dial5(site)) == (packets.CONNACK, 0x9C, None)


async def test_devices_go_some_at_a_time(site: Site) -> None:
    clients = [await connect5(site, f"d{number}") for number in range(12)]
    drain = drain_of(site)
    drain.ordered(order(20))
    drain.stop()
    assert drain.drained_total == 2
    for wanted in (4, 6, 8):
        drain._step()
        drain.stop()
        assert drain.drained_total == wanted
    drain.ordered(order(5))
    for _ in range(2):
        drain._step()
        drain.stop()
    assert drain.drained_total == 9, "another pace, from now on"
    drain.ordered(END)
    assert sum(device.close_reason is None for device in drain._devices()) == 3
    for client in clients:
        client.close()


async def test_a_device_that_is_just_connecting_is_refused_and_its_will_is_none(site: Site) -> None:
    silent = await site.dial()
    drain_of(site).ordered(order())
    silent.send(
        connect_packet(
            "late", protocol_level=5, properties=NO_PROPERTIES, will=packets.Will("w", b"gone", 0, False)
        )
    )
    assert await answer(silent) == (packets.CONNACK, 0x9C, ELSEWHERE)
    await site.gone("use_another_server")
    assert not site.gateway.handed


async def test_the_reference_is_left_out_for_a_device_that_takes_small_packets_only(site: Site) -> None:
    client = await connect5(site, "a", Properties(packet_bytes_max=20))
    drain_of(site).ordered(order())
    assert await answer(client) == (packets.DISCONNECT, 0x9C, None)


@pytest.mark.parametrize("reference", ["", ELSEWHERE])
async def test_a_full_front_end_says_so_and_names_another_one(reference: str) -> None:
    async with running(connections_max=2, server_reference=reference) as site:
        one, two = await connect5(site, "one"), await connect5(site, "two")
        code = 0x9C if reference else 0x89
        assert await answer(await dial5(site, "three")) == (packets.CONNACK, code, reference or None)
        old = await site.dial()
        old.send(connect_packet("four"))
        assert await old.packet() == (packets.CONNACK << 4, b"\0\3")
        assert site.number("iotmq_mqtt_refused_total") == 2
        one.send(packets.DISCONNECT_PACKET)
        await soon(lambda: site.number("iotmq_mqtt_connections") == 1, "there is room")
        await connect5(site, "five")
        two.close()


async def test_only_so_many_connections_wait_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ANSWERED_PAST_MAX", 2)
    async with running(connections_max=1) as site:
        first = await site.connect("first")
        waiting = [await site.dial() for _ in range(2)]
        await soon(lambda: site.number("iotmq_mqtt_refused_total") == 2, "they wait for their CONNECT")
        past = await site.dial()
        assert await past.rest() == b""
        waiting[0].abort()
        await soon(lambda: site.number("iotmq_mqtt_connections") == 2, "one has gone")
        assert (await answer(await dial5(site)))[1] == 0x89
        await first.ping()


@pytest.mark.parametrize("reference", ["", ELSEWHERE])
async def test_a_stop_sends_devices_elsewhere_when_there_is_such_a_place(reference: str) -> None:
    async with running(server_reference=reference) as site:
        client = await connect5(site)
        await site.stop()
        code = 0x9C if reference else 0x8B
        assert await answer(client) == (packets.DISCONNECT, code, reference or None)


async def test_a_stop_while_draining_tells_what_the_drain_does(site: Site) -> None:
    client = await connect5(site)
    drain = drain_of(site)
    drain.ordered(order(1, "third:1"))
    await site.stop()
    assert await answer(client) == (packets.DISCONNECT, 0x9C, "third:1")
    assert drain._timer is None
