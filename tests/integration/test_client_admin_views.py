"""The native client's administrator looks at two brokers, with producers and consumers at work."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from eventually import soon

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.client import (
    Admin,
    ClientSettings,
    IotmqClient,
    Message,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    SendResult,
)
from iotmq.client.admin.messages import Track, TrackState
from iotmq.client.transport.queue_tables import by_queue
from iotmq.errors import BrokerError, ClientError, RouteNotFoundError
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

NAMES = ("broker-a", "broker-b")


class Cluster:
    """One registry and two brokers in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")
        self.brokers: dict[str, Broker] = {}
        self.stores: dict[str, Store] = {}

    async def start(self) -> None:
        await self.registry.start()
        for name in NAMES:
            # Ids of messages hold the port, which the first start finds out.
            port = await self._start_broker(name, 0)
            await self._stop_broker(name)
            await self._start_broker(name, port)
            await self.brokers[name].wait_registered(10)

    async def stop(self) -> None:
        for name in NAMES:
            await self._stop_broker(name)
        await self.registry.stop()

    async def _start_broker(self, name: str, port: int) -> int:
        settings = BrokerSettings(
            name=name,
            listen_port=port,
            registries=(f"127.0.0.1:{self.registry.port}",),
            registration_interval_s=0.2,
            relay_timeout_s=5.0,
        )
        store = self.stores[name] = Store.open(
            self.directory / name,
            StoreSettings(segment_bytes=1 << 20),
            store_host=resolve_store_host(settings),
        )
        broker = self.brokers[name] = Broker(settings, store, directory=self.directory / name)
        await broker.start()
        return broker.port

    async def _stop_broker(self, name: str) -> None:
        await self.brokers[name].stop()
        self.stores[name].close()

    @asynccontextmanager
    async def client(self, client_id: str = "") -> AsyncIterator[IotmqClient]:
        settings = ClientSettings(
            registries=(f"127.0.0.1:{self.registry.port}",),
            client_id=client_id,
            missing_route_refresh_ms=50,
        )
        async with IotmqClient(settings) as client:
            yield client


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with cluster.client("administrator") as client:
        admin = Admin(client)
        await admin.create_topic("T", queues=2)
        yield admin


@asynccontextmanager
async def consumer(
    cluster: Cluster, group: str, seen: list[ReceivedMessage], *, client_id: str, tags: str = "*"
) -> AsyncIterator[PushConsumer]:
    settings = PushConsumerSettings(consume_from="first", commit_ms=50, hold_ms=200)
    async with cluster.client(client_id) as client:
        consumer = PushConsumer(client, group, lambda messages: seen.extend(messages), settings=settings)
        await consumer.subscribe("T", tags)
        async with consumer:
            yield consumer


async def send(cluster: Cluster, *messages: Message) -> list[SendResult]:
    """Where messages sent one after the other went."""
    async with cluster.client("sender") as client, Producer(client, "senders") as producer:
        return [await producer.send(message) for message in messages]


async def test_messages_are_found_by_id_key_and_offset(cluster: Cluster, admin: Admin) -> None:
    results = await send(cluster, *(Message("T", b"%d" % n, key=f"k{n}", keys=("all",)) for n in range(8)))
    assert {result.queue.broker_name for result in results} == set(NAMES)
    for number, result in enumerate(results):
        found = await admin.messages.by_id(result.offset_message_ids[0])
        assert (found.body, found.queue, found.queue_offset) == (
            b"%d" % number,
            result.queue,
            result.queue_offset,
        )
        (found,) = await admin.messages.by_unique_key("T", result.message_id)
        assert found.body == b"%d" % number
        at_offset = await admin.messages.at_offset(result.queue, result.queue_offset)
        assert at_offset is not None
        assert at_offset.message_id == result.message_id
    everything = await admin.messages.by_key("T", "all")
    assert {message.body for message in everything} == {b"%d" % number for number in range(8)}
    times = [message.record.store_timestamp_ms for message in everything]
    assert times == sorted(times, reverse=True)
    assert len(await admin.messages.by_key("T", "all", messages_max=3)) == 3
    assert await admin.messages.by_key("T", "none") == []
    assert await admin.messages.at_offset(results[0].queue, 1_000) is None
    with pytest.raises(ClientError, match="not a message id"):
        await admin.messages.by_id("nonsense")
    with pytest.raises(BrokerError, match="offset"):
        await admin.messages.by_id(results[0].offset_message_ids[0][:-2] + "FF")


