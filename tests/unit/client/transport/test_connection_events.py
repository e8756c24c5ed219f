"""Connection events: what the application is told, in which order, and that its failures are its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry, WatchedRegistry

from iotmq.client import ClientSettings, ConnectionEvent, IotmqClient, Message, SyncClient
from iotmq.client.transport.connection_events import ConnectionEvents
from iotmq.client.transport.masters import Master
from iotmq.limits import CONNECTION_EVENTS_MAX


@asynccontextmanager
async def events() -> AsyncIterator[ConnectionEvents]:
    events = ConnectionEvents(lambda address: "broker" if address == "b" else "")
    events.start()
    try:
        yield events
    finally:
        await events.stop()


@asynccontextmanager
async def serving(*roles: FakeBroker | FakeRegistry) -> AsyncIterator[ClientSettings]:
    for role in roles:
        await role.start()
    try:
        registries = tuple(role.address for role in roles if isinstance(role, FakeRegistry))
        yield ClientSettings(registries=registries, reconnect_ms_min=5, reconnect_ms_max=20)
    finally:
        for role in roles:
            await role.stop()


async def test_events_are_told_one_after_the_other_to_all(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def slow(event: ConnectionEvent) -> None:
        await asyncio.sleep(0)
        told.append(f"slow {event.address}")

    def broken(event: ConnectionEvent) -> None:
        told.append(f"broken {event.address}")
        raise ValueError("of the application")

    async with events() as them:
        them.note("connected", "unheard")
        for call in (slow, broken):
            them.listen(call)
        with caplog.at_level(logging.ERROR):
            for address in ("a", "b"):
                them.note("connected", address)
            await until(lambda: them.told_total == 2)
        assert told == ["slow a", "broken a", "slow b", "broken b"]
        assert them.failed_total == 2
        assert len(caplog.records) == 1
        assert {metric.name: metric.value for metric in them.metrics()} == {
            "iotmq_client_connection_events_told_total": 2,
            "iotmq_client_connection_events_dropped_total": 0,
            "iotmq_client_connection_events_failed_total": 2,
        }


async def test_what_the_application_cancels_does_not_end_the_telling() -> None:
    told: list[str] = []

    async def cancelled(event: ConnectionEvent) -> None:
        told.append(event.address)
        forever = asyncio.ensure_future(asyncio.Event().wait())
        forever.cancel()
        await forever

    async with events() as them:
        them.listen(cancelled)
        them.note("connected", "a")
        them.note("connected", "b")
        await until(lambda: them.failed_total == 2)
        assert told == ["a", "b"]


async def test_of_too_many_that_wait_the_oldest_are_dropped() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def hanging(event: ConnectionEvent) -> None:
        begun.set()
        await go_on.wait()
        told.append(event.address)

    async with events() as them:
        them.listen(hanging)
        them.note("connected", "first")
        await begun.wait()
        for number in range(CONNECTION_EVENTS_MAX):
            them.note("connected", str(number))
        assert them.dropped_total == 0
        them.note("connected", "one more")
        assert them.dropped_total == 1
        go_on.set()
        await until(lambda: them.told_total == CONNECTION_EVENTS_MAX + 1)
        assert told == ["first", *map(str, range(1, CONNECTION_EVENTS_MAX)), "one more"]


async def test_a_client_tells_how_its_connections_come_and_go() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    registry = FakeRegistry(broker)
    told: list[ConnectionEvent] = []
    async with serving(broker, registry) as settings, IotmqClient(settings) as client:
        client.on_connection(told.append)
        producer = await client.producer()
        await producer.send(Message("T", b"one"))
        await until(lambda: len(told) == 2)
        await broker.restart()
        await producer.send(Message("T", b"two"))
        await until(lambda: told[-1].kind == "connected" and len(told) > 2)
        assert [(event.kind, event.address, event.broker_name) for event in told[:2]] == [
            ("connected", registry.address, ""),
            ("connected", broker.address, "broker-a"),
        ]
        assert {(event.address, event.broker_name) for event in told[2:]} == {(broker.address, "broker-a")}
        lost, *again, back = told[2:]
        assert (lost.kind, lost.reason) == ("disconnected", "ended by the other side, or by the network")
        assert {event.kind for event in again} == {"reconnecting"}
        assert again[0].reason == f"the connection to {broker.address} was lost"
        assert (back.kind, back.reason) == ("connected", "")


async def test_a_client_tells_of_another_master() -> None:
    former, present = FakeBroker(), FakeBroker()
    for each in (former, present):
        each.add_topic("T", 1)
    registry = WatchedRegistry(former)
    told: list[ConnectionEvent] = []
    async with serving(former, present, registry) as settings, IotmqClient(settings) as client:
        client.on_connection(told.append)
        producer = await client.producer()
        await producer.send(Message("T", b"one"))
        registry.tell(**{"broker-a": Master(present.address, 1)})
        await until(lambda: any(event.kind == "disconnected" for event in told))
    [moved] = [event for event in told if event.kind == "master_changed"]
    assert (moved.broker_name, moved.former_address, moved.address) == (
        "broker-a",
        former.address,
        present.address,
    )
    [lost] = [event for event in told if event.kind == "disconnected"]
    assert lost.address == former.address
    assert lost.reason == "given up here: it is silent, or not master any more"


async def test_a_blocking_client_calls_a_thread() -> None:
    registry = FakeRegistry()
    told: list[tuple[str, str]] = []
    heard = threading.Event()

    def call(event: ConnectionEvent) -> None:
        told.append((event.kind, threading.current_thread().name))
        heard.set()

    def use(settings: ClientSettings) -> None:
        client = SyncClient(settings)
        client.on_connection(call)
        with client:
            assert heard.wait(30)

    async with serving(registry) as settings:
        await asyncio.to_thread(use, settings)
    assert told[0][0] == "connected"
    assert told[0][1].startswith("iotmq-client")
