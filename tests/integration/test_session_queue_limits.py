"""Limits of what waits for kept sessions, with devices: away, or connected and slow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mqtt_site import MqttSite, SessionDevice

from iotmq.broker.sessions.limits import CHECK_INTERVAL_S

pytestmark = pytest.mark.uvloop


@pytest.fixture(params=["in the broker's process", "in processes of their own"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    made = MqttSite(tmp_path, in_flight_max=4, is_remote=request.param == "in processes of their own")
    made.bench.settings["session_queue_messages_max"] = 5
    await made.begin()
    await made.start("one", "two")
    yield made
    await made.close()


async def sender_of(site: MqttSite) -> SessionDevice:
    device = SessionDevice("sender")
    await device.connect(site.fronts["two"], clean_session=True)
    return device


def dropped(site: MqttSite) -> float:
    return sum(
        metric.value
        for metric in site.bench.broker.metrics()
        if metric.name == "iotmq_broker_session_dropped_total"
    )


def messages(*numbers: int) -> list[tuple[str, bytes]]:
    return [("a", b"%d" % number) for number in numbers]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_device_that_was_away_gets_the_newest_and_then_what_comes(site: MqttSite, qos: int) -> None:
    sender, device = await sender_of(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("a", qos))
    await device.disconnect()
    for number in range(20):
        await sender.publish("a", b"%d" % number, qos)
    await device.connect(site.fronts["two"])
    assert await device.receives(5) == messages(*range(15, 20))
    await sender.publish("a", b"20", qos)
    assert await device.receives(6) == messages(*range(15, 21))
    assert dropped(site) == 15
    await device.disconnect()
    await device.connect(site.fronts["one"])
    await sender.publish("a", b"21", qos)
    assert await device.receives(7) == messages(*range(15, 22)), "nothing comes twice, nothing comes back"
    for each in (sender, device):
        await each.disconnect()


async def test_what_is_in_flight_is_sent_again_and_the_rest_has_its_limit(site: MqttSite) -> None:
    sender, device = await sender_of(site), SessionDevice("d")
    device.is_acknowledging = False
    await device.connect(site.fronts["one"])
    await device.subscribe(("a", 1))
    for number in range(4):
        await sender.publish("a", b"%d" % number)
    await device.receives(4)
    await device.drop()
    for number in range(4, 20):
        await sender.publish("a", b"%d" % number)
    device.got.clear()
    device.is_acknowledging = True
    await device.connect(site.fronts["two"])
    assert await device.receives(9) == messages(*range(4), *range(15, 20))
    assert device.duplicates == 4
    for each in (sender, device):
        await each.disconnect()


async def test_a_connected_device_that_is_slow_has_the_limit_too(site: MqttSite) -> None:
    sender, device = await sender_of(site), SessionDevice("d")
    device.is_acknowledging = False
    await device.connect(site.fronts["one"])
    await device.subscribe(("a", 1))
    for number in range(20):
        await sender.publish("a", b"%d" % number)
    await device.receives(4)
    site.bench.clock.advance(CHECK_INTERVAL_S)
    device.is_acknowledging = True
    device.acknowledge()
    assert await device.receives(9) == messages(*range(4), *range(15, 20))
    for each in (sender, device):
        await each.disconnect()
