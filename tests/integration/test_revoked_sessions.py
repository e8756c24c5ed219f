"""Kept sessions whose subscriptions are not allowed any more when they come back, or while they are there.

A device that may not subscribe a topic any more must not go on getting its messages because its session had
subscribed it while it still might (CVE-2021-34434 was that at another broker).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from mqtt5_device import Device5
from mqtt_site import MqttSite, SessionDevice, open_site
from permissions_site import rule_text, write

from iotmq.mqtt.bans import Ban
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_front.settings.permissions import PermissionSettings
from iotmq.mqtt_front.settings.topics import AutoSubscriptionSettings, BridgeClientSettings, RewriteSettings

pytestmark = pytest.mark.uvloop

ALL = rule_text("allow", "all", "#")
NOT_SECRET = rule_text("deny", "subscribe", "secret/#", who="{ client_id = 'd' }") + ALL
REFUSED = "iotmq_mqtt_permissions_refused_total"


@pytest.fixture(params=[False, True], ids=["one process", "two processes"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    file = tmp_path / "permissions.toml"
    file.write_text(ALL)
    permissions = PermissionSettings(permissions_file=str(file), reload_interval_s=3_600)
    site = await open_site(
        tmp_path / "data", "one", is_remote=request.param, mqtt_settings={"permissions": permissions}
    )
    yield site
    await site.close()


async def change(site: MqttSite, text: str) -> None:
    for front in site.fronts.values():
        permissions = front.mqtt.parts.permissions
        write(Path(permissions.settings.permissions_file), text)
        await permissions.reload()


async def test_a_session_that_comes_back_has_lost_what_it_may_not_have(site: MqttSite) -> None:
    front = site.fronts["one"]
    device, writer = SessionDevice("d"), SessionDevice("w")
    await device.connect(front)
    await writer.connect(front, clean_session=True)
    assert await device.subscribe(("secret/x", 1), ("open/x", 1), ("$share/g/secret/#", 1)) == [1, 1, 1]
    await writer.publish("secret/x", b"while it might")
    await device.receives(1)
    await device.drop()
    await change(site, NOT_SECRET)
    # What came for it while it was away is not for it, either.
    for topic in ("secret/x", "open/x"):
        await writer.publish(topic, b"later")
    await device.connect(front)
    assert device.is_present
    await device.receives(2)
    for topic in ("secret/x", "open/x"):
        await writer.publish(topic, b"now")
    await device.receives(3)
    got = [entry for entry in device.got if entry[1] != b"while it might"]
    assert got == [("open/x", b"later"), ("open/x", b"now")]
    assert site.number(REFUSED) == 2
    site.check_sessions()
    # The broker has forgotten it: with the former rules the session has it no more.
    await device.drop()
    await change(site, ALL)
    await device.connect(front)
    await writer.publish("secret/x", b"again")
    await writer.publish("open/x", b"last")
    await device.receives(4)
    assert device.got[-1] == ("open/x", b"last")
    assert site.number(REFUSED) == 2
    await writer.disconnect()
    await device.disconnect()


async def test_a_connected_session_loses_what_it_may_not_have(site: MqttSite) -> None:
    front = site.fronts["one"]
    device, writer = SessionDevice("d"), SessionDevice("w")
    await device.connect(front)
    await writer.connect(front, clean_session=True)
    assert await device.subscribe(("secret/x", 1), ("$share/g/secret/y", 1), ("open/x", 1)) == [1, 1, 1]
    assert await writer.subscribe(("secret/x", 1)) == [1]
    await change(site, NOT_SECRET)
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 2, "two are gone")
    for topic in ("secret/x", "secret/y", "open/x"):
        await writer.publish(topic, b"now")
    await device.receives(1)
    assert device.got == [("open/x", b"now")]
    await writer.receives(1)
    assert await device.subscribe(("secret/x", 1)) == [0x80]
    site.check_sessions()
    await writer.disconnect()
    await device.disconnect()


async def test_a_bridge_that_comes_back_to_a_session_has_what_is_below_its_prefix_alone(
    site: MqttSite,
) -> None:
    """The session is of a time when it had another prefix, or of another client with its client id."""
    front = site.fronts["one"]
    bridges = front.mqtt.parts.bridges
    device, writer = SessionDevice("d"), SessionDevice("w")
    await device.connect(front)
    await writer.connect(front, clean_session=True)
    assert await device.subscribe(("sites/other/x", 1), ("sites/d/x", 1), ("$share/g/#", 1)) == [1, 1, 1]
    await device.drop()
    bridges._settings = (BridgeClientSettings(client_id="d", prefix="sites/d/"),)
    for topic in ("sites/other/x", "sites/d/x"):
        await writer.publish(topic, b"1")
    await device.connect(front)
    assert device.is_present
    await device.receives(1)
    assert device.got == [("x", b"1")]
    assert site.number("iotmq_mqtt_subscriptions") == 1
    site.check_sessions()
    await writer.disconnect()
    await device.disconnect()


async def test_messages_in_flight_of_a_lost_subscription_give_their_packet_ids_back(site: MqttSite) -> None:
    front = site.fronts["one"]
    device, writer = SessionDevice("d"), SessionDevice("w")
    await device.connect(front)
    await writer.connect(front, clean_session=True)
    assert await device.subscribe(("secret/x", 2), ("open/x", 2)) == [2, 2]
    device.is_acknowledging = False
    for number in range(3):
        await writer.publish("secret/x", b"%d" % number, qos=2)
    await soon(lambda: len(device.unanswered) == 3, "they are in flight")
    await device.drop()
    await change(site, NOT_SECRET)
    device.is_acknowledging = True
    await device.connect(front)
    await writer.publish("open/x", b"now", qos=2)
    await soon(lambda: ("open/x", b"now") in device.got, "the other filter goes on")
    site.check_sessions()
    await writer.disconnect()
    await device.disconnect()


async def test_a_subscription_that_a_broker_was_asked_for_while_rules_changed_is_taken(
    site: MqttSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are compared with the new rules meanwhile, which is not to make this one look new."""
    front = site.fronts["one"]
    subscriptions = front.mqtt.parts.subscriptions
    device, writer = SessionDevice("d"), SessionDevice("w")
    await device.connect(front)
    await writer.connect(front, clean_session=True)
    assert await device.subscribe(("open/x", 1)) == [1]
    port: Any = subscriptions._port
    asked, held = port.subscribe, list[Callable[[], None]]()

    def subscribe(request: Any, done: Callable[[Any], None]) -> None:
        asked(request, lambda found: held.append(partial(done, found)))

    monkeypatch.setattr(port, "subscribe", subscribe)
    asking = asyncio.create_task(device.subscribe(("secret/x", 1), ("$share/g/secret/y", 1)))
    await soon(lambda: held, "the broker has been asked")
    await change(site, NOT_SECRET)
    await soon(lambda: subscriptions.rights._checking is None, "all were compared")
    while not asking.done():
        while held:
            held.pop()()
        await asyncio.sleep(0)
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 1, "both are gone")
    for topic in ("secret/x", "secret/y", "open/x"):
        await writer.publish(topic, b"now")
    await device.receives(1)
    assert device.got == [("open/x", b"now")]
    site.check_sessions()
    await writer.disconnect()
    await device.disconnect()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_nothing_that_waits_for_a_device_is_sent_once_it_may_not_have_it(
    site: MqttSite, *, is_clean: bool
) -> None:
    """Neither retained messages that are read for it, nor what a group or its queue has for its window."""
    front = site.fronts["one"]
    device, writer = SessionDevice("d"), SessionDevice("w")
    await writer.connect(front, clean_session=True)
    await device.connect(front, clean_session=is_clean)
    device.is_acknowledging = False
    for number in range(40):
        await writer.publish(f"secret/{number}", b"retained", is_retained=True)
    assert await device.subscribe(("open/#", 1), ("$share/g/secret/shared", 1)) == [1, 1]
    for _ in range(20):
        await writer.publish("secret/shared", b"shared")
    await device.receives(16)
    assert await device.subscribe(("secret/+", 1)) == [1]
    for number in range(20):
        await writer.publish(f"secret/{number}", b"live")
    await writer.publish("open/x", b"allowed")
    await change(site, NOT_SECRET)
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 1, "two are gone")
    device.acknowledge()
    await device.receives(17)
    await writer.publish("open/x", b"last")
    await device.receives(18)
    assert device.got[16:] == [("open/x", b"allowed"), ("open/x", b"last")]
    site.check_sessions()
    await writer.disconnect()
    await device.disconnect()


