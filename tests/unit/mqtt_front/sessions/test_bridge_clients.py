"""Bridges of other brokers at a front end: their place in the tree, their word, and their state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_gateway import RawClient, connect_packet
from front_site import Site, running, tick_quickly

from iotmq.limits import MQTT_BRIDGE_CLIENTS_MAX, MQTT_BRIDGE_STATES_MAX
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.topics.topics import matches
from iotmq.mqtt_front.connection.bridge_role import BridgeRole
from iotmq.mqtt_front.sessions.bridge_clients import BridgeClients, mounted_filter
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.topics import BridgeClientSettings

pytestmark = pytest.mark.uvloop

SITES = (BridgeClientSettings(client_id="site-*", prefix="sites/%c/", is_trusted=True),)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)


@asynccontextmanager
async def at_once(**settings: Any) -> AsyncIterator[Site]:
    """A front end over a broker that takes everything at once."""
    async with running(**settings) as site:
        site.gateway.automatic = 0
        yield site


async def stored(site: Site, count: int = 1) -> list[dict[str, str]]:
    """The properties of everything that was handed over, when it is so much."""
    handed = await site.handed(count)
    return [message.properties for each in handed for message in each.messages]


async def connect5(site: Site, client_id: str, **fields: Any) -> tuple[RawClient, bytes]:
    """A client of MQTT 5, and its CONNACK."""
    client = await RawClient.dial(site.front.port)
    client.send(connect_packet(client_id, protocol_level=5, **fields))
    first, body = await client.packet()
    assert first == packets.CONNACK << 4
    return client, body


def publish5(topic: str, payload: bytes = b"x", **fields: Any) -> bytes:
    return packets.encode_publish(topic, payload, qos=1, packet_id=1, properties=Properties(**fields))


async def test_what_a_bridge_publishes_is_below_its_prefix() -> None:
    async with at_once(bridge_clients=SITES) as site:
        client = await site.connect("site-7")
        client.send(packets.encode_publish("a/b", b"1", qos=1, packet_id=1))
        await client.puback()
        (found,) = await stored(site)
        assert found["MQTT_TOPIC"] == "sites/site-7/a/b"
        assert found["MQTT_CLIENT_ID"] == found["MQTT_BRIDGE"] == "site-7"
        client.close()


async def test_a_delayed_message_is_below_the_prefix_as_well() -> None:
    async with at_once(bridge_clients=SITES) as site:
        client = await site.connect("site-7")
        client.send(packets.encode_publish("$delayed/5/a", b"1", qos=1, packet_id=1))
        await client.puback()
        (found,) = await stored(site)
        assert found["MQTT_TOPIC"] == "sites/site-7/a"
        client.close()


async def test_a_prefix_is_no_part_of_a_delay() -> None:
    """Else `$delayed/5` would be `$delayed/57/plant/`: `plant/`, above the prefix."""
    async with at_once(bridge_clients=(BridgeClientSettings(prefix="7/plant/"),)) as site:
        client = await site.connect("7")
        client.send(packets.encode_publish("$delayed/5", b"1", qos=1, packet_id=1))
        assert await client.rest() == b""
        assert not site.gateway.handed


async def test_what_it_subscribes_is_below_its_prefix_and_comes_without_it() -> None:
    async with at_once(bridge_clients=SITES) as site:
        client = await site.connect("site-7")
        assert await client.subscribe(("commands/#", 1)) == [1]
        assert list(site.gateway.filters.values()) == ["sites/site-7/commands/#"]
        site.gateway.push("sites/site-7/commands/go", b"1", "sites/site-7/commands/#")
        topic, payload, _ = await client.publish_received()
        assert (topic, payload) == ("commands/go", b"1")
        client.send(packets.encode_unsubscribe(2, ["commands/#"]))
        await client.packet()
        assert not site.gateway.filters
        client.close()


async def test_everything_is_not_the_level_above_the_prefix() -> None:
    """`sites/site-7/#` would be `sites/site-7`, too, where others publish."""
    async with at_once(bridge_clients=SITES) as site:
        client = await site.connect("site-7")
        assert await client.subscribe(("#", 0)) == [0]
        (known,) = site.gateway.filters.values()
        assert not matches(known, "sites/site-7")
        assert all(matches(known, f"sites/site-7/{topic}") for topic in ("", "a", "a/b/c"))
        client.send(packets.encode_unsubscribe(2, ["#"]))
        await client.packet()
        assert not site.gateway.filters
        client.close()


async def test_its_will_is_below_the_prefix() -> None:
    async with at_once(bridge_clients=SITES) as site:
        client = await site.connect("site-7", will=Will("gone", b"1", 1, False))
        client.abort()
        (found,) = await stored(site)
        assert found["MQTT_TOPIC"] == "sites/site-7/gone"


async def test_a_trusted_bridge_says_which_device_has_published() -> None:
    async with at_once(bridge_clients=SITES) as site:
        client, _ = await connect5(site, "site-7")
        client.send(publish5("a", user_properties=(("x", "y"), ("iotmq-client-id", "pump"))))
        await client.packet()
        client.send(publish5("a", user_properties=(("iotmq-client-id", ""),)))
        await client.packet()
        found = await stored(site, 2)
        assert [each["MQTT_CLIENT_ID"] for each in found] == ["pump", "site-7"]
        assert {each["MQTT_BRIDGE"] for each in found} == {"site-7"}
        client.close()


async def test_others_are_not_believed() -> None:
    async with at_once(bridge_clients=SITES) as site:
        client, _ = await connect5(site, "other")
        client.send(publish5("a", user_properties=(("iotmq-client-id", "pump"),)))
        await client.packet()
        (found,) = await stored(site)
        assert (found["MQTT_TOPIC"], found["MQTT_CLIENT_ID"]) == ("a", "other")
        assert "MQTT_BRIDGE" not in found
        client.close()


async def test_a_client_id_that_would_choose_another_place_is_refused() -> None:
    async with at_once(bridge_clients=SITES) as site:
        client, body = await connect5(site, "site-7/../#")
        assert body[1] == 0x87
        client.close()


async def test_a_gateway_that_bridges_is_told_who_is_here() -> None:
    async with at_once(gateway_name="centre") as site:
        said = Properties(user_properties=(("iotmq-gateway", "edge"),))
        client, body = await connect5(site, "edge-centre", properties=said)
        assert b"iotmq-gateway\0\x06centre" in body
        other, body = await connect5(site, "device")
        assert b"iotmq-gateway" not in body
        assert site.number("iotmq_mqtt_bridges") == 1
        assert site.number("iotmq_mqtt_bridge_connected", bridge="edge-centre") == 1
        client.close()
        other.close()


async def test_the_state_of_a_bridge_is_its_own_to_say() -> None:
    topic = "$SYS/broker/connection/site-7/state"
    async with at_once() as site:
        watcher = await site.connect("watcher")
        await watcher.subscribe(("$SYS/broker/connection/#", 1))
        bridge = await site.connect("site-7", is_bridge=True, will=Will(topic, b"0", 1, True))
        for payload, name in ((b"1", "site-7"), (b"1", "site-8"), (b"yes", "site-7")):
            bridge.send(
                packets.encode_publish(
                    f"$SYS/broker/connection/{name}/state", payload, qos=1, packet_id=1, retain=True
                )
            )
            await bridge.puback()
        assert (await watcher.publish_received())[:2] == (topic, b"1")
        assert site.number("iotmq_mqtt_bridge_connected", bridge="site-7") == 1
        assert site.number("iotmq_mqtt_bridge_notifications_total") == 2
        late = await site.connect("late")
        late.send(packets.encode_subscribe(1, [(topic, 1)]))
        found = {(await late.packet())[0] for _ in range(2)}
        assert packets.PUBLISH in {first >> 4 for first in found}
        bridge.abort()
        assert (await watcher.publish_received())[:2] == (topic, b"0")
        assert site.number("iotmq_mqtt_bridge_connected", bridge="site-7") == 0
        assert not site.gateway.handed, "nothing of it is stored"
        for each in (watcher, late):
            each.close()


@pytest.mark.parametrize("client_id", ["#", "a/+/b", "/" * 200])
async def test_a_bridge_whose_client_id_is_no_part_of_a_topic_has_no_state_there(client_id: str) -> None:
    """A topic name with a wildcard is a mistake for which clients hang up, each time they come back."""
    async with at_once() as site:
        watcher = await site.connect("watcher")
        await watcher.subscribe(("$SYS/broker/connection/#", 1))
        bridge = await site.connect(client_id, is_bridge=True)
        other = await site.connect("site-7", is_bridge=True)
        assert (await watcher.publish_received())[:2] == ("$SYS/broker/connection/site-7/state", b"1")
        assert site.number("iotmq_mqtt_bridge_connected", bridge=client_id) == 1
        for each in (watcher, bridge, other):
            each.close()


def test_states_have_a_maximum_and_those_that_are_gone_go_first() -> None:
    class Fake:
        def __init__(self, client_id: str) -> None:
            self.client_id = client_id

    found = BridgeClients((), None, gateway_name="g")
    devices: list[Any] = [Fake(f"b{number}") for number in range(MQTT_BRIDGE_STATES_MAX + 2)]
    for device in devices[:MQTT_BRIDGE_STATES_MAX]:
        assert found.notified(device, f"$SYS/broker/connection/{device.client_id}/state", b"1")
    found.lost(devices[5])
    names = {dict(each.labels).get("bridge") for each in found.metrics()}
    assert {f"b{number}" for number in range(MQTT_BRIDGE_STATES_MAX)} <= names
    for device in devices[MQTT_BRIDGE_STATES_MAX:]:
        assert found.notified(device, f"$SYS/broker/connection/{device.client_id}/state", b"1")
    names = {dict(each.labels).get("bridge") for each in found.metrics()} - {None}
    assert len(names) == MQTT_BRIDGE_STATES_MAX
    assert "b5" not in names
    assert "b0" not in names


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("a/#", "p/a/#"),
        ("$share/g/a", "$share/g/p/a"),
        ("$exclusive/a", "$exclusive/p/a"),
        ("$SYS/#", "p/$SYS/#"),
    ],
)
def test_filters_below_a_prefix(topic_filter: str, expected: str) -> None:
    assert mounted_filter(BridgeRole("b", prefix="p/"), topic_filter) == expected
    assert mounted_filter(BridgeRole("b"), topic_filter) == topic_filter
    assert mounted_filter(None, topic_filter) == topic_filter


def test_bridge_clients_have_a_maximum() -> None:
    import msgspec

    one = {"client_id": "a"}
    msgspec.convert({"bridge_clients": [one] * MQTT_BRIDGE_CLIENTS_MAX}, MqttSettings)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"bridge_clients": [one] * (MQTT_BRIDGE_CLIENTS_MAX + 1)}, MqttSettings)


@pytest.mark.parametrize("prefix", ["a", "/", "+/", "$SYS/", "a/#/", "/a/"])
def test_a_prefix_ends_with_a_slash_and_has_no_wildcard(prefix: str) -> None:
    import msgspec

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prefix": prefix}, BridgeClientSettings)
