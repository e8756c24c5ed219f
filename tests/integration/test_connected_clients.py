"""Connected clients over front ends: listed, shown, disconnected; their subscriptions; who was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq import limits
from iotmq.client.admin.devices.clients import ClientAdmin, Kicked, SubscriptionsPage
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import BrokerError, ClientError
from iotmq.ports.client_pages import (
    ClientFilter,
    ClientsQuestion,
    KickQuestion,
    QueueQuestion,
    RefusedQuestion,
)
from iotmq.ports.inspections import KICK

pytestmark = pytest.mark.uvloop


def client_of(site: MqttSite) -> ClientTransport:
    assert site.registry is not None
    return ClientTransport(ClientSettings(registries=(f"127.0.0.1:{site.registry.port}",)))


def device_of(site: MqttSite, client_id: str) -> Any:
    return site.fronts["one"].mqtt.parts.sessions.connected(client_id)


async def connected(site: MqttSite, *names: str) -> list[SessionDevice]:
    """Connect devices to front ends in turn, every other one with a kept session."""
    fronts = list(site.fronts.values())
    devices = [SessionDevice(name) for name in names]
    for number, device in enumerate(devices):
        await device.connect(fronts[number % len(fronts)], clean_session=number % 2 == 1)
    return devices


async def test_pages_go_over_all_front_ends(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True, brokers=2)
    names = [f"d/{number}" for number in range(7)]
    devices = await connected(site, *names)
    await devices[3].subscribe(("a/+", 1))
    await devices[3].subscribe(("b", 0))
    await devices[5].subscribe(("a/+", 1))
    async with client_of(site) as client:
        admin = ClientAdmin(client)
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await admin.page(limit=2, cursor=cursor)
            assert (page.matched, page.connected, page.problems) == (7, 7, {})
            seen += [row.client_id for row in page.rows]
            cursor = page.next_cursor
        assert seen == names

        ordered: list[str] = []
        cursor = ""
        while cursor is not None:
            page = await admin.page(sort_by="subscriptions", is_descending=True, limit=3, cursor=cursor)
            ordered += [row.client_id for row in page.rows]
            cursor = page.next_cursor
        assert ordered == ["d/3", "d/5", "d/6", "d/4", "d/2", "d/1", "d/0"]
        (row,) = (await admin.page(ClientFilter(client_id="d/3"))).rows
        assert (row.front_end, row.listener, row.address, row.version) == ("two", "tcp", "127.0.0.1", "3.1.1")
        assert (row.subscriptions, row.is_kept, row.keep_alive_s) == (2, False, 0)
        assert row.connected_ms > 0

        kept = await admin.page(ClientFilter(is_kept=True))
        assert [each.client_id for each in kept.rows] == ["d/0", "d/2", "d/4", "d/6"]
        assert (kept.matched, kept.connected) == (4, 7)
        with pytest.raises(ClientError, match="not sorted by 'size'"):
            await admin.page(sort_by="size")
        first = await admin.page(limit=2)
        assert first.next_cursor is not None
        for wrong in ("x", first.next_cursor):
            with pytest.raises(ClientError, match="none of this list"):
                await admin.page(sort_by="dropped", cursor=wrong)

        detail = await admin.show("d/3")
        assert detail is not None
        assert [(each.topic_filter, each.qos) for each in detail.subscriptions] == [("a/+", 1), ("b", 0)]
        assert (detail.row.front_end, detail.is_bridge, detail.is_resumed) == ("two", False, False)
        assert await admin.show("nobody") is None
    for device in devices:
        await device.disconnect()
    await site.close()


async def test_what_passes_is_counted_for_each_connection(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True)
    publisher, subscriber = await connected(site, "from", "to")
    subscriber.is_acknowledging = False
    await subscriber.subscribe(("t", 1))
    for number in range(3):
        await publisher.publish("t", b"%d" % number, qos=1)
    await soon(lambda: len(subscriber.unanswered) == 3, "it has them")
    async with client_of(site) as client:
        admin = ClientAdmin(client)
        (source, target) = (await admin.page()).rows
        assert (source.messages_received, source.messages_sent, source.in_flight) == (3, 0, 0)
        assert (target.messages_received, target.messages_sent, target.in_flight) == (0, 3, 3)
        assert source.bytes_received > 3 * 5
        assert target.bytes_sent > 3 * 5
        assert source.messages_received_per_s > 0
        assert target.messages_sent_per_s > 0
        assert source.latency_ms == 0
        overdue = target.latency_ms
        assert overdue > 0
        (slow,) = (await admin.slow()).rows
        assert slow.client_id == "to"
        assert slow.latency_ms > overdue
        assert (await admin.slow(by="dropped")).rows == []
        assert [row.client_id for row in (await admin.slow(by="in_flight")).rows] == ["to"]
        few = await admin.page(ClientFilter(least={"in_flight": 1}, most={"in_flight": 3}))
        assert [row.client_id for row in few.rows] == ["to"]
        with pytest.raises(ClientError, match="no number of clients"):
            await admin.page(ClientFilter(least={"user": 1}))
        subscriber.acknowledge()
        await soon(lambda: not device_of(site, "to").in_flight_count, "all is acknowledged")
        (known,) = (await admin.page(ClientFilter(client_id="to"))).rows
        assert known.latency_ms > overdue
    for device in (publisher, subscriber):
        await device.disconnect()
    await site.close()


async def test_clients_are_disconnected_by_name_and_by_filter(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True)
    devices = await connected(site, "d/1", "d/2", "d/3", "d/4", "e/1")
    async with client_of(site) as client:
        admin = ClientAdmin(client)
        tried = await admin.kick(["d/1", "nobody"], is_dry_run=True)
        assert tried == Kicked(1, 0, ["d/1"], {})
        assert await admin.kick(["d/1", "nobody"]) == Kicked(1, 1, ["d/1"], {})
        await soon(lambda: not devices[0].is_connected, "it is disconnected")
        assert await admin.kick(["d/1"]) == Kicked(0, 0, [], {})

        wanted = ClientFilter(client_id="d/*")
        assert await admin.find_to_kick(wanted) == Kicked(3, 0, ["d/2", "d/3", "d/4"], {})
        assert await admin.kick_all(wanted, limit=2) == Kicked(3, 0, ["d/2", "d/3", "d/4"], {})
        assert all(device.is_connected for device in devices[1:])
        assert await admin.kick_all(wanted, limit=3) == Kicked(3, 3, ["d/2", "d/3", "d/4"], {})
        await soon(lambda: not any(device.is_connected for device in devices[1:4]), "they are disconnected")
        assert devices[4].is_connected
        assert [row.client_id for row in (await admin.page()).rows] == ["e/1"]

        with pytest.raises(ClientError, match="named at a time"):
            await admin.kick(["d"] * (limits.KICKED_NAMES_MAX + 1))
        ask = admin._inspections.ask
        for wrong in (
            KickQuestion(limit=1),
            KickQuestion(client_ids=["a"], wanted=ClientFilter(), limit=1),
            KickQuestion(wanted=ClientFilter(), limit=limits.KICKED_CLIENTS_MAX + 1),
        ):
            with pytest.raises(BrokerError):
                await ask("one", KICK, msgspec.msgpack.encode(wrong))
    await devices[4].disconnect()
    await site.close()


async def test_subscriptions_are_of_connected_clients_and_of_kept_sessions(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True, brokers=2)
    devices = await connected(site, "a", "b", "c")
    await devices[0].subscribe(("x/+", 1))
    await devices[0].subscribe(("x/#", 0))
    await devices[1].subscribe(("x/1", 2))
    await devices[1].subscribe(("$share/g/x/1", 1))
    await devices[2].subscribe(("y/*", 1))
    await devices[0].disconnect()
    brokers = [bench.broker for bench in site.benches]
    await soon(
        lambda: not any(broker.sessions.owners.front_end_of("a") for broker in brokers), "its session is kept"
    )
    async with client_of(site) as client:
        admin = ClientAdmin(client)

        async def found(**wanted: str) -> list[tuple[str, str, str, int]]:
            rows: list[tuple[str, str, str, int]] = []
            cursor: str | None = ""
            while cursor is not None:
                page: SubscriptionsPage = await admin.subscriptions(limit=2, cursor=cursor, **wanted)
                assert page.problems == {}
                rows += [(row.client_id, row.topic_filter, row.front_end, row.qos) for row in page.rows]
                cursor = page.next_cursor
            return rows

        of_a = [("a", "x/#", "", 0), ("a", "x/+", "", 1)]
        of_b = [("b", "$share/g/x/1", "two", 1), ("b", "x/1", "two", 2)]
        assert await found() == [*of_a, *of_b, ("c", "y/*", "one", 1)]
        assert await found(client_id="b") == of_b
        assert await found(topic_filter="x/*") == [*of_a, of_b[1]]
        assert await found(topic="x/1") == [*of_a, *of_b]
        assert await found(topic="x/1/2", client_id="a") == of_a[:1]
        assert await found(topic="z") == []
        with pytest.raises(ClientError, match="none of this list"):
            await admin.subscriptions(cursor="eHg")
    for device in devices[1:]:
        await device.disconnect()
    await site.close()


async def test_what_waits_for_a_kept_session_is_read_and_stays(tmp_path: Path) -> None:
    large = {"packet_bytes_max": 2 * limits.INSPECTION_ANSWER_BYTES_MAX}
    site = await open_site(tmp_path, "one", is_remote=True, brokers=2, mqtt_settings=large)
    (sleeper, source) = await connected(site, "sleeper", "source")
    await sleeper.subscribe(("q/#", 1))
    await sleeper.disconnect()
    for number in range(5):
        await source.publish(f"q/{number}", b"%d" % number * 100)
    # No answer has room for it.
    await source.publish("q/5", bytes(limits.INSPECTION_ANSWER_BYTES_MAX))
    async with client_of(site) as client:
        admin = ClientAdmin(client)
        for _ in range(2):
            topics: set[str] = set()
            left_out, cursor = 0, ""
            while True:
                page = await admin.queue("sleeper", "q/#", limit=2, cursor=cursor)
                assert page is not None
                assert (page.behind, page.problems) == (6 if not cursor else page.behind, {})
                topics |= {message.properties["MQTT_TOPIC"] for message in page.messages}
                assert all(
                    message.body[:1] == message.properties["MQTT_TOPIC"][-1:].encode()
                    for message in page.messages
                )
                left_out += page.left_out
                if page.next_cursor is None:
                    break
                cursor = page.next_cursor
            assert (topics, left_out) == ({f"q/{number}" for number in range(5)}, 1)
        assert await admin.queue("sleeper", "q/+") is None
        assert await admin.queue("nobody", "q/#") is None
        with pytest.raises(ClientError, match="none of this list"):
            await admin.queue("sleeper", "q/#", cursor="eHg")
        body = msgspec.msgpack.encode(
            QueueQuestion(client_id="sleeper", topic_filter="q/#", limit=limits.SESSION_QUEUE_LISTED_MAX + 1)
        )
        with pytest.raises(BrokerError, match="cannot be read"):
            await admin._inspections.ask_broker(site.bench.broker.parts.settings.name, "session_queue", body)
    await sleeper.connect(site.fronts["one"])
    assert len(await sleeper.receives(6)) == 6
    for device in (sleeper, source):
        await device.disconnect()
    await site.close()


async def test_what_is_on_its_way_is_told_from_what_waits(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True)
    (sleeper, source) = await connected(site, "sleeper", "source")
    await sleeper.subscribe(("q/#", 1))
    sleeper.is_acknowledging = False
    for number in range(3):
        await source.publish(f"q/{number}", b"x")
    await soon(lambda: len(sleeper.unanswered) == 3, "all are on their way")
    # The second is acknowledged before the first.
    sleeper.client.send(b"\x40\x02" + sleeper.unanswered[1][1].to_bytes(2))
    await sleeper.leave()
    await source.publish("q/3", b"x")
    async with client_of(site) as client:
        page = await ClientAdmin(client).queue("sleeper", "q/#")
        assert page is not None
        told = [message.properties["MQTT_TOPIC"] for message in page.messages]
        assert (told, page.is_in_flight) == (["q/0", "q/2", "q/3"], [True, True, False])
    await source.disconnect()
    await site.close()


async def test_refusals_are_remembered_by_front_ends(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True, mqtt_settings={"connections_max": 1})
    (device,) = await connected(site, "in")
    other = await RawClient.dial(site.fronts["one"].mqtt.port)
    other.send(connect_packet("out", clean_session=True))
    await other.rest()
    async with client_of(site) as client:
        admin = ClientAdmin(client)
        found = await admin.refused()
        assert found.problems == {}
        assert [(each.source, each.client_id, each.address) for each in found.refusals][:1] == [
            ("one", "out", "127.0.0.1")
        ]
        assert found.refusals[0].reason
        assert (await admin.refused(RefusedQuestion(client_id="in"))).refusals == []
        assert (await admin.refused(RefusedQuestion(address="127.*", limit=1))).refusals == found.refusals[:1]
    await device.disconnect()
    await site.close()


async def test_questions_that_are_none_are_refused(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True)
    async with client_of(site) as client:
        ask = ClientAdmin(client)._inspections.ask
        most = limits.CLIENT_PATTERN_CHARACTERS_MAX
        fits = ClientsQuestion(wanted=ClientFilter(user="*" + "x" * (most - 1)))
        await ask("one", "connections", msgspec.msgpack.encode(fits))
        for wrong in (
            ClientsQuestion(wanted=ClientFilter(user="x" * (most + 1))),
            ClientsQuestion(limit=limits.CONNECTIONS_LISTED_MAX + 1),
            ClientsQuestion(sort_by="size"),
            ClientsQuestion(sort_by="user", behind=(1.0, "", 0)),
            ClientsQuestion(sort_by="queued", behind=("a", "", 0)),
            ClientsQuestion(wanted=ClientFilter(least={"size": 1})),
        ):
            with pytest.raises(BrokerError):
                await ask("one", "connections", msgspec.msgpack.encode(wrong))
        for name in ("connections", "subscriptions", "refused", KICK):
            with pytest.raises(BrokerError, match="cannot be read"):
                await ask("one", name, b"\xc1")
        with pytest.raises(BrokerError, match="is not connected here"):
            await ask("one", "connection", b"\xff\x00")
    await site.close()
