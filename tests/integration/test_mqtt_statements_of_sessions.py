"""Statements of MQTT 3.1.1 and 5 about sessions and messages that no other test shows, over two front ends.

docs/reference/mqtt-conformance.md names them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from mqtt5_device import Device5
from mqtt5_reading import read_publish5
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties

pytestmark = pytest.mark.uvloop


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[MqttSite]:
    site = await open_site(tmp_path / "one", "one", "two")
    yield site
    await site.close()


@pytest.mark.parametrize("is_retained", [False, True])
async def test_a_will_is_retained_when_it_says_so(site: MqttSite, is_retained: bool) -> None:
    """[MQTT-3.1.2-14], [MQTT-3.1.2-15], [MQTT-3.1.3-10]; 3.1.1 [MQTT-3.1.2-16], [MQTT-3.1.2-17]"""
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w", 1))
    names = (("b", "1"), ("a", "2"), ("b", "3"))
    will = Will("w", b"gone", 1, is_retained, Properties(user_properties=names))
    (await Device5.connect(site, will=will)).client.abort()
    message = await watcher.received()
    assert (message.payload, message.is_retained) == (b"gone", False)
    assert message.properties.user_properties == names
    later = await Device5.connect(site, "later")
    await later.subscribe(("w", 1))
    if is_retained:
        message = await later.received()
        assert (message.payload, message.is_retained) == (b"gone", True)
    await later.client.ping()


@pytest.mark.parametrize("front", ["one", "two"])
@pytest.mark.parametrize("expiry_s", [0, 600])
async def test_the_will_of_a_connection_that_was_taken_over(
    site: MqttSite, expiry_s: int, front: str
) -> None:
    """[MQTT-3.1.2-8], [MQTT-3.1.3-9]: it is published, but not when it waits and the session goes on."""
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w/+", 1))
    for name, delay_s in (("now", 0), ("later", 30)):
        will = Will(f"w/{name}", b"gone", 1, False, Properties(will_delay_s=delay_s))
        await Device5.connect(site, name, expiry_s=expiry_s, will=will)
        await Device5.connect(site, name, is_clean=False, expiry_s=expiry_s, front=front)
    site.bench.pass_time(60)
    publisher = await Device5.connect(site, "p")
    wanted = {"w/now"} if expiry_s else {"w/now", "w/later"}
    found = {(await watcher.received()).topic for _ in wanted}
    assert found == wanted
    await publisher.publish("w/last", b"")
    assert (await watcher.received()).topic == "w/last"


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_session_that_ended_with_its_connection_begins_anew_at_once(
    tmp_path: Path, is_remote: bool
) -> None:
    """[MQTT-3.1.2-6]"""
    site = await open_site(tmp_path, "one", "two", is_remote=is_remote)
    try:
        for number in range(60):
            client = await RawClient.dial(site.fronts[("one", "two")[number % 3 == 0]].mqtt.port)
            # Clean Start 0, no expiry; DISCONNECT right behind it.
            client.send(bytes.fromhex("101300044d5154540500003c00000670726f6f6630"))
            first, body = await client.packet()
            assert (first, body[:2]) == (packets.CONNACK << 4, b"\0\0"), number
            client.send(b"\xe0\0")
            client.close()
    finally:
        await site.close()


async def test_a_device_that_cannot_be_told_of_its_session_has_no_will(site: MqttSite) -> None:
    """[MQTT-3.1.2-8]: a will is one only when its CONNECT was accepted."""
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w", 1))
    for expiry_s in (0, 600):
        client = await RawClient.dial(site.fronts["one"].mqtt.port)
        told = Properties(packet_bytes_max=15, session_expiry_s=expiry_s)
        will = Will("w", b"never", 1, False)
        client.send(connect_packet("small", protocol_level=5, will=will, properties=told))
        assert await client.rest() == b"\x20\3\0\x95\0"
    publisher = await Device5.connect(site, "p")
    await publisher.publish("w", b"live")
    assert (await watcher.received()).payload == b"live"


async def test_a_device_that_is_taken_over_before_it_is_accepted_has_no_will(
    site: MqttSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MQTT-3.1.2-8]: neither its front end nor its broker publishes one."""
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w", 1))
    front = site.fronts["one"]
    for expiry_s in (0, 600):
        asked: list[tuple[Any, ...]] = []
        with monkeypatch.context() as patch:
            patch.setattr(front.sessions, "open_session", lambda *words, asked=asked: asked.append(words))
            client = await RawClient.dial(front.mqtt.port)
            will = Will("w", b"never", 1, False)
            told = Properties(session_expiry_s=expiry_s)
            client.send(connect_packet("gone", protocol_level=5, will=will, properties=told))
            await soon(lambda asked=asked: bool(asked), "the broker is asked")
            other = await RawClient.dial(front.mqtt.port)
            other.send(connect_packet("gone", protocol_level=5, properties=told))
            await client.rest()
        for words in asked:
            front.sessions.open_session(*words)
        other.send(b"\xe0\0")
        broker = site.bench.broker.sessions
        await soon(
            lambda broker=broker: broker.owners.front_end_of("gone") is None, "the session is given up"
        )
    publisher = await Device5.connect(site, "p")
    await publisher.publish("w", b"live")
    assert (await watcher.received()).payload == b"live"