WILL = packets.Will("secret/gone", b"w", 1, False, Properties(will_delay_s=300))
NO_WILLS = rule_text("deny", "publish", "secret/#", will="true", name='"no wills"') + ALL


async def left_will(site: MqttSite, client_id: str = "d") -> None:
    """A device is gone, and the broker is to publish its will in a while."""
    device = await Device5.connect(site, client_id, expiry_s=600, will=WILL)
    device.client.abort()
    wills = site.fronts["one"].mqtt.parts.sessions.left_wills
    assert wills is not None
    await soon(lambda: len(wills) == 1, "it has been left")
    await soon(lambda: site.bench.broker.sessions.owners.wills._waiting, "the broker has it")


async def published_wills(site: MqttSite) -> list[bytes]:
    """Those that the broker publishes when their time has come."""
    site.bench.pass_time(301)
    await soon(lambda: not site.bench.broker.sessions.owners.wills._waiting, "none waits")
    return site.bench.stored()


async def test_a_will_that_waits_is_not_published_when_rules_allow_it_no_more(site: MqttSite) -> None:
    await left_will(site)
    await change(site, NO_WILLS)
    await soon(lambda: site.number(REFUSED) == 1, "the will is refused")
    waiting = site.bench.broker.sessions.owners.wills._waiting
    await soon(lambda: not waiting, "the broker has dropped it")
    assert await published_wills(site) == []
    # It stays so, also for another start of the broker.
    stored = site.bench.broker.sessions.projection.session("d")
    assert stored is not None
    assert stored.will is None


