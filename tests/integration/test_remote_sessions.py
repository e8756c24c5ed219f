"""Sessions at brokers in other processes: several brokers, and brokers that go and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mqtt_site
import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from front_metrics import number_of
from mqtt_site import MqttSite, SessionDevice, open_site
from small_cluster import SmallCluster

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.sessions.ownership import OWNER_GRACE_S
from iotmq.broker.sessions.unclaimed import START_GRACE_S
from iotmq.broker.shares.shares import REJOIN_GRACE_S
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.client.admin.devices import sessions as admin_sessions
from iotmq.client.transport.settings import ClientSettings
from iotmq.commands import cli
from iotmq.commands.admin.command import run_action
from iotmq.errors import ClientError, StoreFullError
from iotmq.front_port import delivery_channel, gateway, session_gateway, session_link
from iotmq.front_port.gateway import RemoteGateway
from iotmq.front_port.session_gateway import RemoteSessions
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import iter_records
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.store.store import Store

pytestmark = pytest.mark.uvloop

HOST = encode_host("127.0.0.1", 1)


# One broker


async def restart_broker_alone(site: MqttSite, *, down: Any = None) -> None:
    """The front ends stay; `down` is done while the broker is away."""
    site.bench.settings["listen_port"] = site.bench.broker.port
    await site.bench.close()
    sessions = [front.sessions for front in site.fronts.values()]
    await soon(lambda: all(each.not_ready_reason for each in sessions), "front ends notice")  # type: ignore[attr-defined]
    if down is not None:
        await down()
    await site.bench.start()
    await soon(lambda: not any(each.not_ready_reason for each in sessions), "front ends are back")  # type: ignore[attr-defined]


async def test_a_restart_of_the_broker_leaves_devices_connected_and_loses_nothing(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True)
    device, leaving, clean = SessionDevice("d"), SessionDevice("l"), SessionDevice("c")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t/#", 1))
    await leaving.connect(site.fronts["two"], will=Will("t/will", b"never", 1, False))
    await leaving.subscribe(("t/#", 1))
    await clean.connect(site.fronts["two"], clean_session=True, will=Will("t/will", b"neither", 1, False))
    site.bench.publish("t/1", b"before")
    assert await device.receives(1) == [("t/1", b"before")]
    assert await leaving.receives(1) == [("t/1", b"before")]

    async def down() -> None:
        await leaving.disconnect()
        await clean.disconnect()

    await restart_broker_alone(site, down=down)
    assert device.is_connected
    site.bench.publish("t/1", b"after")
    assert (await device.receives(2))[1:] == [("t/1", b"after")]
    site.bench.pass_time(START_GRACE_S + OWNER_GRACE_S)
    site.bench.pass_time(1)
    await leaving.connect(site.fronts["one"])
    assert leaving.is_present
    assert ("t/1", b"after") in await leaving.receives(2)
    assert site.bench.broker.sessions.owners.wills.sent_total == 0, "they had said good-bye"
    await device.subscribe(("u", 1))
    site.bench.publish("u", b"more")
    assert (await device.receives(3))[2:] == [("u", b"more")]
    for each in (device, leaving):
        await each.drop()
    await site.close()


async def test_what_comes_while_the_connection_to_the_broker_is_away_is_read(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True)
    device = SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 1), ("+", 2))
    sessions: Any = site.fronts["one"].sessions
    for number in range(5):
        (link,) = sessions.brokers.links
        opened = link.opened_total
        link._connection.abort("test")
        site.bench.publish("t", b"%d" % number)
        await soon(lambda link=link, opened=opened: link.opened_total > opened, "the next connection")
    got = await device.receives(10)
    assert sorted(got) == sorted([("t", b"%d" % number) for number in range(5)] * 2)
    assert device.is_connected
    await device.drop()
    await site.close()


async def test_a_device_taken_over_while_its_front_end_was_cut_off_is_sent_away(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True)
    first, second = SessionDevice("d"), SessionDevice("d")
    await first.connect(site.fronts["one"])
    await first.subscribe(("t", 1))
    sessions: Any = site.fronts["one"].sessions
    (link,) = sessions.brokers.links
    address, link.address = link.address, "127.0.0.1:1"
    link._connection.abort("test")
    requests = site.bench.broker.mqtt.session_requests
    await soon(lambda: number_of(requests, "iotmq_broker_session_front_ends") == 1, "one front end only")
    await second.connect(site.fronts["two"])
    assert second.is_present
    assert first.is_connected
    link.address = address
    await soon(lambda: not first.is_connected, "the end of the first connection")
    site.bench.publish("t", b"1")
    assert await second.receives(1) == [("t", b"1")]
    assert first.got == []
    for each in (first, second):
        await each.drop()
    await site.close()


async def test_a_device_is_refused_while_its_broker_is_away_and_its_will_with_it(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True)

    async def down() -> None:
        for clean_session in (False, True):
            client = await RawClient.dial(site.fronts["one"].mqtt.port)
            will = Will("t/will", b"never", 1, False)
            client.send(connect_packet("d", clean_session=clean_session, will=will))
            assert (await client.packet())[1] == b"\x00\x03"
            client.close()

    await restart_broker_alone(site, down=down)
    await soon(lambda: site.number("iotmq_mqtt_connections") == 0, "the refused are gone")
    assert site.number("iotmq_mqtt_published_total") == 0
    device = SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.drop()
    await site.close()


async def test_a_front_end_that_reads_slowly_misses_pushes_and_nothing_else(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True, in_flight_max=1000)
    device, other = SessionDevice("d"), SessionDevice("o")
    for each, topic in ((device, "t"), (other, "o")):
        await each.connect(site.fronts["one"])
        await each.subscribe((topic, 1))
    sessions: Any = site.fronts["one"].sessions
    (link,) = sessions.brokers.links
    handler = site.bench.broker.mqtt.session_requests
    link._connection._transport.pause_reading()
    bodies = [b"%d" % number + b"x" * 60_000 for number in range(400)]
    for start in range(0, len(bodies), 20):
        site.bench.publish("t", *bodies[start : start + 20])
        await asyncio.sleep(0)
    assert handler.missed_pushes > 0
    site.bench.publish("o", b"last")
    link._connection._transport.resume_reading()
    assert [body for _, body in await device.receives(len(bodies))] == bodies
    assert await other.receives(1) == [("o", b"last")]
    site.bench.publish("t", b"pushed again")
    assert (await device.receives(len(bodies) + 1))[-1] == ("t", b"pushed again")
    for each in (device, other):
        await each.drop()
    await site.close()


async def test_connections_on_which_nothing_moves_show_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_channel, "_PING_INTERVAL_S", 0.01)
    monkeypatch.setattr(session_link, "_HEARTBEAT_S", 0.01)
    site = await open_site(tmp_path, "one", is_remote=True)
    counts = site.bench.broker.requests._counts
    for code in (RequestCode.ATTACH_FILTERS, RequestCode.INTRODUCE_FRONT_END):
        await soon(lambda code=code: counts[code] > 3, f"{code} again")
    await site.close()


# Several brokers


class Front:
    """A front end over all brokers of a cluster."""

    def __init__(self, cluster: SmallCluster, name: str) -> None:
        port = RemoteGateway(cluster.addresses)
        self.sessions = RemoteSessions(port, name=name)
        settings = MqttSettings(listen_port=0, default_topic="T", retry_interval_s=0.05)
        self.mqtt = MqttFront(settings, port, sessions=self.sessions)


@asynccontextmanager
async def fronts(cluster: SmallCluster, *names: str) -> AsyncIterator[list[Front]]:
    made = [Front(cluster, name) for name in names]
    for front in made:
        await front.mqtt.start()
    try:
        yield made
    finally:
        for front in made:
            await front.mqtt.stop()


def publish(broker: Broker, mqtt_topic: str, *bodies: bytes) -> None:
    """Store messages at one broker."""
    elements = b"".join(
        encode_element(body, b"MQTT_TOPIC\x01%s\x02" % mqtt_topic.encode(), 0) for body in bodies
    )
    results: list[Any] = []
    broker.topics.ensure("T", queues=1)
    broker.writer.append("T", 0, elements, born_timestamp_ms=1, born_host=HOST, done=results.append)
    assert [result.status for result in results] == [0]


async def stop_broker(cluster: SmallCluster, number: int) -> None:
    await cluster.brokers[number].stop()
    cluster.stores[number].close()


async def start_broker(cluster: SmallCluster, number: int) -> None:
    """The same broker again, on its port."""
    settings = cluster.brokers[number].parts.settings
    directory = cluster.directory / f"broker-{number}"
    store = Store.open(directory, cluster.stores[number].settings, store_host=resolve_store_host(settings))
    cluster.stores[number] = store
    cluster.brokers[number] = broker = Broker(settings, store, directory=directory)
    await broker.start()


def client_of(front: Front, number: int, *, start: int = 0) -> str:
    """A client id whose home is broker `number`."""
    for suffix in range(start, 100):
        home = front.sessions.brokers.chosen_for(f"d{suffix}")
        if home is not None and home.broker_name == f"broker-{number}":
            return f"d{suffix}"
    raise AssertionError("no such client id")


async def test_a_session_has_what_any_broker_has_for_it_on_any_front_end(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one", "two") as (one, two):
        for number in (0, 1):
            name = client_of(one, number)
            assert client_of(two, number) == name, "all agree about homes"
            device = SessionDevice(name)
            topic = f"t/{name}"
            await device.connect(one)
            await device.subscribe((f"{topic}/#", 2), (f"{topic}/+", 1))
            await device.unsubscribe(f"{topic}/+")
            for broker in cluster.brokers:
                publish(broker, f"{topic}/{broker.parts.settings.name}", b"1", b"2")
            assert len(await device.receives(4)) == 4
            await device.disconnect()
            for broker in cluster.brokers:
                publish(broker, f"{topic}/{broker.parts.settings.name}", b"3", b"4")
            await device.connect(two)
            assert device.is_present
            await device.receives(8)
            for broker in cluster.brokers:
                bodies = [body for at, body in device.got if at.endswith(broker.parts.settings.name)]
                assert bodies == [b"1", b"2", b"3", b"4"]
            sender = SessionDevice("sender")
            await sender.connect(one, clean_session=True)
            for count in range(20):
                await sender.publish(f"{topic}/{count}", b"x", 2)
            await device.receives(28)
            assert len(device.got) == 28
            other = SessionDevice(name)
            await other.connect(one)
            await soon(lambda device=device: not device.is_connected, "the takeover")
            assert other.is_present
            await other.connect(two, clean_session=True)
            await other.connect(one)
            assert not other.is_present
            publish(cluster.brokers[1 - number], f"{topic}/x", b"unwanted")
            await other.subscribe((f"{topic}/y", 1))
            publish(cluster.brokers[1 - number], f"{topic}/y", b"wanted")
            assert await other.receives(1) == [(f"{topic}/y", b"wanted")]
            for each in (device, sender, other):
                await each.drop()


async def test_sessions_go_on_without_a_broker_and_have_all_of_it_when_it_is_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one") as (front,):
        here, there = SessionDevice(client_of(front, 0)), SessionDevice(client_of(front, 1))
        for device in (here, there):
            await device.connect(front)
            await device.subscribe(("t", 1))
        publish(cluster.brokers[1], "t", b"1")
        for device in (here, there):
            await device.receives(1)
        await here.disconnect()
        publish(cluster.brokers[1], "t", b"2")
        await stop_broker(cluster, 1)
        await soon(lambda: front.sessions.not_ready_reason, "the front end notices")
        await here.connect(front)
        assert here.is_present
        await here.subscribe(("u", 1))
        publish(cluster.brokers[0], "u", b"3")
        publish(cluster.brokers[0], "t", b"4")
        await here.receives(3)
        await there.receives(3)
        assert there.is_connected, "its home is away"
        refused = client_of(front, 1, start=1 + int(there.client_id[1:]))
        client = await RawClient.dial(front.mqtt.port)
        client.send(connect_packet(refused, clean_session=False))
        assert (await client.packet())[1] == b"\x00\x03"
        client.close()
        await start_broker(cluster, 1)
        await soon(lambda: not here.is_connected, "it is asked to come anew")
        await here.connect(front)
        publish(cluster.brokers[1], "u", b"5")
        wanted = {("t", b"1"), ("t", b"2"), ("t", b"4"), ("u", b"3"), ("u", b"5")}
        # What the broker was not told of before it went may come twice.
        await soon(lambda: set(here.got) == wanted, "all messages")
        for device in (here, there):
            await device.drop()


@pytest.mark.parametrize(
    "comes_anew", ["once it is back", "while it is away", "before it leaves the filters", "never"]
)
async def test_what_was_unsubscribed_while_a_broker_was_away_stays_so(
    tmp_path: Path, comes_anew: str
) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one") as (front,):
        device = SessionDevice(client_of(front, 0))
        await device.connect(front)
        await device.subscribe(("t", 1), ("u", 1), ("v", 1))
        await stop_broker(cluster, 1)
        await soon(lambda: front.sessions.not_ready_reason, "the front end notices")
        if comes_anew == "before it leaves the filters":
            await device.disconnect()
            await device.connect(front)
            assert device.is_present
        await device.unsubscribe("t", "v", "never")
        if comes_anew == "while it is away":
            await device.disconnect()
            await device.connect(front)
            assert device.is_present
        (_, away) = sorted(front.sessions.brokers.links, key=lambda link: link.broker_name)
        [(_, given_up)] = away._given_up.values()
        assert given_up == {"t", "v"}, "no more than the session has"
        await start_broker(cluster, 1)
        await soon(lambda: not front.sessions.not_ready_reason, "the broker is back")
        assert not away._given_up
        if comes_anew in ("while it is away", "before it leaves the filters"):
            await soon(lambda: not device.is_connected, "it is asked to come anew")
        if comes_anew == "once it is back":
            await device.disconnect()
        if comes_anew != "never":
            await device.connect(front)
            assert device.is_present
        assert device.is_connected
        for broker in cluster.brokers:
            publish(broker, "t", b"unwanted")
            publish(broker, "u", b"wanted")
        assert await device.receives(2) == [("u", b"wanted")] * 2
        await device.subscribe(("v", 1))
        publish(cluster.brokers[1], "v", b"wanted again")
        assert (await device.receives(3))[2:] == [("v", b"wanted again")]
        assert len(cluster.brokers[1].sessions.projection.session(device.client_id).subscriptions) == 2
        await device.drop()


async def test_a_filter_that_was_left_and_wanted_again_while_a_broker_was_away_has_its_messages(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one") as (front,):
        device = SessionDevice(client_of(front, 0))
        await device.connect(front)
        await device.subscribe(("t", 1))
        await stop_broker(cluster, 1)
        await soon(lambda: front.sessions.not_ready_reason, "the front end notices")
        await device.unsubscribe("t")
        await device.subscribe(("t", 1))
        await start_broker(cluster, 1)
        await soon(lambda: not device.is_connected, "it is asked to come anew")
        await device.connect(front)
        assert device.is_present
        publish(cluster.brokers[1], "t", b"1")
        assert await device.receives(1) == [("t", b"1")]
        await device.drop()


async def test_messages_of_qos_2_go_on_without_a_broker(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one") as (front,):
        client = await RawClient.connect(front.mqtt.port, client_of(front, 0), clean_session=False)
        assert await client.subscribe(("t", 2)) == [2]

        def publish_of(first: int, body: bytes) -> tuple[bytes, int]:
            assert first == packets.PUBLISH << 4 | 4
            return body[5:], int.from_bytes(body[3:5], "big")

        publish(cluster.brokers[1], "t", b"1")
        payload, first_id = publish_of(*await client.packet())
        assert payload == b"1"
        await stop_broker(cluster, 1)
        await soon(lambda: front.sessions.not_ready_reason, "the front end notices")
        # The broker that has it is to know that before it is released.
        client.send(packets.encode_acknowledgement(packets.PUBREC, first_id))
        for payload in (b"2", b"3"):
            publish(cluster.brokers[0], "t", payload)
            found, packet_id = publish_of(*await client.packet())
            assert (found, packet_id != first_id) == (payload, True)
            client.send(packets.encode_acknowledgement(packets.PUBREC, packet_id))
            assert await client.packet() == (packets.PUBREL << 4 | 2, packet_id.to_bytes(2, "big"))
            client.send(packets.encode_acknowledgement(packets.PUBCOMP, packet_id))
        await start_broker(cluster, 1)
        assert await client.packet() == (packets.PUBREL << 4 | 2, first_id.to_bytes(2, "big"))
        client.send(packets.encode_acknowledgement(packets.PUBCOMP, first_id))
        publish(cluster.brokers[1], "t", b"4")
        assert publish_of(*await client.packet())[0] == b"4"
        client.close()


async def test_a_session_that_a_broker_could_not_open_has_its_messages_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_gateway, "_ASK_AGAIN_S", 0.05)
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one") as (front,):
        device = SessionDevice(client_of(front, 0))
        await device.connect(front)
        await device.subscribe(("t", 1))
        await device.disconnect()
        key_values = cluster.stores[1].key_values()

        def refuse() -> None:
            raise StoreFullError("No space left")

        with monkeypatch.context() as patch:
            patch.setattr(key_values, "_open", refuse)
            with pytest.raises(StoreFullError):
                key_values.reopen()
            await device.connect(front)
            assert device.is_present
        key_values.reopen()
        publish(cluster.brokers[1], "t", b"1")
        await soon(lambda: not device.is_connected, "it is asked to come anew")
        await device.connect(front)
        await device.receives(1)
        await device.drop()


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "away when the front end starts"])
async def test_packet_ids_that_a_broker_knows_which_is_away_are_not_used_for_other_messages(
    tmp_path: Path, is_new: bool
) -> None:
    async with (
        SmallCluster(tmp_path, registries=1) as cluster,
        fronts(cluster, "one") as (front,),
        AsyncExitStack() as later,
    ):
        name = client_of(front, 0)
        client = await RawClient.connect(front.mqtt.port, name, clean_session=False)
        assert await client.subscribe(("t", 2)) == [2]
        taken = set()
        for payload in (b"1", b"2"):
            publish(cluster.brokers[1], "t", payload)
            first, body = await client.packet()
            assert (first, body[5:]) == (packets.PUBLISH << 4 | 4, payload)
            taken.add(body[3:5])
        # Its PUBRECs are lost with the connection, so it has both of them still.
        client.send(packets.DISCONNECT_PACKET)
        await client.rest()
        await stop_broker(cluster, 1)
        await soon(lambda: front.sessions.not_ready_reason, "the front end notices")
        if is_new:
            [front] = await later.enter_async_context(fronts(cluster, "two"))
            assert len(front.sessions.brokers.links) == 1
        client = await RawClient.dial(front.mqtt.port)
        client.send(connect_packet(name, clean_session=False))
        assert await client.packet() == (packets.CONNACK << 4, b"\1\0")
        for payload in (b"3", b"4"):
            publish(cluster.brokers[0], "t", payload)
            first, body = await client.packet()
            assert (first, body[5:]) == (packets.PUBLISH << 4 | 4, payload)
            assert body[3:5] not in taken, "the device takes it for another one"
        client.close()
        await start_broker(cluster, 1)


def stored_bodies(cluster: SmallCluster, number: int) -> list[bytes]:
    """What one broker has of the topic of devices."""
    store = cluster.stores[number]
    found: list[bytes] = []
    for queue in store.queues():
        if queue.topic == "T":
            views = store.read(queue, queue.min_offset, records_max=1000, bytes_max=1 << 20).views
            found += [record.body for record in iter_records(b"".join(views))]
    return found


async def test_a_broker_that_learns_of_a_session_keeps_what_it_has_of_its_packet_ids(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one") as (front,):
        sender = SessionDevice("sender")
        await sender.connect(front, clean_session=True)
        count = 0
        while not stored_bodies(cluster, 1):
            count += 1
            await sender.publish(f"t/{count}", b"probe", 1)
        await sender.disconnect()
        name = client_of(front, 0)
        await stop_broker(cluster, 1)
        await soon(lambda: front.sessions.not_ready_reason, "the front end notices")
        client = await RawClient.connect(front.mqtt.port, name, clean_session=False)
        client.send(packets.encode_publish(f"t/{count}", b"once", qos=2, packet_id=7))
        await client.ping()
        await start_broker(cluster, 1)
        await client.rest()
        await soon(lambda: b"once" in stored_bodies(cluster, 1), "the message is stored")
        # Whatever came on the connection that has ended did not reach the device.
        client = await RawClient.dial(front.mqtt.port)
        client.send(connect_packet(name, clean_session=False))
        assert await client.packet() == (packets.CONNACK << 4, b"\1\0")
        client.send(packets.encode_publish(f"t/{count}", b"once", qos=2, packet_id=7, dup=True))
        assert await client.packet() == (packets.PUBREC << 4, b"\0\7")
        assert stored_bodies(cluster, 1).count(b"once") == 1
        client.close()


async def test_retained_messages_come_from_all_brokers(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one", "two") as (one, two):
        sender, device = SessionDevice("s"), SessionDevice("d")
        await sender.connect(one, clean_session=True)
        for number in range(100):
            await sender.publish(f"r/{number}", b"%d" % number, is_retained=True)
        counts = [broker.mqtt.retained.count for broker in cluster.brokers]
        assert min(counts) > 0
        assert sum(counts) == 100
        await device.connect(two, clean_session=True)
        await device.subscribe(("r/+", 1))
        got = await device.receives(100)
        assert sorted(got) == sorted((f"r/{number}", b"%d" % number) for number in range(100))
        assert device.retained == 100
        for each in (sender, device):
            await each.drop()


# Shared subscriptions

SHARE = "$share/g/t/#"


@pytest.mark.parametrize("is_kept", [True, False])
async def test_members_go_on_with_what_they_hold_when_the_broker_was_away(
    tmp_path: Path, is_kept: bool
) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True)
    here, there = SessionDevice("here"), SessionDevice("there")
    for device, name in ((here, "one"), (there, "two")):
        await device.connect(site.fronts[name], clean_session=not is_kept)
        assert await device.subscribe((SHARE, 1)) == [1]
        device.is_acknowledging = False
    site.bench.publish("t/1", *(b"%d" % number for number in range(10)))
    await soon(lambda: len(here.got) + len(there.got) == 10, "all are handed out")
    here.acknowledge(2)
    await restart_broker_alone(site)
    shares = site.bench.broker.sessions.shares
    await soon(lambda: len(shares.view(SHARE).members) == 2, "both are members again")
    site.bench.pass_time(REJOIN_GRACE_S)
    await soon(lambda: shares.view(SHARE).behind == 8, "two are done")
    assert len(here.got) + len(there.got) == 10, "what members hold was handed out again"
    for device in (here, there):
        device.is_acknowledging = True
        device.acknowledge()
    site.bench.publish("t/2", *(b"%d" % number for number in range(10, 20)))
    await soon(lambda: shares.view(SHARE).behind == 0, "all are done")
    got = sorted(int(body) for device in (here, there) for _, body in device.got)
    assert got == list(range(20))
    for device in (here, there):
        await device.drop()
    await site.close()


async def test_what_was_handed_out_over_a_lost_connection_is_handed_out_again(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True)
    device = SessionDevice("d")
    await device.connect(site.fronts["one"], clean_session=True)
    await device.subscribe((SHARE, 1))
    sessions: Any = site.fronts["one"].sessions
    for number in range(5):
        (link,) = sessions.brokers.links
        opened = link.opened_total
        site.bench.publish("t/1", b"%d" % number)
        await asyncio.sleep(0)
        link._connection.abort("test")
        await soon(lambda link=link, opened=opened: link.opened_total > opened, "the next connection")
    await soon(lambda: {int(body) for _, body in device.got} == set(range(5)), "all messages")
    shares = site.bench.broker.sessions.shares
    await soon(lambda: shares.view(SHARE).behind == 0, "all are done")
    await device.drop()
    await site.close()


async def test_every_broker_hands_out_what_is_in_its_log_and_operators_see_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one", "two") as (one, two):

        async def sessions(*words: str) -> Any:
            options = cli.parser().parse_args(["sessions", *words, "--json"])
            assert await run_action(options, cluster.addresses) == 0
            return json.loads(capsys.readouterr().out)

        assert await sessions("shared") == []
        clean, kept, away = SessionDevice("clean"), SessionDevice("kept"), SessionDevice("away")
        await clean.connect(one, clean_session=True)
        await kept.connect(two)
        await away.connect(two)
        for device in (clean, kept, away):
            device.is_acknowledging = False
            assert await device.subscribe((SHARE, 1)) == [1]
        await away.drop()
        await soon(lambda: cluster.brokers[0].sessions.owners.front_end_of("away") is None, "it is gone")
        await soon(lambda: cluster.brokers[1].sessions.owners.front_end_of("away") is None, "it is gone")
        for number, broker in enumerate(cluster.brokers):
            publish(broker, "t/x", *(b"%d" % count for count in range(10 * number, 10 * number + 10)))
        await soon(lambda: len(clean.got) + len(kept.got) == 20, "all are handed out")
        rows = await sessions("shared")
        assert [(row["broker"], row["client_id"], row["front_end"]) for row in rows] == [
            (broker, *member)
            for broker in ("broker-0", "broker-1")
            for member in (("clean", "one"), ("kept", "two"))
        ]
        assert {(row["share"], row["kept"], row["behind"], row["in_flight"]) for row in rows} == {
            (SHARE, 2, 10, 5)
        }
        assert {(row["filter"], row["behind"]) for row in await sessions("show", "kept")} == {(SHARE, 10)}
        for device in (clean, kept):
            device.acknowledge()
        for broker in cluster.brokers:
            shares = broker.sessions.shares
            await soon(lambda shares=shares: shares.view(SHARE).behind == 0, "all are done")
        for device in (clean, kept):
            await device.drop()
        await soon(lambda: not cluster.brokers[0].sessions.shares.view(SHARE).members, "nobody is there")
        publish(cluster.brokers[0], "t/x", b"later")
        rows = await sessions("shared")
        assert [(row["members"], row["behind"]) for row in rows] == [(0, 1), (0, 0)]


# Operators


async def test_operators_list_show_disconnect_and_end_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one", "two") as (one, two):

        async def sessions(*words: str) -> Any:
            options = cli.parser().parse_args(["sessions", *words])
            assert await run_action(options, cluster.addresses) == 0
            out = capsys.readouterr().out
            return json.loads(out) if "--json" in words else out

        assert await sessions("list") == "no session is kept\n"
        with pytest.raises(ClientError, match="no broker has a session of client"):
            await sessions("show", "d")
        devices = [SessionDevice(f"d{number}") for number in range(3)]
        for device, front in zip(devices, (one, two, two), strict=True):
            await device.connect(front, will=Will("w", b"gone", 1, False))
            await device.subscribe(("t/#", 1), (f"{device.client_id}/+", 2))
        await devices[2].disconnect()
        publish(cluster.brokers[0], "t/x", b"1", b"2")
        publish(cluster.brokers[1], "t/x", b"3")
        found = await sessions("list", "--json")
        assert [row["client_id"] for row in found] == ["d0", "d1", "d2"]
        assert [row["front_end"] for row in found] == ["one", "two", ""]
        assert [row["filters"] for row in found] == [2, 2, 2]
        assert found[2]["left_ms"] > 0
        assert found[2]["expires_ms"] > found[2]["left_ms"]
        assert [row["client_id"] for row in await sessions("list", "--json", "--prefix", "d1")] == ["d1"]
        assert len(await sessions("list", "--json", "--count", "2")) == 2
        rows = await sessions("show", "d2", "--json")
        behind = {(row["broker"], row["filter"]): row["behind"] for row in rows}
        assert behind == {
            ("broker-0", "t/#"): 2,
            ("broker-1", "t/#"): 1,
            ("broker-0", "d2/+"): 0,
            ("broker-1", "d2/+"): 0,
        }
        assert "broker-0" in await sessions("show", "d2")
        assert "disconnected" in await sessions("kick", "d0")
        await soon(lambda: not devices[0].is_connected, "d0 is sent away")
        await soon(lambda: cluster.brokers[0].sessions.owners.front_end_of("d0") is None, "it is closed")
        await soon(lambda: cluster.brokers[1].sessions.owners.front_end_of("d0") is None, "it is closed")
        with pytest.raises(ClientError, match="is not connected"):
            await sessions("kick", "d0")
        assert (await sessions("purge", "d1", "--json"))["brokers"] == ["broker-0", "broker-1"]
        await soon(lambda: not devices[1].is_connected, "d1 is sent away")
        assert "has ended" in await sessions("purge", "d2")
        assert [row["client_id"] for row in await sessions("list", "--json")] == ["d0"]
        await devices[2].connect(one)
        assert not devices[2].is_present
        clean = SessionDevice("clean")
        await clean.connect(two, clean_session=True)
        (row, *_) = await sessions("show", "clean", "--json")
        assert (row["front_end"], row["is_kept"]) == ("two", False)
        for device in (*devices, clean):
            await device.drop()


async def test_sessions_are_listed_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_sessions, "_PAGE", 3)
    async with SmallCluster(tmp_path, registries=1) as cluster, fronts(cluster, "one") as (one,):
        names = sorted(["p", "q", *(f"p{number}" for number in range(8))])
        devices = [SessionDevice(name) for name in names]
        for device in devices:
            await device.connect(one)
        async with cluster.client() as client:
            view = admin_sessions.SessionAdmin(client)
            assert [found.client_id async for found in view.kept()] == names
            assert [found.client_id async for found in view.kept(prefix="p")] == names[:-1]
            assert [found.client_id async for found in view.kept(prefix="p7")] == ["p7"]
            address = (await admin_sessions.master_addresses(client))["broker-0"]
            for count, code in (("1024", 0), ("1025", 1), ("0", 1)):
                request = Command.request(RequestCode.LIST_SESSIONS, {"maxNums": count})
                assert (await client.request(address, request)).code == code
        for device in devices:
            await device.drop()


async def test_clean_sessions_miss_nothing_when_one_of_two_brokers_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it stores before its front ends are back comes too, though meanwhile nobody named it."""
    monkeypatch.setattr(gateway, "_REFRESH_S", 0.05)
    quick = partial(RemoteGateway, settings=ClientSettings(route_refresh_ms=100))
    monkeypatch.setattr(mqtt_site, "RemoteGateway", quick)
    site = await open_site(tmp_path, is_remote=True, brokers=2)
    try:
        device = SessionDevice("device")
        await device.connect(site.fronts["one"], clean_session=True)
        assert await device.subscribe(("t/#", 1)) == [1]
        remote = site.fronts["one"].gateway
        assert isinstance(remote, RemoteGateway)
        for number, bench in enumerate(site.benches):
            bench.publish("t/before", b"%d" % number)
            await device.receives(2 * number + 1)
            both = remote.masters
            bench.settings["listen_port"] = bench.broker.port
            await bench.close()
            await soon(lambda both=both: remote.masters != both, "nobody names the broker")
            await bench.start()
            # Before anybody has come back.
            bench.publish("t/after", b"%d" % number)
            assert (await device.receives(2 * number + 2))[-1] == ("t/after", b"%d" % number)
            await soon(lambda both=both: remote.masters == both, "the broker is named again")
        assert len(device.got) == 4
        await device.disconnect()
    finally:
        await site.close()
