"""What producers and consumers share: connections, registries, routes, heartbeats."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager

import pytest
from eventually import until
from fake_broker import SILENT, FakeBroker, FakeRegistry
from manual_clock import ManualClock

from iotmq.client.client import IotmqClient
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.connection_events import ConnectionEvents
from iotmq.client.transport.connections import ConnectionCallbacks, Connections
from iotmq.client.transport.settings import ClientSettings, PushConsumerSettings
from iotmq.errors import BrokerError, ClientClosedError, ConnectionClosedError, RouteNotFoundError
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection

HEARTBEAT = RequestCode.HEART_BEAT
ROUTE = RequestCode.GET_ROUTE_INFO_BY_TOPIC
SETTINGS = ClientSettings(connect_timeout_ms=1_000, reconnect_ms_min=50, reconnect_ms_max=200)


class Events:
    """Connections of a test, and what they reported."""

    def __init__(self, **more) -> None:
        self.connected: list[str] = []
        self.lost: list[str] = []
        self.clock = ManualClock()
        self.connections = Connections(
            SETTINGS,
            ConnectionCallbacks(
                requested=lambda connection, request: None,
                connected=lambda address, connection: self.connected.append(address),
                lost=self.lost.append,
                events=ConnectionEvents(lambda address: ""),
            ),
            clock=self.clock,
            chance=lambda: 1.0,
            **more,
        )


@asynccontextmanager
async def started(*roles):
    for role in roles:
        await role.start()
    try:
        yield
    finally:
        for role in roles:
            await role.stop()


async def test_of_too_many_addresses_the_one_known_longest_without_a_connection_is_forgotten() -> None:
    broker, gone = FakeBroker(), FakeBroker()
    async with started(broker, gone):
        closed = gone.address
    await broker.start()
    events = Events(addresses_max=3)
    connections = events.connections
    try:
        await connections.get(broker.address)
        others = [closed, "127.0.0.1:1", "127.0.0.1:2"]
        for address in others[:2]:
            with pytest.raises(ConnectionClosedError):
                await connections.get(address)
        assert list(connections._addresses) == [broker.address, *others[:2]]
        with pytest.raises(ConnectionClosedError):
            await connections.get(others[2])
        assert list(connections._addresses) == [broker.address, *others[1:]]
        assert connections.ready(broker.address) is not None
    finally:
        await connections.close()
        await broker.stop()


def client_of(*registries: FakeRegistry, **settings) -> IotmqClient:
    options = {"reconnect_ms_min": 5, "reconnect_ms_max": 20, "request_timeout_ms": 500}
    return IotmqClient(
        ClientSettings(
            registries=tuple(registry.address for registry in registries), **{**options, **settings}
        )
    )


async def test_all_who_ask_at_once_share_one_connection() -> None:
    broker = FakeBroker()
    async with started(broker):
        events = Events()
        first, *others = await asyncio.gather(*(events.connections.get(broker.address) for _ in range(10)))
        assert all(other is first for other in others)
        assert events.connections.ready(broker.address) is first
        assert len(list(broker.server.connections)) == 1
        assert events.connected == events.connections.open_addresses() == [broker.address]
        await events.connections.close()
        assert events.connections.ready(broker.address) is None
        assert events.lost == []
        with pytest.raises(ClientClosedError):
            await events.connections.get(broker.address)


async def test_an_address_that_is_dropped_in_the_turn_in_which_it_is_first_tried_is_tried_again() -> None:
    broker = FakeBroker()
    async with started(broker):
        events = Events()
        getting = asyncio.ensure_future(events.connections.get(broker.address))
        # The task of this one runs, and that of the try has not yet.
        await asyncio.sleep(0)
        events.connections.drop(broker.address)
        with pytest.raises(ConnectionClosedError, match="not tried any more"):
            await getting
        connection = await events.connections.get(broker.address)
        assert events.connections.ready(broker.address) is connection
        await events.connections.close()


async def test_who_asks_in_the_turn_of_a_drop_gets_a_new_try() -> None:
    broker = FakeBroker()
    async with started(broker):
        events = Events()
        first = asyncio.ensure_future(events.connections.get(broker.address))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        events.connections.drop(broker.address)
        connection = await events.connections.get(broker.address)
        with pytest.raises(ConnectionClosedError, match="not tried any more"):
            await first
        assert events.connections.ready(broker.address) is connection
        await events.connections.close()
        assert len(events.connected) == 1


async def test_a_failed_address_rests_longer_each_time() -> None:
    broker = FakeBroker()
    async with started(broker):
        address = broker.address
    events = Events()
    rests = []
    for _ in range(4):
        with pytest.raises(ConnectionClosedError, match=f"^no connection to {address}: ") as failed:
            await events.connections.get(address)
        rests.append(events.connections.rest_s(address))
        with pytest.raises(ConnectionClosedError, match=f"^{re.escape(str(failed.value))}; next try in"):
            await events.connections.get(address)
        events.clock.advance(rests[-1] + 0.001)
    assert rests == pytest.approx([0.05, 0.1, 0.2, 0.2])
    assert events.connections.rest_s("never:1") == 0


async def test_a_name_that_no_host_can_have_is_an_address_without_connection() -> None:
    address = f"{'x' * 64}:1"
    with pytest.raises(ConnectionClosedError, match=f"^no connection to {address}: "):
        await Events().connections.get(address)


async def test_a_broker_in_the_place_of_a_registry_is_named() -> None:
    broker = FakeBroker()
    async with started(broker), IotmqClient(ClientSettings(registries=(broker.address,))) as client:
        with pytest.raises(BrokerError, match=f"{broker.address} is no registry, perhaps a broker"):
            await client.admin.topics()
        with pytest.raises(BrokerError, match=f"{broker.address} is no registry, perhaps a broker"):
            await client.admin.brokers()


async def test_a_server_without_tls_is_told_from_one_that_is_away() -> None:
    broker = FakeBroker()
    async with started(broker):
        settings = ClientSettings(registries=(broker.address,), tls_enabled=True)
        async with IotmqClient(settings) as client:
            with pytest.raises(RouteNotFoundError, match=f"{broker.address}: .*TLS"):
                await client.admin.topics()


async def test_a_peer_that_closes_at_once_is_not_asked_without_pause() -> None:
    broker = FakeBroker()
    async with started(broker):
        events = Events()

        async def connect_and_lose(life_s: float) -> float:
            await events.connections.get(broker.address)
            events.clock.advance(life_s)
            lost = len(events.lost)
            for connection in list(broker.server.connections):
                connection.close()
            await until(lambda: len(events.lost) > lost)
            rest_s = events.connections.rest_s(broker.address)
            events.clock.advance(rest_s + 0.001)
            return rest_s

        assert [await connect_and_lose(0.5) for _ in range(3)] == pytest.approx([0.05, 0.1, 0.2])
        # A connection that lived is no failure: the first pause again.
        assert await connect_and_lose(1.0) == pytest.approx(0.05)
        await events.connections.close()


async def test_one_that_gives_up_does_not_cancel_the_try_of_others() -> None:
    broker = FakeBroker()
    async with started(broker):
        events = Events()
        first = asyncio.ensure_future(events.connections.get(broker.address))
        second = asyncio.ensure_future(events.connections.get(broker.address))
        await asyncio.sleep(0)
        first.cancel()
        assert isinstance(await second, ClientConnection)
        await events.connections.close()


async def test_who_waits_for_a_connection_hears_that_the_client_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = asyncio.Event()

    async def connect(*_: object, **__: object) -> ClientConnection:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing sets that event")

    monkeypatch.setattr(ClientConnection, "connect", connect)
    events = Events()
    waiting = [asyncio.ensure_future(events.connections.get("127.0.0.1:1")) for _ in range(2)]
    await asyncio.wait_for(begun.wait(), 30)
    await events.connections.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ClientClosedError] * 2


async def test_who_waits_for_a_route_hears_that_the_client_is_stopped() -> None:
    registry = FakeRegistry()
    async with started(registry):
        registry.script[ROUTE].append(SILENT)
        client = client_of(registry, request_timeout_ms=60_000)
        await client.start()
        waiting = asyncio.ensure_future(client.routes.find("T"))
        await until(lambda: any(request.code == ROUTE for request in registry.requests))
        await client.stop()
        with pytest.raises(ClientClosedError, match="stopped"):
            await waiting


async def test_one_registry_is_asked_and_the_next_takes_over() -> None:
    broker = FakeBroker()
    broker.add_topic("T")
    one, two = FakeRegistry(broker), FakeRegistry(broker)
    async with started(broker, one, two), client_of(one, two) as client:
        await client.routes.find("T")
        await client.routes.refresh("T")
        assert (len(one.seen(ROUTE)), len(two.seen(ROUTE))) == (2, 0)
        one.script[ROUTE].append(SILENT)
        assert await client.routes.refresh("T") is not None
        await client.routes.refresh("T")
        assert (len(one.seen(ROUTE)), len(two.seen(ROUTE))) == (3, 2)


async def test_a_known_route_survives_registries_that_do_not_know_it() -> None:
    broker = FakeBroker()
    broker.add_topic("T")
    registry = FakeRegistry(broker)
    async with started(broker, registry), client_of(registry) as client:
        route = await client.routes.find("T")
        registry.brokers.clear()
        assert await client.routes.refresh("T") == route
        assert await client.routes.find("other") is None
        registry.script[ROUTE].append(1)
        with pytest.raises(BrokerError):
            await client.routes.refresh("T")
        await registry.stop()
        with pytest.raises(RouteNotFoundError, match="no registry answered"):
            await client.routes.refresh("T")
        assert client.routes.known("T") == route
        await registry.start()


async def test_routes_are_refreshed_in_the_background() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    registry = FakeRegistry(broker)
    async with (
        started(broker, registry),
        client_of(registry, route_refresh_ms=100, missing_route_refresh_ms=50) as client,
        Producer(client) as producer,
    ):
        assert len(await producer.queues("T")) == 1
        broker.add_topic("T", 2)
        await until(lambda: len(client.routes.known("T").writable) == 2)
        # A topic made by its first message is looked for at once, not only with the others.
        assert len(await producer.queues("new")) == 4
        assert client.routes.known("new").is_provisional
        broker.add_topic("new", 3)
        await until(lambda: not client.routes.known("new").is_provisional)
        assert len(await producer.queues("new")) == 3


async def test_heartbeats_are_repeated_and_name_all_groups() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    registry = FakeRegistry(broker)
    async with started(broker, registry), client_of(registry, heartbeat_ms=100, client_id="me") as client:
        async with Producer(client, "one") as producer, Producer(client, "two"):
            await producer.queues("T")
            await client.connections.get(broker.address)
            await until(lambda: len(broker.seen(HEARTBEAT)) >= 3)
        body = json.loads(broker.seen(HEARTBEAT)[-1].body_bytes())
        assert body["clientID"] == "me"
        assert [data["groupName"] for data in body["producerDataSet"]] == ["one", "two"]
        left = [request.ext["producerGroup"] for request in broker.seen(RequestCode.UNREGISTER_CLIENT)]
        assert sorted(left) == ["one", "two"]


async def test_the_heartbeat_is_the_first_request_on_a_new_connection() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    registry = FakeRegistry(broker)
    async with started(broker, registry), client_of(registry) as client:
        consumer = PushConsumer(
            client, "cg", lambda batch: None, settings=PushConsumerSettings(stop_timeout_ms=100)
        )
        await consumer.subscribe("T")
        async with consumer:
            await until(lambda: broker.held)
            assert broker.requests[0].code == HEARTBEAT
            before = len(broker.requests)
            for connection in list(broker.server.connections):
                connection.close()
            await until(lambda: len(broker.requests) > before)
            assert broker.requests[before].code == HEARTBEAT


async def test_requests_of_servers_get_an_answer() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    registry = FakeRegistry(broker)
    async with started(broker, registry), client_of(registry) as client:
        await client.connections.get(broker.address)
        (connection,) = broker.server.connections
        answer = await connection.request(Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, {}))
        assert answer.code == 3
        changed = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "nobody"})
        assert (await connection.request(changed)).code == 0


async def test_client_ids_differ() -> None:
    assert len({IotmqClient().client_id for _ in range(100)}) == 100


async def test_starting_and_stopping_twice_is_harmless() -> None:
    registry = FakeRegistry()
    async with started(registry):
        client = client_of(registry)
        await client.start()
        await client.start()
        assert client.is_running
        await client.stop()
        await client.stop()
        with pytest.raises(ClientClosedError):
            client.check_running()


async def test_a_connection_that_is_dropped_fails_what_is_in_flight_at_once() -> None:
    broker = FakeBroker()
    async with started(broker):
        broker.script[HEARTBEAT].append(SILENT)
        events = Events()
        connection = await events.connections.get(broker.address)
        answer = connection.request_nowait(Command.request(HEARTBEAT))
        await until(lambda: broker.seen(HEARTBEAT))
        events.connections.drop(broker.address)
        assert connection.is_closed
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(answer, 5)
        assert events.connections.ready(broker.address) is None
        events.connections.drop("127.0.0.1:1")
        await events.connections.close()


async def test_a_try_that_is_dropped_fails_for_all_who_wait_and_not_as_a_cancellation(monkeypatch) -> None:
    trying = asyncio.Event()

    async def connect(*_, **__) -> ClientConnection:
        trying.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(ClientConnection, "connect", connect)
    events = Events()
    address = "127.0.0.1:1"
    waiting = [asyncio.ensure_future(events.connections.get(address)) for _ in range(3)]
    await trying.wait()
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    events.connections.drop(address)
    await asyncio.wait(waiting, timeout=5)
    assert waiting[0].cancelled()
    assert all(isinstance(task.exception(), ConnectionClosedError) for task in waiting[1:])
    await events.connections.close()
