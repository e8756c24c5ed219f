"""Devices that use up what there is a number of: aliases, packet ids, levels of topics, retained messages.

What each can take is bounded and counted, and nobody else notices.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from fake_gateway import RawClient
from front_site import Site, running
from mqtt5_device import Device5
from mqtt5_reading import read_all5
from mqtt_core import new_connection
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties

pytestmark = pytest.mark.uvloop

# Levels of the longest topic the protocol has room for.
LEVELS = "/" * 65_535


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running() as site:
        site.gateway.automatic = 0
        yield site


@pytest.fixture
async def witness(site: Site) -> AsyncIterator[None]:
    """A device that is served before and after."""
    client = await site.connect("witness")
    client.send(packets.encode_publish("w", b"1", qos=1, packet_id=1))
    assert await client.puback() == 1
    yield
    client.send(packets.encode_publish("w", b"2", qos=1, packet_id=2))
    assert await client.puback() == 2
    client.abort()


async def dial5(site: Site, **fields: int) -> RawClient:
    client = await site.dial()
    connect = Connect("d", True, 0, None, None, None, 5, Properties(**fields))
    client.send(packets.encode_connect(connect))
    first, body = await client.packet()
    assert (first, body[:2]) == (packets.CONNACK << 4, b"\0\0")
    return client


async def test_all_aliases_there_are_with_the_longest_topics_and_one_more(site: Site, witness: None) -> None:
    client = await dial5(site)
    topics = [
        str(alias) + "x" * (limits.MQTT_TOPIC_BYTES_MAX - len(str(alias)))
        for alias in range(1, limits.MQTT_TOPIC_ALIASES_MAX + 1)
    ]
    for _ in range(20):
        for alias, topic in enumerate(topics, 1):
            client.send(packets.encode_publish(topic, b"", properties=Properties(topic_alias=alias)))
    await client.ping()
    alias = limits.MQTT_TOPIC_ALIASES_MAX + 1
    client.send(packets.encode_publish("one more", b"", properties=Properties(topic_alias=alias)))
    told = await client.rest()
    assert (told[0], told[2]) == (packets.DISCONNECT << 4, 0x94)
    await site.gone("topic_alias_invalid")


def test_a_device_that_takes_every_alias_is_given_no_more_than_our_maximum() -> None:
    connection, _ = new_connection()
    told = Properties(topic_alias_max=65_535)
    connection.receive_data(packets.encode_connect(Connect("d", True, 0, None, None, None, 5, told)), 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    used: set[int] = set()
    for number in range(2_000):
        for _ in range(2):
            assert connection.deliver_message(b"a/topic/that/is/long/%d" % number, b"", 0)
        used |= {one.properties.topic_alias or 0 for one in read_all5(connection.data_to_send())}
    assert used - {0} <= set(range(1, limits.MQTT_TOPIC_ALIASES_MAX + 1))


@pytest.mark.slow
async def test_every_packet_id_between_publish_and_pubrel(site: Site, witness: None) -> None:
    """Before MQTT 5 a client is told no maximum: there are 65,535 packet ids, and each means one message."""
    client = await site.connect("d")
    for packet_id in range(1, 65_536):
        client.send(packets.encode_publish("t", b"", qos=2, packet_id=packet_id))
    for packet_id in range(1, 65_536):
        assert await client.packet() == (packets.PUBREC << 4, packet_id.to_bytes(2, "big"))
    client.send(packets.encode_publish("t", b"again", qos=2, packet_id=7, dup=True))
    assert await client.packet() == (packets.PUBREC << 4, b"\0\7")
    assert sum(handed.count for handed in site.gateway.handed if handed.topic == "mqtt") == 65_535 + 1
    client.abort()
    await site.gone("connection_lost")


async def test_more_without_an_answer_than_the_device_was_told(witness: None, site: Site) -> None:
    site.gateway.automatic = None
    client = await dial5(site)
    for packet_id in range(1, limits.MQTT_RECEIVE_MAX + 2):
        client.send(packets.encode_publish("t", b"", qos=1, packet_id=packet_id, properties=NO_PROPERTIES))
    told = await client.rest()
    assert (told[0], told[2]) == (packets.DISCONNECT << 4, 0x93)
    await site.gone("receive_maximum_exceeded")
    site.gateway.automatic = 0
    for handed in site.gateway.handed[1:]:
        handed.answer(0, "")


def test_every_packet_id_towards_a_device_that_answers_nothing() -> None:
    connection, _ = new_connection(in_flight_max=65_535)
    connection.receive_data(packets.encode_connect(Connect("d", True, 0, None, None, None)), 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    for _ in range(65_540):
        assert connection.deliver_message(b"t", b"", 1)
        if connection.output_bytes > 100_000:
            connection.data_to_send()
    assert connection.in_flight_count == 65_535
    assert connection.queued_bytes > 0
    connection.data_to_send()
    connection.receive_data(packets.encode_acknowledgement(packets.PUBACK, 40_000), 0.0)
    assert connection.data_to_send()[5:7] == (40_000).to_bytes(2, "big"), "the one that is free again"


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("place", ["publish", "subscribe", "unsubscribe", "will"])
async def test_a_topic_of_65_535_levels(site: Site, witness: None, place: str, level: int) -> None:
    none = NO_PROPERTIES if level == 5 else None
    client = await site.dial()
    will = Will(LEVELS, b"", 0, False) if place == "will" else None
    client.send(packets.encode_connect(Connect("d", True, 0, will, None, None, level)))
    if place == "publish":
        client.send(packets.encode_publish(LEVELS, b"", properties=none))
    elif place == "subscribe":
        client.send(packets.encode_subscribe(1, [(LEVELS, 0)], none))
    elif place == "unsubscribe":
        client.send(packets.encode_unsubscribe(1, [LEVELS], none))
    told = await client.rest()
    if level == 5:
        # In the CONNACK, or in the DISCONNECT behind it.
        assert b"\x90" in told
    elif place != "will":
        assert told == b"\x20\2\0\0"
    await site.gone("topic_name_invalid")


async def test_topics_at_the_limits_of_levels_and_length_are_served(site: Site, witness: None) -> None:
    client = await site.connect("d")
    deep = "/".join("x" for _ in range(limits.MQTT_TOPIC_LEVELS_MAX))
    long = "x" * limits.MQTT_TOPIC_BYTES_MAX
    deepest = "/".join(["+"] * (limits.MQTT_WILDCARD_LEVELS_MAX - 1) + ["#"])
    filters = [(deep, 1), (long, 1), (deepest, 1)]
    assert await client.subscribe(*filters) == [1, 1, 1]
    for packet_id, topic in enumerate((deep, long), 1):
        client.send(packets.encode_publish(topic, b"", qos=1, packet_id=packet_id))
        assert await client.puback() == packet_id
    client.abort()


class Retained:
    """A front end with a broker and many retained messages."""

    def __init__(self, site: MqttSite) -> None:
        self.site = site
        self.count = 300

    async def fill(self) -> None:
        sender = SessionDevice("sender")
        await sender.connect(self.site.fronts["one"], clean_session=True)
        for number in range(self.count):
            await sender.publish(f"r/{number}", bytes(200), is_retained=True)
        await sender.drop()


@pytest.fixture
async def retained(tmp_path: Path) -> AsyncIterator[Retained]:
    site = await open_site(tmp_path / "one", "one")
    retained = Retained(site)
    await retained.fill()
    yield retained
    await site.close()


@pytest.mark.parametrize("expiry_s", [None, 600])
async def test_who_asks_for_all_that_is_retained_again_and_again_gets_it_as_it_reads(
    retained: Retained, expiry_s: int | None
) -> None:
    """A SUBSCRIBE is worth thousands of times its size; what waits for its device is a page and a filter."""
    site, times = retained.site, 2_000
    greedy = await Device5.connect(
        site, "greedy", properties=Properties(session_expiry_s=expiry_s, receive_max=3)
    )
    subscribe = b"".join(packets.encode_subscribe(1, [("#", 1)], NO_PROPERTIES) for _ in range(times))
    greedy.client.send(subscribe)
    answered = sent = 0
    while answered < times:
        first, _ = await greedy.client.packet()
        answered += first >> 4 == packets.SUBACK
        sent += first >> 4 == packets.PUBLISH
    # It acknowledges nothing, so no more than its window comes, however often it asks.
    await greedy.client.ping()
    assert sent == 3
    parts = site.fronts["one"].mqtt.parts
    egress = parts.subscriptions._retained
    assert egress is not None
    (job,) = egress._jobs.values()
    assert len(job.waiting) <= 1
    assert len(job.records) <= 64
    assert site.number("iotmq_mqtt_retained_sent_total") == 3
    # Others are served meanwhile.
    other = await Device5.connect(site, "other")
    await other.subscribe(("r/+", 0))
    for _ in range(retained.count):
        await other.received()
    await other.end()
    greedy.client.abort()
    await soon(lambda: not egress._jobs, "nothing is kept of the one that is gone")


async def test_what_is_retained_stops_when_its_filter_is_left(retained: Retained) -> None:
    """[MQTT-3.10.4-2]"""
    site = retained.site
    device = await Device5.connect(site, properties=Properties(receive_max=2))
    await device.subscribe(("r/#", 1))
    held = [await device.client.packet() for _ in range(2)]
    device.client.send(packets.encode_subscribe(5, [("r/+", 1)], NO_PROPERTIES))
    assert (await device.client.packet())[0] == packets.SUBACK << 4
    device.client.send(packets.encode_unsubscribe(6, ["r/#", "r/+"], NO_PROPERTIES))
    assert (await device.client.packet())[0] == packets.UNSUBACK << 4
    for _, body in held:
        at = 2 + int.from_bytes(body[:2], "big")
        packet_id = int.from_bytes(body[at : at + 2], "big")
        device.client.send(packets.encode_acknowledgement(packets.PUBACK, packet_id))
    await device.client.ping()
    publisher = await Device5.connect(site, "p")
    await device.subscribe(("live", 1))
    await publisher.publish("live", b"next")
    assert (await device.received()).payload == b"next"
    assert site.number("iotmq_mqtt_retained_sent_total") == 2