async def test_a_session_lasts_as_long_as_its_connection_and_its_expiry_begins_then(site: MqttSite) -> None:
    """[MQTT-4.1.0-1], [MQTT-4.1.0-2]"""
    device = await Device5.connect(site, expiry_s=5)
    await device.subscribe(("a", 1))
    site.bench.pass_time(60)
    await device.client.ping()
    await device.end()
    back = await Device5.connect(site, is_clean=False, expiry_s=5, front="two")
    assert back.is_present
    await back.end()
    site.bench.pass_time(60)
    await soon(lambda: not site.bench.broker.sessions.count, "the session's end")
    assert not (await Device5.connect(site, is_clean=False, expiry_s=5)).is_present


async def test_a_message_that_was_sent_is_sent_again_however_old_it_is(site: MqttSite) -> None:
    """[MQTT-4.3.3-7], [MQTT-4.4.0-1]: no lifetime counts once PUBLISH went out; the packet id stays."""
    site.clock = site.bench.clock
    await site.start("three", "four")
    device = await Device5.connect(site, expiry_s=600, front="three")
    await device.subscribe(("a", 2))
    publisher = await Device5.connect(site, "p")
    await send_qos_2(publisher, "a", b"short-lived", message_expiry_s=5)
    sent = read_publish5(await device.client.packet())
    assert (sent.qos, sent.is_duplicate) == (2, False)
    device.client.abort()
    await soon(lambda: site.number("iotmq_mqtt_connections") == 1, "the end of the connection")
    site.bench.pass_time(60)
    back = await Device5.connect(site, is_clean=False, expiry_s=600, front="four")
    again = read_publish5(await back.client.packet())
    assert (again.packet_id, again.payload, again.is_duplicate) == (sent.packet_id, b"short-lived", True)
    back.client.send(packets.encode_acknowledgement(packets.PUBREC, sent.packet_id))
    released = (packets.PUBREL << 4 | 2, sent.packet_id.to_bytes(2, "big"))
    assert await back.client.packet() == released
    back.client.abort()
    await soon(lambda: site.number("iotmq_mqtt_connections") == 1, "the end of the connection")
    last = await Device5.connect(site, is_clean=False, expiry_s=600, front="three")
    assert await last.client.packet() == released, "PUBREL again, not PUBLISH [MQTT-4.3.3-6]"
    last.client.send(packets.encode_acknowledgement(packets.PUBCOMP, sent.packet_id))
    await last.client.ping()


async def test_a_message_of_qos_0_comes_at_most_once_to_a_kept_session(site: MqttSite) -> None:
    """Section 4.3.1, also when a message before it has to be sent again."""
    device = await Device5.connect(site, expiry_s=600)
    await device.subscribe(("a", 2))
    publisher = await Device5.connect(site, "p")
    await publisher.publish("a", b"1")
    publisher.client.send(packets.encode_publish("a", b"0", properties=NO_PROPERTIES))
    await publisher.publish("a", b"2")
    sent = [read_publish5(await device.client.packet()) for _ in range(3)]
    assert [message.payload for message in sent] == [b"1", b"0", b"2"]
    await device.client.ping()
    device.client.abort()
    await soon(lambda: site.number("iotmq_mqtt_connections") == 1, "the end of the connection")
    back = await Device5.connect(site, is_clean=False, expiry_s=600, front="two")
    for message in (sent[0], sent[2]):
        again = await back.received()
        assert (again.payload, again.packet_id) == (message.payload, message.packet_id)
        assert again.is_duplicate
    await back.client.ping()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_a_device_refuses_is_not_sent_again(site: MqttSite, qos: int) -> None:
    """[MQTT-4.4.0-2], [MQTT-4.3.3-4]"""
    device = await Device5.connect(site, expiry_s=600)
    await device.subscribe(("a", qos))
    publisher = await Device5.connect(site, "p")
    await send_qos_2(publisher, "a", b"unwanted")
    message = read_publish5(await device.client.packet())
    kind = packets.PUBACK if message.qos == 1 else packets.PUBREC
    device.client.send(packets.encode_acknowledgement(kind, message.packet_id, 0x97))
    await device.client.ping()
    await device.end(4)
    back = await Device5.connect(site, is_clean=False, expiry_s=600, front="two")
    assert back.is_present
    await back.client.ping()
    await publisher.publish("a", b"next")
    assert (await back.received()).payload == b"next"


