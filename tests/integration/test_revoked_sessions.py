"""Kept sessions whose subscriptions are not allowed any more when they come back, or while they are there.

A device that may not subscribe a topic any more must not go on getting its messages because its session had
subscribed it while it still might (CVE-2021-34434 was that at another broker).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site
from permissions_site import rule_text, write

from iotmq.mqtt_front.settings.permissions import PermissionSettings
from iotmq.mqtt_front.settings.topics import BridgeClientSettings

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