async def test_a_will_that_waits_is_published_when_it_is_allowed_still(site: MqttSite) -> None:
    await left_will(site)
    await change(site, NOT_SECRET)
    assert await published_wills(site) == [b"w"]


async def test_a_will_with_a_delay_is_not_left_when_rules_have_changed_before(site: MqttSite) -> None:
    device = await Device5.connect(site, "d", expiry_s=600, will=WILL)
    await change(site, NO_WILLS)
    device.client.abort()
    await soon(lambda: site.number(REFUSED) == 1, "the will is refused")
    assert await published_wills(site) == []


@pytest.mark.parametrize("client_id", ["d", "other"])
async def test_a_ban_drops_the_will_that_waits(site: MqttSite, client_id: str) -> None:
    await left_will(site)
    guard = site.fronts["one"].mqtt.parts.guard
    guard.shared_bans.put(Ban(kind="client", value=client_id))
    await soon(lambda: guard._looking is None, "it was looked at")
    if client_id == "d":
        await soon(lambda: not site.bench.broker.sessions.owners.wills._waiting, "it is dropped")
    assert await published_wills(site) == ([] if client_id == "d" else [b"w"])


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_groups_and_exclusive_filters_need_the_right_to_what_they_are_of(
    site: MqttSite, qos: int
) -> None:
    """Whatever they are called, and whatever the name is rewritten to."""
    rewrites = (RewriteSettings(filter="old/#", pattern="^old/(.+)$", template="$1", action="all"),)
    site.mqtt_settings["rewrites"] = rewrites
    site.mqtt_settings["auto_subscriptions"] = (AutoSubscriptionSettings(filter="secret/news/%c", qos=qos),)
    await site.start("two")
    await change(site, NOT_SECRET)
    subscriber = await Device5.connect(site, "d", front="two")
    publisher = await Device5.connect(site, "w", front="two")
    wanted = {
        "$share/g/secret/x": 0x87,
        "$share/g/old/secret/x": 0x87,
        "$share/g/#": 0x87,
        "$share/g/+/x": 0x87,
        "$share/g/old/open/+": qos,
        "$exclusive/secret/x": 0x87,
        "$exclusive/old/secret/#": 0x87,
        "$exclusive/#": 0x87,
        "$exclusive/old/open/x": qos,
        "old/secret/y": 0x87,
        "old/open/y": qos,
        "$share/g/$exclusive/secret/x": 0x87,
        "$delayed/5/secret/x": 0x87,
    }
    codes = await subscriber.subscribe(*((name, qos) for name in wanted))
    assert dict(zip(wanted, codes, strict=True)) == wanted
    for topic in ("secret/x", "old/secret/y", "open/z"):
        await publisher.publish(topic, b"not for it" if "secret" in topic else b"for it")
    message = await subscriber.received()
    assert (message.topic, message.payload) == ("open/z", b"for it")
    # What the operator has subscribed for it needs no right.
    await publisher.publish("secret/news/d", b"news")
    assert (await subscriber.received()).payload == b"news"
