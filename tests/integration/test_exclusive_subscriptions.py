"""$exclusive/FILTER: one session at a time over front ends, brokers and their restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from fake_gateway import RawClient
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq import limits
from iotmq.broker.sessions.exclusives import START_GRACE_S, SWEEP_INTERVAL_S
from iotmq.broker.sessions.sessions import OWNER_GRACE_S
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES

pytestmark = pytest.mark.uvloop

TAKEN = [0x80]


@pytest.fixture(params=["local", "remote", "brokers"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MqttSite]:
    found = await open_site(
        tmp_path,
        "one",
        "two",
        is_remote=request.param != "local",
        brokers=2 if request.param == "brokers" else 1,
    )
    try:
        yield found
    finally:
        await found.close()


def held(site: MqttSite) -> int:
    """Filters that somebody has exclusively, over all brokers."""
    return sum(len(bench.broker.sessions.projection.exclusives) for bench in site.benches)


async def connected(site: MqttSite, name: str, front: str, *, is_kept: bool = False) -> SessionDevice:
    device = SessionDevice(name)
    await device.connect(site.fronts[front], clean_session=not is_kept)
    return device


async def gets(device: SessionDevice, wanted: list[int], topic_filter: str = "$exclusive/a/#") -> None:
    """Subscribe until the answer is the one wanted; what frees a filter is on its way to a broker."""
    answers: list[list[int]] = []
    for _ in range(200):
        answers.append(await device.subscribe((topic_filter, 1)))
        if answers[-1] == wanted:
            return
    raise AssertionError(f"{topic_filter} is answered {answers[-1]}")


@pytest.mark.parametrize("is_kept", [False, True])
async def test_one_session_at_a_time_has_a_filter_and_gives_it_back(site: MqttSite, is_kept: bool) -> None:
    one = await connected(site, "one", "one", is_kept=is_kept)
    two = await connected(site, "two", "two", is_kept=is_kept)
    filters = [f"$exclusive/{name}/#" for name in "abcdef"]
    assert await one.subscribe(*((name, 1) for name in filters)) == [1] * 6
    assert await two.subscribe(*((name, 1) for name in (*filters, "a/#"))) == [0x80] * 6 + [1]
    assert await one.subscribe((filters[0], 0), (filters[0], 1)) == [0, 1], "its own"
    await two.publish("a/b", b"x")
    assert await one.receives(1) == [("a/b", b"x")]
    assert await two.receives(1) == [("a/b", b"x")], "which has it like anybody else"
    await one.unsubscribe(*filters)
    assert await two.unsubscribe("a/#") is None
    await gets(two, [1])
    assert await one.subscribe(("$exclusive/a/#", 1)) == TAKEN
    assert site.number("iotmq_mqtt_exclusive_refused_total") >= 7
    await one.disconnect()
    await two.disconnect()


async def test_a_filter_asked_for_twice_is_given_back_once(site: MqttSite) -> None:
    one, two = await connected(site, "one", "one"), await connected(site, "two", "two")
    assert await one.subscribe(("$exclusive/a/#", 1), ("a/#", 0)) == [1, 0]
    assert await one.subscribe(("a/#", 1)) == [1], "other options, and its own still"
    assert await two.subscribe(("$exclusive/a/#", 1)) == TAKEN
    await one.unsubscribe("a/#")
    await gets(two, [1])
    await one.disconnect()
    await two.disconnect()


async def test_a_subscribe_that_is_refused_takes_nothing_that_the_session_had_before(
    site: MqttSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await connected(site, "one", "one", is_kept=True), await connected(site, "two", "two")
    assert await one.subscribe(("$exclusive/a/#", 1)) == [1]
    monkeypatch.setattr(limits, "FILTER_SHAPES_MAX", 1)
    assert await one.subscribe(("$exclusive/a/#", 0), ("$exclusive/+/b", 1)) == [0x80, 0x80]
    await two.publish("a/b", b"x")
    assert await one.receives(1) == [("a/b", b"x")]
    assert await two.subscribe(("$exclusive/a/#", 1)) == TAKEN
    await soon(lambda: held(site) == 1, "the new one is given back")
    await one.disconnect()
    await two.disconnect()


async def test_mqtt_5_is_told_that_a_quota_is_exceeded(site: MqttSite) -> None:
    one = await connected(site, "one", "one")
    assert await one.subscribe(("$exclusive/a", 0)) == [0]
    client = await RawClient.dial(site.fronts["two"].mqtt.port)
    client.send(
        packets.encode_connect(packets.Connect("two", True, 0, None, None, None, 5, NO_PROPERTIES)),
        packets.encode_subscribe(
            7,
            [("$exclusive/a", 1), ("$exclusive/", 1), ("$exclusive/$share/g/a", 1), ("b", 1)],
            NO_PROPERTIES,
        ),
    )
    first, _ = await client.packet()
    assert first >> 4 == packets.CONNACK
    assert await client.packet() == (packets.SUBACK << 4, b"\0\7\0" + b"\x97\x8f\x8f\x01")
    client.send(packets.encode_unsubscribe(8, ["$exclusive/a", "b"], NO_PROPERTIES))
    assert await client.packet() == (packets.UNSUBACK << 4, b"\0\x08\0" + b"\x11\0")
    client.close()
    await one.disconnect()


async def test_it_is_free_when_the_session_ends(site: MqttSite) -> None:
    one = await connected(site, "one", "one")
    two = await connected(site, "two", "two")
    assert await one.subscribe(("$exclusive/a/#", 1)) == [1]
    await one.disconnect()
    await gets(two, [1])
    await two.drop()
    one = await connected(site, "one", "one", is_kept=True)
    await gets(one, [1])
    await one.drop()
    again = await connected(site, "one", "two")
    two = await connected(site, "two", "one")
    await gets(two, [1])
    await again.disconnect()
    await two.disconnect()
    await soon(lambda: held(site) == 0, "nobody has one")


async def test_a_kept_session_has_it_while_its_device_is_away_and_after_a_restart(site: MqttSite) -> None:
    one = await connected(site, "one", "one", is_kept=True)
    assert await one.subscribe(("$exclusive/a/#", 1), ("$exclusive/b", 0)) == [1, 0]
    await one.drop()
    two = await connected(site, "two", "two")
    assert await two.subscribe(("$exclusive/a/#", 1)) == TAKEN
    await two.drop()
    await site.restart_broker()
    for bench in site.benches:
        bench.clock.advance(START_GRACE_S + SWEEP_INTERVAL_S)
        bench.broker.expire()
    two = await connected(site, "two", "two")
    assert await two.subscribe(("$exclusive/a/#", 1), ("$exclusive/b", 1)) == [0x80, 0x80]
    await two.publish("a/x", b"1")
    await one.connect(site.fronts["two"])
    assert await one.receives(1) == [("a/x", b"1")]
    await one.unsubscribe("$exclusive/a/#")
    await gets(two, [1])
    assert await two.subscribe(("$exclusive/b", 1)) == TAKEN
    await one.disconnect()
    await two.disconnect()


async def test_a_session_that_has_lost_its_filter_is_unsubscribed_it(site: MqttSite) -> None:
    """As when another broker decides about it from now on, and has given it to somebody else."""
    one = await connected(site, "one", "one", is_kept=True)
    assert await one.subscribe(("$exclusive/a/#", 1), ("$exclusive/b", 1), ("c", 1)) == [1, 1, 1]
    await one.drop()
    for bench in site.benches:
        bench.broker.sessions.exclusives.release("one", ["a/#"])
    two = await connected(site, "two", "two")
    await gets(two, [1])
    await one.connect(site.fronts["two"])
    assert one.is_present
    await soon(lambda: site.number("iotmq_mqtt_exclusive_lost_total") == 1, "it is told")
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 3, "and has two filters left")
    await two.publish("a/x", b"not for it")
    await two.publish("c", b"for it")
    assert await one.receives(1) == [("c", b"for it")]
    assert await two.receives(1) == [("a/x", b"not for it")]
    assert await two.subscribe(("$exclusive/b", 1)) == TAKEN
    await one.disconnect()
    await two.disconnect()


async def test_an_expired_session_and_a_purged_one_give_it_back(site: MqttSite) -> None:
    two = await connected(site, "two", "two")
    for name in ("expired", "purged"):
        device = await connected(site, name, "one", is_kept=True)
        await gets(device, [1])
        await device.disconnect()
        assert await two.subscribe(("$exclusive/a/#", 1)) == TAKEN
        for bench in site.benches:
            if name == "purged":
                bench.broker.sessions.purge(name, lambda refused: None)
            else:
                bench.clock.advance(8 * 24 * 3600)
                bench.broker.expire()
        await gets(two, [1])
        await two.unsubscribe("$exclusive/a/#")
    await two.disconnect()


async def test_the_death_of_a_front_end_frees_what_its_transient_sessions_had(site: MqttSite) -> None:
    one, kept = await connected(site, "one", "one"), await connected(site, "kept", "one", is_kept=True)
    two = await connected(site, "two", "two")
    assert await one.subscribe(("$exclusive/a/#", 1)) == [1]
    assert await kept.subscribe(("$exclusive/k", 1)) == [1]
    await site.kill_front("one")
    for bench in site.benches:
        await soon(lambda bench=bench: bench.broker.sessions._actions, "the broker has noticed")  # type: ignore[misc]
        bench.clock.advance(OWNER_GRACE_S)
        bench.broker.expire()
    await gets(two, [1])
    assert await two.subscribe(("$exclusive/k", 1)) == TAKEN
    await two.disconnect()


async def test_they_can_be_switched_off(site: MqttSite) -> None:
    site.mqtt_settings["exclusive_subscriptions"] = False
    await site.start("three")
    device = await connected(site, "one", "three")
    assert await device.subscribe(("$exclusive/a", 1), ("b", 1)) == [0x80, 1]
    assert held(site) == 0
    await device.disconnect()