async def test_an_id_connects_to_no_address_that_is_no_broker_s(cluster: Cluster, admin: Admin) -> None:
    (result,) = await send(cluster, Message("T", b"x"))
    connected: list[str] = []
    server = await asyncio.start_server(lambda *_: connected.append("here"), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RouteNotFoundError, match=f"127.0.0.1:{port}, of which no registry knows"):
            await admin.messages.by_id(f"7F000001{port:08X}{0:016X}")
    assert connected == []
    # Where it is known by a name it is found.
    place = result.offset_message_ids[0]
    registries = admin.messages._client.registries
    known = await registries.cluster()
    by_name = {
        name: {number: address.replace("127.0.0.1", "localhost") for number, address in by_id.items()}
        for name, by_id in known.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registries, "cluster", AsyncMock(return_value=by_name))
        assert (await admin.messages.by_id(place)).queue == result.queue


async def test_the_entries_of_a_queue(cluster: Cluster, admin: Admin) -> None:
    (result,) = await send(cluster, Message("T", b"x", tags="A"))
    entries = await admin.messages.queue_entries(result.queue, result.queue_offset)
    assert entries.queue_data is not None
    assert [entry.tags_code for entry in entries.queue_data] == [65]
    assert (entries.min_queue_index, entries.max_queue_index) == (0, 1)
    assert (await admin.messages.queue_entries(result.queue, group="g")).filter_data == "g@T is not online"


async def test_what_became_of_a_message(cluster: Cluster, admin: Admin) -> None:
    seen: list[ReceivedMessage] = []
    async with (
        consumer(cluster, "all", seen, client_id="c1"),
        consumer(cluster, "some", seen, client_id="c2", tags="B"),
    ):
        (result,) = await send(cluster, Message("T", b"x", tags="A"))
        message = await admin.messages.by_id(result.offset_message_ids[0])

        async def states() -> dict[str, TrackState]:
            return {track.group: track.state for track in await admin.messages.track(message)}

        await admin.set_group_offset("gone", result.queue, 0)
        wanted = {
            "all": TrackState.CONSUMED,
            "some": TrackState.FILTERED,
            "gone": TrackState.OFFLINE,
        }
        async with asyncio.timeout(30):
            while await states() != wanted:  # noqa: ASYNC110 - offsets are committed now and then
                await asyncio.sleep(0.02)
    # Offline, and past it.
    assert Track("all", TrackState.CONSUMED) in await admin.messages.track(message)


