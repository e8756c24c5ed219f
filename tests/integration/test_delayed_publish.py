"""`$delayed/SECONDS/TOPIC` end to end: stored to wait, then a message of its topic for everybody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.message.properties import decode_properties
from iotmq.message.records.record import iter_records
from iotmq.mqtt.codec.packets import Will

pytestmark = pytest.mark.uvloop


@pytest.fixture(params=["in the broker's process", "in processes of their own"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    made = await open_site(tmp_path, "one", "two", is_remote=request.param == "in processes of their own")
    yield made
    await made.close()


async def connected(site: MqttSite, client_id: str, *, clean_session: bool = True) -> SessionDevice:
    device = SessionDevice(client_id)
    await device.connect(site.fronts["one"], clean_session=clean_session)
    return device


def pass_time(site: MqttSite, seconds: float) -> None:
    site.bench.clock.advance(seconds)
    site.bench.broker.timers.deliver()


async def test_a_delayed_message_comes_at_its_time_to_everybody(site: MqttSite) -> None:
    sender, live = await connected(site, "sender"), await connected(site, "live")
    kept = await connected(site, "kept", clean_session=False)
    await live.subscribe(("#", 2), ("$delayed/#", 2))
    await kept.subscribe(("a/+", 2))
    await sender.publish("$delayed/60/a/b", b"later", qos=2)
    await sender.publish("a/b", b"now")
    await live.receives(1)
    await kept.receives(1)
    pass_time(site, 59)
    await sender.publish("a/b", b"59 s")
    pass_time(site, 1)
    expected = [("a/b", b"now"), ("a/b", b"59 s"), ("a/b", b"later")]
    assert await live.receives(3) == expected, "and nothing under $delayed"
    assert await kept.receives(3) == expected
    queue = site.bench.store.find_queue("T", 0)
    assert queue is not None
    read = site.bench.store.read(queue, queue.min_offset, records_max=10, bytes_max=1 << 20)
    found = [record for view in read.views for record in iter_records(view)]
    properties = decode_properties(found[-1].properties)
    assert found[-1].body == b"later"
    assert properties["MQTT_CLIENT_ID"] == "sender"
    assert properties["MQTT_QOS"] == "2"
    for device in (sender, live, kept):
        await device.disconnect()


async def test_a_retained_message_is_retained_when_its_time_has_come(site: MqttSite) -> None:
    sender, early, late = [await connected(site, name) for name in ("sender", "early", "late")]
    await sender.publish("r", b"first", is_retained=True)
    await sender.publish("$delayed/60/r", b"second", is_retained=True)
    await early.subscribe(("r", 1))
    assert await early.receives(1) == [("r", b"first")]
    pass_time(site, 60)
    assert await early.receives(2) == [("r", b"first"), ("r", b"second")]
    await late.subscribe(("r", 1))
    assert await late.receives(1) == [("r", b"second")]
    for device in (sender, early, late):
        await device.disconnect()


async def test_what_waits_outlives_the_broker(site: MqttSite) -> None:
    sender = await connected(site, "sender")
    kept = await connected(site, "kept", clean_session=False)
    await kept.subscribe(("a", 1))
    await sender.publish("$delayed/60/a", b"later")
    for device in (sender, kept):
        await device.disconnect()
    await site.restart_broker()
    await kept.connect(site.fronts["two"])
    pass_time(site, 60)
    assert await kept.receives(1) == [("a", b"later")]
    await kept.disconnect()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_will_that_waits(site: MqttSite, is_killed: bool) -> None:
    watcher, leaving = await connected(site, "watcher"), SessionDevice("leaving")
    await watcher.subscribe(("#", 1))
    await leaving.connect(site.fronts["two"], will=Will("$delayed/60/w", b"gone", 1, False))
    if is_killed:
        await site.kill_front("two")
        await leaving.drop()
        site.bench.pass_time(5)
    else:
        await leaving.drop()
    await soon(lambda: site.bench.broker.timers.pending_count == 1, "the will waits")
    pass_time(site, 59)
    assert watcher.got == []
    pass_time(site, 1)
    assert await watcher.receives(1) == [("w", b"gone")]
    await watcher.disconnect()
