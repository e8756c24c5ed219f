"""MQTT 5 over a front end and a broker: sessions and their expiry, wills, subscriptions, what is retained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mqtt5_device import Device5
from mqtt_site import MqttSite, open_site

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties

pytestmark = pytest.mark.uvloop

EXPIRY_S_MAX = 7 * 24 * 3600  # mqtt.session_expiry_s_max, by default
NO_LOCAL, RETAIN_AS_PUBLISHED, IF_NEW, NEVER = 0x04, 0x08, 0x10, 0x20


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[MqttSite]:
    site = await open_site(tmp_path / "one", "one", "two")
    yield site
    await site.close()


async def test_a_session_is_kept_when_its_device_asked_for_it(site: MqttSite) -> None:
    """[MQTT-3.1.2-5], [MQTT-3.1.2-6], [MQTT-3.1.2-23]"""
    first = await Device5.connect(site, expiry_s=600)
    assert not first.is_present
    assert first.told.session_expiry_s is None, "as asked"
    assert await first.subscribe(("a/#", 1 | RETAIN_AS_PUBLISHED), identifier=77) == [1]
    await first.end()
    publisher = await Device5.connect(site, "p")
    await publisher.publish("a/b", b"1", is_retained=True, content_type="t")
    back = await Device5.connect(site, is_clean=False, expiry_s=600, front="two")
    assert back.is_present
    message = await back.received()
    assert (message.topic, message.payload, message.is_retained) == ("a/b", b"1", True)
    assert message.properties == Properties(content_type="t", subscription_identifiers=(77,))
    await back.end()
    clean = await Device5.connect(site, expiry_s=600)
    assert not clean.is_present, "[MQTT-3.1.2-4]"
    await clean.client.ping()


async def test_a_session_without_expiry_ends_with_its_connection(site: MqttSite) -> None:
    first = await Device5.connect(site, is_clean=False)
    await first.subscribe(("a", 1))
    await first.end()
    assert not (await Device5.connect(site, is_clean=False)).is_present


async def test_a_session_that_is_resumed_without_expiry_goes_on_and_ends_then(site: MqttSite) -> None:
    first = await Device5.connect(site, expiry_s=600)
    await first.subscribe(("a", 1))
    await first.end()
    publisher = await Device5.connect(site, "p")
    await publisher.publish("a", b"1")
    last = await Device5.connect(site, is_clean=False)
    assert last.is_present
    assert (await last.received()).payload == b"1"
    await last.end()
    assert not (await Device5.connect(site, is_clean=False, expiry_s=600)).is_present


async def test_a_disconnect_changes_the_expiry(site: MqttSite) -> None:
    first = await Device5.connect(site, expiry_s=600)
    await first.end(session_expiry_s=0)
    assert not (await Device5.connect(site, is_clean=False, expiry_s=600)).is_present


async def test_connack_says_what_the_server_decided(site: MqttSite) -> None:
    """[MQTT-3.1.3-6], [MQTT-3.1.3-7], [MQTT-3.2.2-16]"""
    device = await Device5.connect(site, "", is_clean=False, expiry_s=0xFFFFFFFF)
    assert device.told.session_expiry_s == EXPIRY_S_MAX
    assert device.told.assigned_client_id
    assert device.told.server_keep_alive_s is None
    assert (device.told.receive_max, device.told.topic_alias_max) == (1_024, 32)
    name = device.told.assigned_client_id
    await device.end()
    again = await Device5.connect(site, name, is_clean=False, expiry_s=5)
    assert again.is_present
    assert again.told.assigned_client_id is None


@pytest.mark.parametrize(("asks", "information"), [(1, "answers/here"), (0, None), (None, None)])
async def test_response_information_is_for_those_who_ask(
    site: MqttSite, asks: int | None, information: str | None
) -> None:
    """[MQTT-3.1.2-28]"""
    site.mqtt_settings["response_information"] = "answers/here"
    await site.start("three")
    properties = Properties(request_response_information=asks)
    device = await Device5.connect(site, properties=properties, front="three")
    assert device.told.response_information == information


async def test_a_session_taken_over_says_so(site: MqttSite) -> None:
    """[MQTT-3.1.4-3], from the same front end and from another one."""
    for front in ("one", "two"):
        former = await Device5.connect(site, "taken", expiry_s=60)
        latter = await Device5.connect(site, "taken", is_clean=False, expiry_s=60, front=front)
        assert latter.is_present
        assert (await former.client.rest())[:3] == bytes([0xE0, 2, 0x8E])
        await latter.end()


async def test_a_session_that_nobody_has_taken_over_is_to_be_opened_anew(site: MqttSite) -> None:
    """Clients do not connect again after 0x8E: who is asked to come anew gets another code."""
    device = await Device5.connect(site, "asked", expiry_s=60)
    front = site.fronts["one"].mqtt
    (known,) = front.parts.sessions.devices()
    front.session_fenced("asked", known.epoch, "its queues have changed")
    assert (await device.client.rest())[:3] == bytes([0xE0, 2, 0x89])


def will(payload: bytes, **fields: Any) -> Will:
    return Will("w", payload, 1, False, Properties(**fields))


async def test_a_will_is_dropped_by_a_good_bye_and_not_by_one_that_wants_it(site: MqttSite) -> None:
    """[MQTT-3.14.4-3], [MQTT-3.1.2-8]"""
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w", 1))
    await (await Device5.connect(site, will=will(b"never"))).end(0)
    await (await Device5.connect(site, will=will(b"wanted", content_type="t"))).end(4)
    message = await watcher.received()
    assert (message.payload, message.properties) == (b"wanted", Properties(content_type="t"))


async def test_a_will_with_a_delay_waits_and_is_not_for_a_device_that_is_back(site: MqttSite) -> None:
    """[MQTT-3.1.3-9]"""
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w", 1))
    for name, payload in (("back", b"back"), ("gone", b"gone")):
        device = await Device5.connect(site, name, expiry_s=600, will=will(payload, will_delay_s=30))
        device.client.abort()
    await site_sees(site, 1)
    back = await Device5.connect(site, "back", is_clean=False, expiry_s=600)
    assert back.is_present
    site.bench.pass_time(31)
    assert (await watcher.received()).payload == b"gone"
    publisher = await Device5.connect(site, "p")
    await publisher.publish("w", b"last")
    assert (await watcher.received()).payload == b"last", "and nothing for the one that is back"


@pytest.mark.parametrize("expiry_s", [None, 600])
@pytest.mark.parametrize("front", ["one", "two"])
async def test_a_clean_start_ends_the_session_that_a_will_waits_for(
    site: MqttSite, expiry_s: int | None, front: str
) -> None:
    """Section 3.1.3.2.2: the will is published when its delay is over or the session ends."""
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w", 1))
    lost = await Device5.connect(site, expiry_s=600, will=will(b"lost", will_delay_s=30))
    lost.client.abort()
    await site_sees(site, 1)
    await Device5.connect(site, expiry_s=expiry_s, front=front)
    assert (await watcher.received()).payload == b"lost"
    site.bench.pass_time(31)
    publisher = await Device5.connect(site, "p")
    await publisher.publish("w", b"last")
    assert (await watcher.received()).payload == b"last", "and the will once"


async def test_a_will_with_a_delay_comes_at_once_when_the_session_ends_with_the_connection(
    site: MqttSite,
) -> None:
    watcher = await Device5.connect(site, "watcher")
    await watcher.subscribe(("w", 1))
    (await Device5.connect(site, will=will(b"gone", will_delay_s=30))).client.abort()
    assert (await watcher.received()).payload == b"gone"


async def test_retain_handling(site: MqttSite) -> None:
    """[MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]; for sessions that end, and for kept ones."""
    publisher = await Device5.connect(site, "p")
    await publisher.publish("r", b"kept", is_retained=True)
    for expiry_s in (None, 600):
        device = await Device5.connect(site, f"d{expiry_s}", expiry_s=expiry_s)
        await device.subscribe(("r", 1 | NEVER))
        await device.client.ping()
        await device.subscribe(("r", 1 | IF_NEW))
        await device.client.ping()
        await device.subscribe(("r", 1), identifier=3)
        message = await device.received()
        assert (message.payload, message.is_retained) == (b"kept", True)
        assert message.properties.subscription_identifiers == (3,)
        device.client.send(packets.encode_unsubscribe(9, ["r", "s"], NO_PROPERTIES))
        assert await device.client.packet() == (packets.UNSUBACK << 4, b"\0\x09\0\0\x11")
        await device.subscribe(("r", 1 | IF_NEW))
        assert (await device.received()).payload == b"kept"
        await device.end()


async def test_no_local_holds_for_a_kept_session_as_well(site: MqttSite) -> None:
    """[MQTT-3.8.3-3], over connections."""
    device = await Device5.connect(site, expiry_s=600)
    await device.subscribe(("a", 1 | NO_LOCAL))
    await device.publish("a", b"own")
    await device.end()
    other = await Device5.connect(site, "other")
    await other.publish("a", b"other")
    back = await Device5.connect(site, is_clean=False, expiry_s=600)
    assert (await back.received()).payload == b"other"
    await back.publish("a", b"own")
    await back.client.ping()


async def test_qos_2_has_its_properties_too(site: MqttSite) -> None:
    """To a kept session it waits for the broker as a copy."""
    device = await Device5.connect(site, expiry_s=600)
    await device.subscribe(("a", 2), identifier=5)
    publisher = await Device5.connect(site, "p")
    publisher.client.send(
        packets.encode_publish("a", b"x", qos=2, packet_id=1, properties=Properties(content_type="t"))
    )
    assert await publisher.client.packet() == (packets.PUBREC << 4, b"\0\1")
    message = await device.received()
    assert message.qos == 2
    assert message.properties == Properties(content_type="t", subscription_identifiers=(5,))


async def test_a_message_too_large_for_a_kept_session_does_not_hold_it_up(site: MqttSite) -> None:
    """[MQTT-3.1.2-25]"""
    device = await Device5.connect(site, properties=Properties(session_expiry_s=600, packet_bytes_max=60))
    await device.subscribe(("a", 1))
    publisher = await Device5.connect(site, "p")
    await publisher.publish("a", bytes(100))
    await publisher.publish("a", b"small")
    assert (await device.received()).payload == b"small"


@pytest.mark.parametrize("expiry_s", [None, 600])
async def test_a_shared_subscription_has_its_identifier_and_properties(
    site: MqttSite, expiry_s: int | None
) -> None:
    device = await Device5.connect(site, expiry_s=expiry_s)
    assert device.told.is_sharing_available is None, "which says yes"
    filters = (("$share/g/a", 1 | RETAIN_AS_PUBLISHED), ("$share/+/a", 1), ("b", 0))
    assert await device.subscribe(*filters, identifier=6) == [1, 0x8F, 0]
    publisher = await Device5.connect(site, "p")
    await publisher.publish("a", b"x", is_retained=True, content_type="t")
    message = await device.received()
    assert message.is_retained
    assert message.properties == Properties(content_type="t", subscription_identifiers=(6,))


async def site_sees(site: MqttSite, sessions: int) -> None:
    """Wait until front end one has so many connections."""
    while site.number("iotmq_mqtt_connections") > sessions:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