async def test_who_is_connected(cluster: Cluster, admin: Admin) -> None:
    async with consumer(cluster, "g", [], client_id="c1"), consumer(cluster, "g", [], client_id="c2"):
        shown = await admin.groups.connections("g")
        assert shown is not None
        assert [member.client_id for member in shown.connection_set] == ["c1", "c2"]
        assert {member.language for member in shown.connection_set} == {"PYTHON"}
        assert set(shown.subscription_table) == {"T", "%RETRY%g"}
        assert (shown.message_model, shown.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
        assert await admin.groups.of_topic("T") == ["g"]
        with pytest.raises(RouteNotFoundError, match="nowhere"):
            await admin.groups.of_topic("nowhere")
        clients = [client async for client in admin.groups.clients("broker-a")]
        assert [client.client_id for client in clients] == ["c1", "c2"]
        assert clients[0].consumers[0].topics == ("%RETRY%g", "T")
        async with cluster.client("p1") as client, Producer(client, "pg") as producer:
            await producer.send(Message("T", b"x"))
            assert [member.client_id for member in await admin.groups.producers("pg")] == ["p1"]
            assert [info.client_id for info in (await admin.groups.producer_groups())["pg"]] == ["p1"]
    assert await admin.groups.connections("g") is None
    assert await admin.groups.producers("pg") == []
    with pytest.raises(RouteNotFoundError, match="broker-z"):
        [client async for client in admin.groups.clients("broker-z")]


async def test_how_far_a_group_is(cluster: Cluster, admin: Admin) -> None:
    results = await send(cluster, *(Message("T", b"x", key=f"k{number}") for number in range(20)))
    sent = Counter(result.queue for result in results)
    assert len(sent) == 4
    for queue in sent:
        await admin.set_group_offset("g", queue, 1)
    progress = await admin.groups.progress("g")
    assert {queue: lag.behind for queue, lag in progress.queues.items()} == {
        queue: count - 1 for queue, count in sent.items()
    }
    assert progress.behind == 16
    assert all(lag.consumer_offset == 1 and lag.last_timestamp > 0 for lag in progress.queues.values())
    assert await admin.groups.progress("g", "T") == progress
    times = await admin.groups.times("g", "T")
    assert set(times) == set(progress.queues)
    assert all(0 < time.min_time_ms <= time.max_time_ms and time.delay_ms >= 0 for time in times.values())
    of_broker = await admin.statistics.progress("broker-a")
    assert list(of_broker.groups) == ["g"]
    assert of_broker.behind == sum(
        count - 1 for queue, count in sent.items() if queue.broker_name == "broker-a"
    )
    assert of_broker.groups["g"][0].queues == {
        queue: lag for queue, lag in progress.queues.items() if queue.broker_name == "broker-a"
    }
    assert await admin.groups.corrections("other", "T", broker_name="broker-a") == {0: 1, 1: 1}
    content = await admin.statistics.topic_content("T")
    assert {queue: row.max_offset for queue, row in content.items()} == sent


async def test_a_group_with_thousands_of_queues_is_read_without_slow_parsing(
    cluster: Cluster, admin: Admin
) -> None:
    """A megabyte of objects as keys takes the lenient parser a third of a second."""
    for number in range(8):
        for broker in cluster.brokers.values():
            broker.topics.ensure(f"W{number}", queues=1_024)
            broker.offsets.commit("wide", f"W{number}", 0, 0)
    progress = await admin.groups.progress("wide")
    assert len(progress.queues) == 2 * 8 * 1_024


async def test_statistics_and_runtime_info_of_all_brokers(cluster: Cluster, admin: Admin) -> None:
    results = await send(cluster, *(Message("T", b"x", key=f"k{number}") for number in range(20)))
    sent = Counter(result.queue.broker_name for result in results)
    counted = await admin.statistics.statistics("TOPIC_PUT_NUMS", "T")
    assert {name: statistics.minute.sum for name, statistics in counted.items()} == sent
    assert await admin.statistics.statistics("TOPIC_PUT_NUMS", "unknown") == {}
    info = await admin.statistics.runtime_info()
    assert {name: int(table["putMessageTimesTotal"]) for name, table in info.items()} == sent
    assert list(await admin.statistics.runtime_info(("broker-b",))) == ["broker-b"]
    assert "TBW102" in await admin.statistics.system_topics()


async def test_what_a_consumer_is_doing(cluster: Cluster, admin: Admin) -> None:
    results = await send(cluster, *(Message("T", b"x", key=f"k{number}") for number in range(20)))
    sent = Counter(result.queue for result in results)
    seen: list[ReceivedMessage] = []
    async with consumer(cluster, "g", seen, client_id="c1"):
        await soon(lambda: len(seen) == 20, "everything is consumed")
        info = await admin.groups.running_info("g", "c1")
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {subscription["topic"] for subscription in info.subscription_set} == {"T", "%RETRY%g"}
        assert info.jstack is None
        assert info.status_table["T"]["consumeOKTPS"] == 20.0
        rows = by_queue(info.mq_table)
        assert {queue: rows[queue]["commitOffset"] for queue in sent} == sent
        for name in ("lastPullTimestamp", "lastConsumeTimestamp"):
            assert all(abs(int(str(rows[queue][name])) - time.time() * 1_000) < 60_000 for queue in sent)
        stack = (await admin.groups.running_info("g", "c1", with_stack=True)).jstack
        assert stack is not None
        assert "test_client_admin_views" in stack or "thread" in stack
        status = await admin.groups.status("g", "T")
        assert status == {"c1": {queue: sent[queue] for queue in sorted(sent)}}
        assert await admin.groups.status("g", "T", client_id="c1") == status
        with pytest.raises(BrokerError) as refusal:
            await admin.groups.running_info("g", "c9")
        assert refusal.value.code == 206
    with pytest.raises(BrokerError) as refusal:
        await admin.groups.status("g", "T")
    assert refusal.value.code == 206


async def test_one_consumer_tries_one_message(cluster: Cluster, admin: Admin) -> None:
    (result,) = await send(cluster, Message("T", b"x"))
    (message_id,) = result.offset_message_ids
    seen: list[ReceivedMessage] = []
    outcome: list[Exception | bool] = [True]

    async def listen(messages: list[ReceivedMessage]) -> list[ReceivedMessage] | None:
        seen.extend(messages)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return None if outcome[0] else messages

    async def attempt() -> tuple[str | None, str | None]:
        tried = await admin.groups.consume_directly(
            "g", "c1", message_id, broker_name=result.queue.broker_name
        )
        return tried.consume_result, tried.remark

    async with cluster.client("c1") as client:
        consumer = PushConsumer(client, "g", listen, settings=PushConsumerSettings(hold_ms=200))
        await consumer.subscribe("T")
        async with consumer:
            before = len(seen)
            assert await attempt() == ("CR_SUCCESS", None)
            assert [message.body for message in seen[before:]] == [b"x"]
            assert seen[-1].queue == result.queue
            outcome[0] = False
            assert await attempt() == ("CR_LATER", None)
            outcome[0] = ValueError("bad body")
            assert await attempt() == ("CR_THROW_EXCEPTION", "ValueError: bad body")
            with pytest.raises(BrokerError, match="msgId"):
                await admin.groups.consume_directly(
                    "g", "c1", "nonsense", broker_name=result.queue.broker_name
                )


async def test_a_consumer_of_columns_tries_no_single_message(cluster: Cluster, admin: Admin) -> None:
    (result,) = await send(cluster, Message("T", b"x"))
    async with cluster.client("c1") as client:
        consumer = PushConsumer(
            client,
            "g",
            columns_listener=lambda queue, columns: None,
            settings=PushConsumerSettings(hold_ms=200),
        )
        await consumer.subscribe("T")
        async with consumer:
            with pytest.raises(BrokerError, match="columns"):
                await admin.groups.consume_directly(
                    "g", "c1", result.offset_message_ids[0], broker_name=result.queue.broker_name
                )


async def test_a_producer_on_an_open_connection_is_known_at_once(cluster: Cluster, admin: Admin) -> None:
    async with cluster.client("p1") as client, Producer(client, "first") as producer:
        await producer.send(Message("T", b"x"))
        async with Producer(client, "second"):
            # Requests of one connection are handled in order, and this one comes after the heartbeat.
            (broker_name,) = [name for name in NAMES if await _open_producers(client, cluster, name)]
            (member,) = await admin.groups.producers("second")
            assert (member.client_id, broker_name in NAMES) == ("p1", True)
        assert await admin.groups.producers("second") == []


async def _open_producers(client: IotmqClient, cluster: Cluster, name: str) -> bool:
    """Whether the client is connected to a broker; a question on that connection is answered by then."""
    address = cluster.brokers[name].address
    if client.connections.ready(address) is None:
        return False
    await client.request(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    return True
