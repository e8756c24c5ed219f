"""The key-value database lost or damaged while the broker was stopped: what comes back, and what does not.

Sessions, light queues, and waiting messages are made again from the log. Retained messages have
copies of their own, so of these those come back whose records the log still has.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.broker.shares.shares import REJOIN_GRACE_S
from iotmq.errors import StoreCorruptError
from iotmq.message.records.record import decode_record
from iotmq.store.kv.kv import KV_DIRECTORY
from iotmq.store.tools.rebuild import rebuild

pytestmark = pytest.mark.uvloop

BACKLOG = [b"%d" % number for number in range(30)]
FOR_THE_GROUP = b"for whoever of the group comes back"
ALL_X = [*BACKLOG, FOR_THE_GROUP]
GROUP = "$share/group/all/x"
LONG_S = 1_000_000
RETENTION_H = 1


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[MqttSite]:
    made = await open_site(
        tmp_path,
        "one",
        "two",
        in_flight_max=4,
        segment_bytes=65536,
        record_bytes_max=32768,
        allocation_step_bytes=65536,
        retention_hours=RETENTION_H,
        retention_delay_ms=0,
        delete_pause_ms=0,
        delete_files_max=1000,
    )
    yield made
    await made.close()


async def publisher(site: MqttSite) -> SessionDevice:
    device = SessionDevice("publisher")
    await device.connect(site.fronts["two"], clean_session=True)
    return device


async def fill(site: MqttSite) -> None:
    """Sessions with a backlog, half-way through QoS 2, of a group; retained, waiting and last messages."""
    sender = await publisher(site)
    names = ("keeping-up", "away", "halfway", "member")
    keeping_up, away, halfway, member = (SessionDevice(name) for name in names)
    for device, filters in (
        (keeping_up, [("dev/1/#", 1)]),
        (away, [("dev/1/#", 1), ("all/+", 2)]),
        (halfway, [("all/x", 2)]),
        (member, [(GROUP, 1)]),
    ):
        await device.connect(site.fronts["one"])
        await device.subscribe(*filters)
    await away.unsubscribe("nothing")
    await away.disconnect()
    halfway.is_acknowledging = False
    await sender.publish("dev/1/kept", b"first", is_retained=True)
    await sender.publish("dev/1/kept", b"second", is_retained=True)
    await sender.publish("all/gone", b"gone", 2, is_retained=True)
    await sender.publish("all/gone", b"", is_retained=True)
    for body in BACKLOG:
        await sender.publish("dev/1/a", body)
        await sender.publish("all/x", body, 2)
    await sender.publish(f"$delayed/{LONG_S}/dev/1/later", b"later")
    await keeping_up.receives(2 + len(BACKLOG))
    await halfway.receives(4)
    await member.receives(len(BACKLOG))
    # The broker has learned of the packet ids and of what was acknowledged.
    await soon(lambda: not any(backlog(site, "keeping-up").values()), "everything of one device is done")
    await halfway.drop()
    await keeping_up.disconnect()
    await member.disconnect()
    await soon(lambda: not state(site)["shares"][GROUP][2], "everything of the group is done")
    await sender.publish("all/x", FOR_THE_GROUP, 2)
    await sender.disconnect()
    await soon(lambda: not site.bench.broker.sessions._owners, "all devices are gone")


def state(site: MqttSite) -> dict[str, Any]:
    """What there is of everything that is kept in the database, by names that outlive it."""
    store, broker = site.bench.store, site.bench.broker
    projection = broker.sessions.projection
    sessions: dict[str, Any] = {}
    for client_id, session in projection.sessions():
        backlog = {}
        for topic_filter, subscription in session.subscriptions.items():
            cursor, _ = projection.cursor(subscription.queue_id, client_id)
            places = projection.next_entries(subscription.queue_id, cursor, entries_max=1000).entries
            backlog[topic_filter] = [body_at(site, position) for position, _ in places]
        sessions[client_id] = {
            "epoch": session.epoch,
            "owner": session.owner,
            "closed_ms": session.closed_ms,
            "expiry_s": session.expiry_s,
            "options": {name: subscription.options for name, subscription in session.subscriptions.items()},
            "received": session.received,
            "in_flight": session.in_flight,
            "done": session.done,
            "backlog": backlog,
        }
    shares = {}
    for name in projection.shares.names():
        share = projection.shares.get(name)
        assert share is not None
        places = projection.next_entries(share.queue_id, share.cursor, entries_max=1000).entries
        done = {position for position, _ in places if position < share.next_position} - set(share.undone)
        left = [body_at(site, position) for position, _ in places if position not in done]
        shares[name] = (share.since, share.kept_count, left)
    retained = broker.mqtt.retained.find("#", records_max=1000, bytes_max=1 << 20).records
    return {
        "sessions": sessions,
        "shares": shares,
        "retained": sorted(decode_record(record).body for record in retained),
        "timers": [
            (timer.due_ms, body_at(site, timer.position)) for timer in store.timers().waiting(timers_max=100)
        ],
    }


def backlog(site: MqttSite, client_id: str) -> dict[str, list[bytes]]:
    """What a session still has to get, by filter."""
    found: dict[str, list[bytes]] = state(site)["sessions"][client_id]["backlog"]
    return found


def body_at(site: MqttSite, position: int) -> bytes:
    record = site.bench.store.read_record(position)
    assert record is not None
    return bytes(decode_record(record).body)


async def stop(site: MqttSite) -> Path:
    for front in site.fronts.values():
        await front.mqtt.stop()
    await site.bench.close()
    return site.bench.directory / "data"


async def start(site: MqttSite) -> None:
    await site.bench.start()
    await site.start("one", "two")


async def check_devices(site: MqttSite) -> None:
    """Whoever comes back gets exactly what it has not had."""
    sender, away, halfway = await publisher(site), SessionDevice("away"), SessionDevice("halfway")
    await away.connect(site.fronts["two"])
    assert away.is_present
    await away.receives(len(BACKLOG) + len(ALL_X) + 4)
    assert [body for topic, body in away.got if topic == "dev/1/a"] == BACKLOG
    assert [body for topic, body in away.got if topic == "all/x"] == ALL_X
    await halfway.connect(site.fronts["one"])
    assert halfway.is_present
    await halfway.receives(len(ALL_X))
    assert [body for _, body in halfway.got] == ALL_X
    member = SessionDevice("member")
    await member.connect(site.fronts["two"])
    site.bench.clock.advance(REJOIN_GRACE_S)
    assert await member.receives(1) == [("all/x", FOR_THE_GROUP)]
    await sender.publish("all/x", b"and on", 2)
    assert (await halfway.receives(len(ALL_X) + 1))[-1] == ("all/x", b"and on")
    assert (await member.receives(2))[1:] == [("all/x", b"and on")]
    keeping_up = SessionDevice("keeping-up")
    await keeping_up.connect(site.fronts["one"])
    assert keeping_up.is_present
    await sender.publish("dev/1/a", b"next")
    assert await keeping_up.receives(1) == [("dev/1/a", b"next")]
    for device in (sender, away, halfway, member, keeping_up):
        await device.disconnect()


async def test_everything_comes_back_without_the_database(site: MqttSite) -> None:
    await fill(site)
    before = state(site)
    counts = {"sessions": 4, "shares": 1, "retained": 1, "timers": 1}
    assert {name: len(before[name]) for name in before} == counts
    shutil.rmtree(await stop(site) / KV_DIRECTORY)
    await start(site)
    assert state(site) == before
    await check_devices(site)
    assert site.bench.store.check() == []


def remove(path: Path, source: random.Random) -> None:
    path.unlink()


def empty(path: Path, source: random.Random) -> None:
    path.write_bytes(b"")


def flip(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(8 if data else 0):
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def make_random(path: Path, source: random.Random) -> None:
    path.write_bytes(source.randbytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [remove, empty, flip, make_random])
async def test_a_damaged_file_of_it_costs_nothing_that_the_log_has(
    site: MqttSite, damage: Callable[[Path, random.Random], None]
) -> None:
    await fill(site)
    before = state(site)
    directory = await stop(site)
    good = directory.with_name("good")
    shutil.copytree(directory, good)
    source = random.Random(damage.__name__)
    for name in sorted(path.name for path in (good / KV_DIRECTORY).iterdir()):
        shutil.rmtree(directory)
        shutil.copytree(good, directory)
        damage(directory / KV_DIRECTORY / name, source)
        await site.bench.start()
        try:
            found = state(site)
        except StoreCorruptError as error:
            # Met by reading: the operator is told what to do.
            text = str(error)
        else:
            text = ""
        if text:
            assert "`iotmq store rebuild`" in text
            await site.bench.close()
            rebuild(directory, site.bench.store.settings)
            await site.bench.start()
            found = state(site)
        assert found == before, name
        await site.bench.close()
    shutil.rmtree(directory)
    shutil.copytree(good, directory)
    await start(site)
    await check_devices(site)


async def test_what_retention_had_removed_stays_away_and_nothing_else(site: MqttSite) -> None:
    await fill(site)
    sender = await publisher(site)
    await pad(site)
    site.bench.clock.advance(RETENTION_H * 3600 + 1)
    # Opened again and anew behind what goes: of the first the filters are not in the log any more.
    away, fresh = SessionDevice("away"), SessionDevice("fresh")
    await away.connect(site.fronts["one"])
    await away.disconnect()
    await fresh.connect(site.fronts["one"])
    await fresh.subscribe(("dev/1/#", 1))
    await fresh.disconnect()
    await sender.publish("dev/1/kept", b"third")
    await sender.publish("dev/2/kept", b"kept, too", is_retained=True)
    await sender.disconnect()
    await delete_expired(site)
    before = state(site)
    assert sorted(before["sessions"]) == ["away", "fresh", "halfway", "keeping-up", "member"]
    assert before["retained"] == [b"kept, too", b"second"]
    directory = await stop(site)
    shutil.rmtree(directory / KV_DIRECTORY)
    shutil.rmtree(directory / "consumequeue")
    await start(site)
    found = state(site)
    assert found["sessions"] == {"fresh": before["sessions"]["fresh"]}
    assert (found["shares"], found["retained"]) == ({}, [b"kept, too"])
    assert found["timers"] == before["timers"]
    assert [body for _, body in found["timers"]] == [b"later"]
    assert site.bench.store.check() == []
    # Its device is told, and subscribes anew.
    away = SessionDevice("away")
    await away.connect(site.fronts["one"])
    assert not away.is_present
    await away.subscribe(("dev/1/#", 1))
    sender = await publisher(site)
    await sender.publish("dev/1/a", b"now")
    assert await away.receives(1) == [("dev/1/a", b"now")]
    await fresh.connect(site.fronts["two"])
    assert fresh.is_present
    assert (await fresh.receives(3))[1:] == [("dev/1/kept", b"third"), ("dev/1/a", b"now")]
    for device in (away, fresh, sender):
        await device.disconnect()


async def pad(site: MqttSite) -> None:
    """More than a file of the log."""
    for _ in range(10):
        site.bench.publish("padding", bytes(16000))


async def delete_expired(site: MqttSite) -> None:
    """Let retention have what is past its age, copies of waiting messages included."""
    await pad(site)
    store, sessions = site.bench.store, site.bench.broker.sessions
    was_position = store.min_position

    def is_deleted() -> bool:
        store.request_flush()
        store.delete_expired()
        # The sessions have been told of it, too.
        return (
            was_position < store.min_position == sessions.projection._min_position
            and not store.wanted_position
        )

    await soon(is_deleted, "the first files of the log are deleted", step_s=0.01)
