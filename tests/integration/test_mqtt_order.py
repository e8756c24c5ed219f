"""What one connection sends one behind the other is carried out in that order, wherever the broker is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_gateway import RawClient, connect_packet
from mqtt5_device import Device5
from mqtt5_reading import read_publish5
from mqtt_site import MqttSite, open_site

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties

pytestmark = pytest.mark.uvloop

RETAIN_AS_PUBLISHED, NEVER = 0x08, 0x20
KEPT_OR_NOT = pytest.mark.parametrize("expiry_s", [None, 600])


@pytest.fixture(params=[False, True], ids=["one process", "own processes"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    site = await open_site(tmp_path, "one", is_remote=request.param)
    yield site
    await site.close()


def publish(topic: str, payload: bytes, *, qos: int, packet_id: int = 9, retain: bool = False) -> bytes:
    return packets.encode_publish(
        topic, payload, qos=qos, packet_id=packet_id, retain=retain, properties=NO_PROPERTIES
    )


def subscribe(packet_id: int, topic_filter: str, options: int) -> bytes:
    return packets.encode_subscribe(packet_id, [(topic_filter, options)], NO_PROPERTIES)


async def some(device: Device5, count: int) -> list[tuple[int, bytes]]:
    """So many packets, and those that come before the answer to a ping behind them."""
    found = [await device.client.packet() for _ in range(count)]
    device.client.send(packets.PINGREQ_PACKET)
    while (packet := await device.client.packet())[0] != packets.PINGRESP << 4:
        found.append(packet)
    return found


def messages(found: list[tuple[int, bytes]]) -> list[tuple[bytes, bool]]:
    """Payloads and RETAIN flags."""
    read = [read_publish5(packet) for packet in found if packet[0] >> 4 == packets.PUBLISH]
    return [(message.payload, message.is_retained) for message in read]


def answers(found: list[tuple[int, bytes]]) -> list[int]:
    return [first >> 4 for first, _ in found if first >> 4 != packets.PUBLISH]


@pytest.mark.parametrize("qos", [0, 1])
@KEPT_OR_NOT
async def test_what_was_published_before_a_subscribe_comes_once_and_as_retained(
    site: MqttSite, qos: int, expiry_s: int | None
) -> None:
    other = await Device5.connect(site, "other")
    await other.subscribe(("a/#", 0))
    device = await Device5.connect(site, expiry_s=expiry_s)
    for number in range(10):
        name = f"a/{number}"
        device.client.send(publish(name, b"%d" % number, qos=qos, retain=True) + subscribe(3, name, 0))
        found = await some(device, 2 + qos)
        assert messages(found) == [(b"%d" % number, True)]
        assert packets.SUBACK in answers(found)


@KEPT_OR_NOT
async def test_what_was_published_before_a_subscribe_does_not_come_without_retained_ones(
    site: MqttSite, expiry_s: int | None
) -> None:
    other = await Device5.connect(site, "other")
    await other.subscribe(("a/#", 0))
    device = await Device5.connect(site, expiry_s=expiry_s)
    for number in range(10):
        name = f"a/{number}"
        device.client.send(publish(name, b"before", qos=1, retain=True) + subscribe(3, name, NEVER))
        device.client.send(publish(name, b"behind", qos=0))
        assert messages(await some(device, 3)) == [(b"behind", False)]


@KEPT_OR_NOT
async def test_what_is_published_behind_a_subscribe_comes(site: MqttSite, expiry_s: int | None) -> None:
    device = await Device5.connect(site, expiry_s=expiry_s)
    for number in range(20):
        name = f"b/{number}"
        device.client.send(subscribe(3, name, 0) + publish(name, b"%d" % number, qos=number % 2))
        assert messages(await some(device, 2 + number % 2)) == [(b"%d" % number, False)]


@KEPT_OR_NOT
async def test_an_unsubscribe_right_behind_a_subscribe_undoes_it(
    site: MqttSite, expiry_s: int | None
) -> None:
    device = await Device5.connect(site, expiry_s=expiry_s)
    for number in range(10):
        name = f"c/{number}"
        device.client.send(
            subscribe(3, name, 1)
            + packets.encode_unsubscribe(4, [name], NO_PROPERTIES)
            + publish(name, b"nobody", qos=1)
        )
        found = await some(device, 3)
        assert answers(found) == [packets.SUBACK, packets.UNSUBACK, packets.PUBACK]
        assert messages(found) == []
    assert site.number("iotmq_mqtt_subscriptions") == 0


@KEPT_OR_NOT
async def test_many_subscribes_at_once_get_no_more_than_a_session_may_have(
    tmp_path: Path, expiry_s: int | None
) -> None:
    site = await open_site(tmp_path, "one", is_remote=True, mqtt_settings={"subscriptions_max": 5})
    device = await Device5.connect(site, expiry_s=expiry_s)
    device.client.send(b"".join(subscribe(number, f"d/{number}", 1) for number in range(1, 9)))
    codes = [(await device.client.packet())[1][3] for _ in range(8)]
    assert codes == [1] * 5 + [0x97] * 3
    assert site.number("iotmq_mqtt_subscriptions") == 5
    await site.close()


async def test_who_asks_for_too_deep_a_filter_is_told_the_limit(site: MqttSite) -> None:
    device = await Device5.connect(site)
    too_deep = "+/" * limits.MQTT_WILDCARD_LEVELS_MAX + "#"
    device.client.send(packets.encode_subscribe(3, [(too_deep, 1), ("a", 1)], NO_PROPERTIES))
    first, body = await device.client.packet()
    assert first == packets.SUBACK << 4
    assert b"a filter with wildcards has at most 32 levels" in body
    assert body[-2:] == b"\x97\1"


async def test_a_subscribe_and_a_goodbye_behind_it_are_both_carried_out(site: MqttSite) -> None:
    device = await Device5.connect(site, expiry_s=600)
    device.client.send(
        publish("x", b"", qos=0) + subscribe(3, "e", 1) + packets.encode_disconnect(0, NO_PROPERTIES)
    )
    assert (await device.client.rest())[0] == packets.SUBACK << 4
    other = await Device5.connect(site, "other")
    await other.publish("e", b"kept")
    back = await Device5.connect(site, is_clean=False, expiry_s=600)
    assert back.is_present
    assert (await back.received()).payload == b"kept"


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("front", ["one", "two"])
@pytest.mark.parametrize("is_released", [False, True])
async def test_what_is_sent_right_behind_a_connect_meets_the_packet_ids_of_its_session(
    tmp_path: Path, is_remote: bool, front: str, is_released: bool
) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=is_remote)
    listener = await Device5.connect(site, "listener")
    await listener.subscribe(("q", 1))
    device = await Device5.connect(site, expiry_s=600)
    device.client.send(publish("q", b"first", qos=2, packet_id=7))
    assert await device.client.packet() == (packets.PUBREC << 4, b"\0\x07")
    device.client.abort()
    client = await RawClient.dial(site.fronts[front].mqtt.port)
    repeated = packets.encode_publish("q", b"first", qos=2, packet_id=7, dup=True, properties=NO_PROPERTIES)
    released, other = (packets.encode_acknowledgement(packets.PUBREL, number) for number in (7, 8))
    client.send(
        connect_packet(
            "d", protocol_level=5, clean_session=False, properties=Properties(session_expiry_s=600)
        ),
        released if is_released else repeated,
        publish("q", b"second", qos=2, packet_id=8),
    )
    _, connack = await client.packet()
    assert connack[:2] == b"\x01\0"
    answer = packets.PUBCOMP if is_released else packets.PUBREC
    answers = {await client.packet() for _ in range(2)}
    assert answers == {(answer << 4, b"\0\x07"), (packets.PUBREC << 4, b"\0\x08")}
    client.send(*([] if is_released else [released]), other, publish("q", b"third", qos=1, packet_id=7))
    answers = {await client.packet() for _ in range(2 if is_released else 3)}
    assert (packets.PUBCOMP << 4, b"\0\x08") in answers
    assert (packets.PUBACK << 4, b"\0\x07") in answers
    payloads = [(await listener.received()).payload for _ in range(3)]
    assert payloads == [b"first", b"second", b"third"]
    await site.close()
