"""Shared subscriptions over front ends: each message to one member, to another when that one is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq import limits
from iotmq.broker.shares.shares import REJOIN_GRACE_S

pytestmark = pytest.mark.uvloop

SHARE = "$share/g/t/#"


@pytest.fixture(params=["one process", "front ends of their own"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    is_remote = request.param != "one process"
    site = await open_site(tmp_path, "one", "two", is_remote=is_remote)
    yield site
    await site.close()


async def member(
    site: MqttSite,
    client_id: str,
    front: str = "one",
    *,
    clean: bool = True,
    qos: int = 1,
    share: str = SHARE,
) -> SessionDevice:
    device = SessionDevice(client_id)
    await device.connect(site.fronts[front], clean_session=clean)
    assert await device.subscribe((share, qos)) == [qos]
    return device


async def publisher(site: MqttSite) -> SessionDevice:
    device = SessionDevice("publisher")
    await device.connect(site.fronts["one"], clean_session=True)
    return device


async def publish(device: SessionDevice, count: int, *, start: int = 0, qos: int = 1) -> list[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    for body in bodies:
        await device.publish(f"t/{int(body) % 3}", body, qos)
    return bodies


def got(*devices: SessionDevice) -> Counter[bytes]:
    return Counter(body for device in devices for _, body in device.got)


async def all_came(wanted: list[bytes], *devices: SessionDevice) -> None:
    await soon(lambda: set(wanted) <= set(got(*devices)), "all messages at some member")


def undone(site: MqttSite, share: str = SHARE) -> int:
    shares = site.bench.broker.sessions.shares
    return shares.view(share).behind


async def test_each_message_goes_to_one_member_and_all_get_some(site: MqttSite) -> None:
    members = [await member(site, f"m{number}", ("one", "two")[number % 2]) for number in range(4)]
    bodies = await publish(await publisher(site), 40)
    await all_came(bodies, *members)
    assert got(*members) == Counter(bodies)
    assert {len(device.got) for device in members} == {10}, "not one after the other"
    await soon(lambda: undone(site) == 0, "the group to be done")


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_each_qos_is_done_when_its_exchange_is(site: MqttSite, qos: int) -> None:
    one = await member(site, "one", qos=qos)
    sender = await publisher(site)
    bodies = await publish(sender, 20, qos=qos)
    await all_came(bodies, one)
    assert got(one) == Counter(bodies)
    await soon(lambda: undone(site) == 0, "the group to be done")


async def test_what_a_lost_member_held_goes_to_another(site: MqttSite) -> None:
    lost, kept = await member(site, "lost", "two"), await member(site, "kept")
    lost.is_acknowledging = False
    bodies = await publish(await publisher(site), 20)
    await soon(lambda: len(got(lost, kept)) == 20, "all messages handed out")
    assert lost.got
    await lost.drop()
    await all_came(bodies, kept)
    assert got(kept) == Counter(bodies)


async def test_a_slow_member_is_passed_over_and_its_messages_taken_back(site: MqttSite) -> None:
    slow, kept = await member(site, "slow", "two"), await member(site, "kept")
    slow.is_acknowledging = False
    sender = await publisher(site)
    bodies = await publish(sender, 40)
    await soon(lambda: len(got(slow, kept)) == 36, "what fits the slow member's window of 16")
    # Else both are late when time passes.
    await soon(lambda: undone(site) == 20, "the broker to hear what the other one has done")
    site.bench.pass_time(31)
    await all_came(bodies, kept)
    more = await publish(sender, 20, start=40)
    await all_came(more, kept)
    assert not set(more) & set(got(slow)), "a slow member was given more"
    slow.acknowledge()
    await soon(lambda: undone(site) == 0, "the group to be done")


async def test_a_kept_session_keeps_the_backlog_while_all_are_offline(site: MqttSite) -> None:
    first = await member(site, "first", clean=False)
    await first.drop()
    sender = await publisher(site)
    bodies = await publish(sender, 30)
    assert undone(site) == 30
    await first.connect(site.fronts["two"])
    assert first.is_present
    await all_came(bodies, first)
    assert got(first) == Counter(bodies)
    await first.unsubscribe(SHARE)
    await publish(sender, 3, start=30)
    site.bench.pass_time(20)
    await soon(lambda: not len(site.bench.broker.sessions.projection.shares), "the group to end")


async def test_a_group_of_transient_members_lives_as_long_as_it_has_some(site: MqttSite) -> None:
    one, two = await member(site, "one"), await member(site, "two", "two")
    sender = await publisher(site)
    await one.disconnect()
    bodies = await publish(sender, 5)
    await all_came(bodies, two)
    await two.disconnect()
    projection = site.bench.broker.sessions.projection
    await soon(lambda: not len(projection.shares), "the group to end")
    await soon(lambda: not len(projection.queues), "its queue to end")
    await publish(sender, 5, start=5)
    again = await member(site, "again")
    last = await publish(sender, 5, start=10)
    await all_came(last, again)
    assert got(again) == Counter(last)


async def test_a_broker_that_starts_again_goes_on_where_the_group_was(site: MqttSite) -> None:
    kept = await member(site, "kept", clean=False)
    kept.is_acknowledging = False
    sender = await publisher(site)
    bodies = await publish(sender, 10)
    await kept.receives(10)
    kept.acknowledge(5)
    await soon(lambda: undone(site) == 5, "five to be done")
    for device in (kept, sender):
        await device.drop()
    await site.restart_broker()
    assert undone(site) == 5
    kept.got.clear()
    kept.is_acknowledging = True
    await kept.connect(site.fronts["one"])
    site.bench.pass_time(REJOIN_GRACE_S)
    await kept.receives(5)
    assert got(kept) == Counter(bodies[5:])
    await soon(lambda: undone(site) == 0, "the group to be done")


async def test_a_killed_front_end_loses_nothing(site: MqttSite) -> None:
    here, there = await member(site, "here"), await member(site, "there", "two")
    there.is_acknowledging = False
    sender = await publisher(site)
    bodies = await publish(sender, 20)
    await soon(lambda: len(got(here, there)) == 20, "all messages handed out")
    await site.kill_front("two")
    await there.drop()
    site.bench.pass_time(3)
    await all_came(bodies, here)


async def test_shared_filters_get_nothing_retained_and_malformed_ones_are_refused(site: MqttSite) -> None:
    sender = await publisher(site)
    await sender.publish("t/1", b"kept", is_retained=True)
    device = SessionDevice("device")
    await device.connect(site.fronts["one"], clean_session=True)
    codes = await device.subscribe(
        ("$share/g/t/+", 1), ("$share/g", 1), ("$share//t", 1), ("$share/+/t", 0), ("t/1", 1)
    )
    assert codes == [1, 0x80, 0x80, 0x80, 1]
    assert await device.receives(1) == [("t/1", b"kept")]
    assert device.retained == 1
    kept = SessionDevice("kept")
    await kept.connect(site.fronts["one"])
    assert await kept.subscribe(("$share/a/b", 1), ("$share/", 1)) == [1, 0x80]
    assert await kept.subscribe(("$share/x", 1)) == [0x80]


async def test_a_session_takes_part_in_as_many_groups_as_it_may(site: MqttSite) -> None:
    device = SessionDevice("m")
    await device.connect(site.fronts["one"], clean_session=True)
    shares = [(f"$share/g{number}/t/#", 1) for number in range(limits.MQTT_SHARES_PER_SESSION_MAX + 1)]
    assert await device.subscribe(*shares[:-2]) == [1] * (limits.MQTT_SHARES_PER_SESSION_MAX - 1)
    assert await device.subscribe(*shares[-2:]) == [0x80] * 2, "one of them is too many"
    assert await device.subscribe(shares[-2]) == [1]
    assert await device.subscribe(shares[0]) == [1], "it has that one already"
    assert await device.subscribe(shares[-1]) == [0x80]
    assert await device.subscribe(("t/#", 1)) == [1], "others are not counted"


async def test_unsubscribing_ends_the_membership(site: MqttSite) -> None:
    one, two = await member(site, "one"), await member(site, "two", "two", clean=False)
    sender = await publisher(site)
    await one.unsubscribe(SHARE)
    bodies = await publish(sender, 10)
    await all_came(bodies, two)
    assert not one.got
    await two.unsubscribe(SHARE)
    await publish(sender, 3, start=10)
    assert got(two) == Counter(bodies)