async def test_copies_for_several_subscriptions_name_one_each(site: MqttSite) -> None:
    """[MQTT-3.3.4-2], [MQTT-3.3.4-3], [MQTT-3.3.4-5]: a kept session has a copy for each of its filters."""
    device, publisher = await Device5.connect(site, expiry_s=600), await Device5.connect(site, "p")
    await device.subscribe(("a/#", 0), identifier=1)
    await device.subscribe(("a/+", 2), identifier=2)
    await publisher.publish("a/b", b"x")
    copies = [await device.received(), await device.received()]
    assert {(copy.properties.subscription_identifiers, copy.qos) for copy in copies} == {((1,), 0), ((2,), 1)}


async def test_what_a_member_of_a_group_refuses_is_for_nobody_else(site: MqttSite) -> None:
    """[MQTT-4.8.2-6], [MQTT-4.8.2-3]"""
    one, two = await Device5.connect(site, "one"), await Device5.connect(site, "two", front="two")
    await one.subscribe(("$share/g/a", 2))
    await two.subscribe(("$share/g/a", 1))
    publisher = await Device5.connect(site, "p")
    for body in (b"0", b"1", b"2", b"3"):
        await send_qos_2(publisher, "a", body)
    refused, granted = set(), set()
    for device in (one, two):
        for _ in range(2):
            message = read_publish5(await device.client.packet())
            granted.add((device is one, message.qos))
            refused.add(message.payload)
            kind = packets.PUBACK if message.qos == 1 else packets.PUBREC
            device.client.send(packets.encode_acknowledgement(kind, message.packet_id, 0x83))
    assert refused == {b"0", b"1", b"2", b"3"}
    assert granted == {(True, 2), (False, 1)}
    await soon(lambda: site.bench.broker.sessions.shares.view("$share/g/a").behind == 0, "the group is done")
    await one.end()
    await two.client.ping()


async def test_a_message_for_another_member_is_no_duplicate_to_it(site: MqttSite) -> None:
    """[MQTT-3.3.1-3]: DUP is about one receiver; this one has never been sent it."""
    lost, kept = await Device5.connect(site, "lost"), await Device5.connect(site, "kept", front="two")
    for device in (lost, kept):
        await device.subscribe(("$share/g/a", 1))
    publisher = await Device5.connect(site, "p")
    for body in (b"0", b"1"):
        await publisher.publish("a", body)
    mine = await kept.received()
    unanswered = read_publish5(await lost.client.packet())
    assert not unanswered.is_duplicate
    lost.client.abort()
    moved = await kept.received()
    assert {mine.payload, moved.payload} == {b"0", b"1"}
    assert not moved.is_duplicate


async def test_the_duplicate_flag_of_a_publisher_is_its_own(site: MqttSite) -> None:
    """[MQTT-3.3.1-3]"""
    device, publisher = await Device5.connect(site), await Device5.connect(site, "p")
    await device.subscribe(("a", 1))
    packet = packets.encode_publish("a", b"x", qos=1, packet_id=1, dup=True, properties=NO_PROPERTIES)
    publisher.client.send(packet)
    assert not (await device.received()).is_duplicate


