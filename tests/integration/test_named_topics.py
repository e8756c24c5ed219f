"""Rewritten topics and automatic subscriptions over two front ends, beside the broker and in their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from fake_gateway import RawClient
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.settings.topics import AutoSubscriptionSettings, RewriteSettings

pytestmark = pytest.mark.uvloop

MARKS = {
    "rewrites": (
        RewriteSettings(filter="old/#", pattern="^old/(.+)$", template="new/$1"),
        RewriteSettings(filter="mine/#", pattern="^mine/(.*)$", template="of/%c/$1"),
    ),
    "auto_subscriptions": (
        AutoSubscriptionSettings(filter="commands/%c/#", qos=1),
        AutoSubscriptionSettings(filter="news", qos=1, retain_handling=1),
    ),
    "subscriptions_max": 4,
}


@pytest.fixture(params=["local", "remote"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MqttSite]:
    found = await open_site(tmp_path, "plain", is_remote=request.param == "remote")
    found.mqtt_settings.update(MARKS)
    await found.start("one", "two")
    try:
        yield found
    finally:
        await found.close()


async def test_publishers_and_subscribers_meet_at_the_new_name(site: MqttSite) -> None:
    device, other = SessionDevice("kept"), SessionDevice("other")
    await device.connect(site.fronts["one"])
    assert await device.subscribe(("old/a", 1), ("new/b", 1)) == [1, 1]
    await other.connect(site.fronts["two"], clean_session=True)
    await other.publish("old/a", b"1")
    await other.publish("new/a", b"2")
    await other.publish("old/b", b"3")
    assert await device.receives(3) == [("new/a", b"1"), ("new/a", b"2"), ("new/b", b"3")]
    await device.unsubscribe("old/a")
    await other.publish("old/a", b"4")
    await other.publish("old/b", b"5")
    assert (await device.receives(4))[3:] == [("new/b", b"5")]
    await device.disconnect()
    await other.disconnect()


async def test_a_name_of_the_device_is_its_own(site: MqttSite) -> None:
    one, two, all_of_them = SessionDevice("one"), SessionDevice("two"), SessionDevice("all")
    await one.connect(site.fronts["one"], clean_session=True)
    await two.connect(site.fronts["two"], clean_session=True)
    await all_of_them.connect(site.fronts["one"])
    await one.subscribe(("mine/#", 1))
    await all_of_them.subscribe(("of/#", 1))
    await two.publish("mine/x", b"2")
    await one.publish("mine/x", b"1")
    assert await one.receives(1) == [("of/one/x", b"1")]
    assert sorted(await all_of_them.receives(2)) == [("of/one/x", b"1"), ("of/two/x", b"2")]
    for device in (one, two, all_of_them):
        await device.disconnect()


@pytest.mark.parametrize("client_id", ["$share", "$exclusive"])
async def test_a_client_id_does_not_make_a_subscription_one_of_everything(
    site: MqttSite, client_id: str
) -> None:
    """`%c/g/#` of the client `$share` would be `#` in the group `g`."""
    site.mqtt_settings["auto_subscriptions"] = tuple(
        AutoSubscriptionSettings(filter=name, qos=1) for name in ("%c/g/#", "%c/commands/x", "news")
    )
    await site.start("three")
    device, other = SessionDevice(client_id), SessionDevice("other")
    await device.connect(site.fronts["three"], clean_session=True)
    await other.connect(site.fronts["two"], clean_session=True)
    await other.publish("g/a", b"of others")
    await other.publish("commands/x", b"of others")
    await other.publish("news", b"1")
    assert await device.receives(1) == [("news", b"1")]
    await device.disconnect()
    await other.disconnect()


async def test_a_filter_without_a_new_name_is_refused_and_others_are_not(site: MqttSite) -> None:
    device = SessionDevice("a/b")
    await device.connect(site.fronts["one"])
    assert await device.subscribe(("mine/#", 1), ("new/x", 0)) == [0x80, 0]
    await device.unsubscribe("mine/#")
    assert site.number("iotmq_mqtt_rewrites_refused_total") == 2
    assert site.number("iotmq_mqtt_auto_subscriptions_refused_total") == 1, "commands/a/b/#"
    await device.disconnect()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_session_has_subscriptions_it_has_not_asked_for(site: MqttSite, is_clean: bool) -> None:
    device, other = SessionDevice("d"), SessionDevice("other")
    await other.connect(site.fronts["plain"], clean_session=True)
    await other.publish("news", b"retained", is_retained=True)
    await device.connect(site.fronts["one"], clean_session=is_clean)
    assert await device.receives(1) == [("news", b"retained")]
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 2, "both are there")
    await other.publish("commands/d/x", b"1")
    await other.publish("commands/e/x", b"not for it")
    await other.publish("news", b"2")
    assert (await device.receives(3))[1:] == [("commands/d/x", b"1"), ("news", b"2")]
    assert device._answers == [], "no SUBACK"
    await device.disconnect()
    await other.disconnect()


async def test_a_session_that_comes_back_has_them_once(site: MqttSite) -> None:
    device, other = SessionDevice("d"), SessionDevice("other")
    await other.connect(site.fronts["plain"], clean_session=True)
    await device.connect(site.fronts["one"])
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 2, "both are there")
    await device.drop()
    await other.publish("commands/d/x", b"while it was away")
    await device.connect(site.fronts["two"])
    assert device.is_present
    assert await device.receives(1) == [("commands/d/x", b"while it was away")]
    await other.publish("news", b"kept as retained", is_retained=True)
    await device.receives(2)
    await device.connect(site.fronts["one"])
    assert await device.subscribe(("end", 0)) == [0]
    await other.publish("end", b"", qos=1)
    assert (await device.receives(3))[1:] == [("news", b"kept as retained"), ("end", b"")]
    await device.disconnect()
    await other.disconnect()


async def test_retained_messages_come_as_retain_handling_says(site: MqttSite) -> None:
    device, other = SessionDevice("d"), SessionDevice("other")
    await other.connect(site.fronts["plain"], clean_session=True)
    await other.publish("commands/d/state", b"wanted", is_retained=True)
    await other.publish("news", b"old", is_retained=True)
    await device.connect(site.fronts["one"])
    assert sorted(await device.receives(2)) == [("commands/d/state", b"wanted"), ("news", b"old")]
    for front in ("two", "one"):
        await device.drop()
        device.got.clear()
        await device.connect(site.fronts[front])
        assert device.is_present
        await device.receives(1)
        await other.publish("news", b"new")
        assert await device.receives(2) == [("commands/d/state", b"wanted"), ("news", b"new")]
    await device.disconnect()
    await other.disconnect()


async def test_they_count_as_subscriptions_of_the_session(site: MqttSite) -> None:
    device = SessionDevice("d")
    await device.connect(site.fronts["one"])
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 2, "both are there")
    assert await device.subscribe(*((name, 0) for name in "abc")) == [0, 0, 0x80]
    await device.disconnect()
    client = await RawClient.connect(site.fronts["plain"].mqtt.port, "d", clean_session=True)
    client.send(packets.encode_subscribe(1, [("a", 0)]))
    assert await client.packet() == (packets.SUBACK << 4, b"\0\1\0")
    client.close()