async def test_filters_are_left_by_their_exact_name_only(site: MqttSite) -> None:
    """[MQTT-3.10.4-1], [MQTT-3.10.4-2], [MQTT-3.10.4-6], [MQTT-3.11.3-1], [MQTT-4.7.3-4]"""
    device, publisher = await Device5.connect(site), await Device5.connect(site, "p")
    await device.subscribe(("a/b", 1), ("é", 1))
    near = ["a/B", "a/b/", "/a/b", "a/+", "#", "e\u0301"]
    device.client.send(packets.encode_unsubscribe(9, near, NO_PROPERTIES))
    assert await device.client.packet() == (packets.UNSUBACK << 4, b"\0\x09\0" + b"\x11" * len(near))
    await publisher.publish("a/b", b"1")
    assert (await device.received()).payload == b"1"
    device.client.send(packets.encode_unsubscribe(10, ["never", "a/b", "a/b"], NO_PROPERTIES))
    assert await device.client.packet() == (packets.UNSUBACK << 4, b"\0\x0a\0\x11\0\x11")
    await publisher.publish("a/b", b"2")
    await publisher.publish("é", b"3")
    assert (await device.received()).payload == b"3"


@pytest.mark.parametrize("clean", [True, False])
async def test_a_subscription_that_is_replaced_misses_nothing(site: MqttSite, clean: bool) -> None:
    """[MQTT-3.8.4-3], [MQTT-3.8.4-4]; MQTT 3.1.1, too"""
    device, sender = SessionDevice("d"), SessionDevice("p")
    await device.connect(site.fronts["one"], clean_session=clean)
    await sender.connect(site.fronts["two"], clean_session=True)
    await sender.publish("t", b"kept", is_retained=True)
    await device.subscribe(("t", 1))
    await device.receives(1)
    for number in range(30):
        await sender.publish("t", b"%d" % number)
        if number % 10 == 5:
            assert await device.subscribe(("t", number // 10)) == [number // 10]
    await soon(lambda: b"29" in {body for _, body in device.got}, "the last message")
    assert [body for _, body in device.got if body != b"kept"] == [b"%d" % number for number in range(30)]
    await soon(lambda: device.retained == 4, "what is retained, once for each SUBSCRIBE")


@pytest.mark.parametrize("expiry_s", [None, 600])
async def test_a_filter_that_stands_twice_in_a_subscribe_is_subscribed_by_the_last(
    site: MqttSite, expiry_s: int | None
) -> None:
    """[MQTT-3.8.4-5], [MQTT-3.10.4-6]: as if each had come in a packet of its own, but one answer."""
    device, publisher = await Device5.connect(site, expiry_s=expiry_s), await Device5.connect(site, "p")
    assert await device.subscribe(("a", 0), ("b", 2), ("a", 1), ("b", 0)) == [0, 2, 1, 0]
    await publisher.publish("a", b"1")
    await publisher.publish("b", b"2")
    assert [(await device.received()).qos for _ in range(2)] == [1, 0]
    device.client.send(packets.encode_unsubscribe(9, ["a", "a", "b"], NO_PROPERTIES))
    assert await device.client.packet() == (packets.UNSUBACK << 4, b"\0\x09\0\0\x11\0")
    await publisher.publish("a", b"3")
    await device.client.ping()


async def test_retained_messages_outlive_the_session_of_their_publisher(site: MqttSite) -> None:
    """MQTT 3.1.1 [MQTT-3.1.2-7], [MQTT-3.3.1-7], [MQTT-3.3.1-11], [MQTT-3.3.1-12]"""
    sender, device = SessionDevice("p"), SessionDevice("d")
    await sender.connect(site.fronts["one"], clean_session=True)
    await sender.publish("kept", b"1", is_retained=True)
    await sender.publish("kept", b"live")
    await sender.publish("replaced", b"1", is_retained=True)
    await sender.publish("replaced", b"2", 0, is_retained=True)
    await sender.publish("removed", b"1", is_retained=True)
    await sender.publish("removed", b"", is_retained=True)
    await sender.disconnect()
    await device.connect(site.fronts["two"], clean_session=True)
    await device.subscribe(("#", 1))
    assert sorted(await device.receives(2)) == [("kept", b"1"), ("replaced", b"2")]
    await device.subscribe(("never", 1))
    assert device.retained == len(device.got) == 2


async def send_qos_2(device: Device5, topic: str, payload: bytes, **fields: int) -> None:
    """The whole exchange of one message."""
    packet = packets.encode_publish(topic, payload, qos=2, packet_id=700, properties=Properties(**fields))
    device.client.send(packet)
    assert await device.client.packet() == (packets.PUBREC << 4, b"\2\xbc")
    device.client.send(packets.encode_acknowledgement(packets.PUBREL, 700))
    assert await device.client.packet() == (packets.PUBCOMP << 4, b"\2\xbc")
