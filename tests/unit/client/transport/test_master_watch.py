"""Watching at registries for other masters: registries that are odd, down, or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from eventually import soon
from fake_broker import SILENT, FakeBroker, FakeRegistry, WatchedRegistry

from iotmq.backoff import Backoff
from iotmq.client import ClientSettings, IotmqClient, Message, Producer
from iotmq.client.transport import master_watch
from iotmq.client.transport.masters import Master
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

WATCH = RequestCode.WATCH_MASTERS
# Nobody listens there, and the kernel says so.
NOWHERE = "127.0.0.1:1"


@asynccontextmanager
async def running(*roles: FakeBroker | FakeRegistry) -> AsyncIterator[None]:
    for role in roles:
        await role.start()
    try:
        yield
    finally:
        for role in roles:
            await role.stop()


def two_brokers() -> tuple[FakeBroker, FakeBroker]:
    """Two of one name; the first is the one that routes name."""
    former, present = FakeBroker(), FakeBroker()
    for broker in (former, present):
        broker.add_topic("T", 1)
    return former, present


@asynccontextmanager
async def sending(*registries: FakeRegistry, **settings: int) -> AsyncIterator[tuple[IotmqClient, Producer]]:
    """A client that has sent one message."""
    addresses = tuple(registry.address for registry in registries)
    words = {"reconnect_ms_min": 5, "reconnect_ms_max": 50, **settings}
    async with (
        IotmqClient(ClientSettings(registries=addresses, **words)) as client,
        Producer(client) as producer,
    ):
        await producer.send(Message("T", b"first"))
        yield client, producer


def master_of(client: IotmqClient) -> str | None:
    route = client.routes.known("T")
    assert route is not None
    return route.master("broker-a")


async def test_what_a_silent_master_did_not_answer_is_sent_to_the_next() -> None:
    former, present = two_brokers()
    registry = WatchedRegistry(former)
    async with running(former, present, registry), sending(registry) as (client, producer):
        former.script[RequestCode.SEND_MESSAGE_V2].append(SILENT)
        send = producer.send_nowait(Message("T", b"second"))
        await soon(lambda: len(former.seen(RequestCode.SEND_MESSAGE_V2)) == 2, "the send")
        told: list[tuple[str, str, str]] = []
        client.on_master_moved(lambda *move: told.append(move))
        registry.tell(**{"broker-a": Master(present.address, 1)})
        async with asyncio.timeout(2):
            await send
        assert present.stored_bodies("T") == [b"second"]
        (request,) = present.seen(RequestCode.SEND_MESSAGE_V2)
        assert request.ext["isRepeat"] == "true", "the former one may have stored it"
        assert told == [("broker-a", former.address, present.address)]
        assert master_of(client) == present.address
        assert client.connections.ready(former.address) is None


async def test_a_master_that_cannot_be_reached_is_not_followed() -> None:
    former, present = two_brokers()
    liar, registry = WatchedRegistry(former), WatchedRegistry(former)
    async with running(former, present, liar, registry), sending(registry, liar) as (client, producer):
        liar.tell(**{"broker-a": Master(NOWHERE, 1_000)})
        await soon(lambda: client.connections.rest_s(NOWHERE) > 0, "a try")
        await producer.send(Message("T", b"second"))
        assert master_of(client) == former.address
        # It does not keep another from being followed.
        registry.tell(**{"broker-a": Master(present.address, 1)})
        await soon(lambda: master_of(client) == present.address, "the move")
        registry.brokers = [present]
        assert (await client.routes.refresh("T")).master("broker-a") == present.address  # type: ignore[union-attr]
        await producer.send(Message("T", b"third"))
        assert present.stored_bodies("T") == [b"third"]


async def test_a_master_is_followed_when_it_can_be_reached() -> None:
    former, present = two_brokers()
    registry = WatchedRegistry(former)
    async with running(former, present, registry), sending(registry) as (client, _):
        await present.stop()
        registry.tell(**{"broker-a": Master(present.address, 1)})
        await soon(lambda: client.connections.rest_s(present.address) > 0, "a try")
        assert master_of(client) == former.address
        await present.restart()
        await soon(lambda: master_of(client) == present.address, "the move")


class Pauses(Backoff):
    """Hundredths of the pauses between questions to a registry."""

    all_s: ClassVar[list[float]] = []

    def next_s(self) -> float:
        pause_s = super().next_s()
        if self._max_s == master_watch._REGISTRY_S_MAX:
            self.all_s.append(pause_s)
        return pause_s / 100


@pytest.fixture
def pauses_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(master_watch, "Backoff", Pauses)
    Pauses.all_s.clear()
    return Pauses.all_s


@pytest.mark.parametrize(
    "make",
    [
        lambda request: request.reply(0, body=b"{"),
        lambda request: request.reply(0, body=b'{"version":"1","masters":{"broker-a":{"address":"x"}}}'),
        lambda request: request.reply(ResponseCode.SYSTEM_BUSY, remark="too many"),
        lambda request: request.reply(0, body=b'{"version":"1","masters":{}}'),
    ],
    ids=["no JSON", "no masters", "busy", "not parked"],
)
async def test_answers_that_say_nothing_are_asked_for_again_with_growing_pauses(
    make: Callable[[Command], Command], pauses_s: list[float]
) -> None:
    former, present = two_brokers()
    odd, registry = WatchedRegistry(former), WatchedRegistry(former)
    odd.make_answer = make
    async with running(former, present, odd, registry), sending(odd, registry) as (client, _):
        await soon(lambda: len(pauses_s) >= 8, "pauses")
        # The first answer may have said something new.
        assert len(odd.seen(WATCH)) <= len(pauses_s) + 2
        assert pauses_s[7] >= master_watch._REGISTRY_S_MAX / 2
        # They do not keep others from being heard.
        registry.tell(**{"broker-a": Master(present.address, 1)})
        await soon(lambda: master_of(client) == present.address, "the move")


@pytest.mark.parametrize(
    "step", [SILENT, int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)], ids=["silent", "unknown"]
)
async def test_where_masters_cannot_be_watched_a_lost_one_is_looked_for(step: object) -> None:
    former, present = two_brokers()
    registry = FakeRegistry(former)
    registry.script[WATCH].append(step)
    async with running(former, present, registry), sending(registry) as (client, producer):
        assert not registry.seen(RequestCode.GET_BROKER_CLUSTER_INFO)
        registry.brokers = [present]
        await former.stop()
        await soon(lambda: master_of(client) == present.address, "the move", within_s=5)
        await producer.send(Message("T", b"second"))
        assert present.stored_bodies("T") == [b"second"]
        assert len(registry.seen(WATCH)) == 1, "not again for a while"


async def test_a_registry_that_went_without_a_word_is_connected_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_watch, "_WATCH_MS", 50)
    former, present = two_brokers()
    registry = WatchedRegistry(former)
    async with running(former, present, registry), sending(registry, request_timeout_ms=50) as (client, _):
        await soon(lambda: len(registry.parked) == 1, "a parked question")
        parked = registry.parked[0][0]
        await soon(lambda: len(registry.parked) == 2, "a question on another connection")
        assert registry.parked[1][0] is not parked
        assert parked.is_closed
        registry.tell(**{"broker-a": Master(present.address, 1)})
        await soon(lambda: master_of(client) == present.address, "the move")


async def test_a_connection_to_a_registry_that_is_lost_is_made_again() -> None:
    former, present = two_brokers()
    registry = WatchedRegistry(former)
    async with running(former, present, registry), sending(registry) as (client, _):
        await registry.restart()
        registry.tell(**{"broker-a": Master(present.address, 1)})
        await soon(lambda: master_of(client) == present.address, "the move")
        # Also one that has nothing new to tell is to tell it again.
        await registry.restart()
        await soon(lambda: client.masters._masters.are_told, "an answer", within_s=5)


async def test_a_client_that_stops_watches_no_more() -> None:
    former, _ = two_brokers()
    registry = WatchedRegistry(former)
    async with running(former, registry):
        async with sending(registry) as (client, _producer):
            await soon(lambda: registry.parked, "a parked question")
            registry.tell(**{"broker-a": Master(NOWHERE, 1)})
            await soon(lambda: client.masters._visits, "a try")
        assert not client.masters._visits
        assert all(task.done() for task in client.masters._watchers)


async def test_a_master_that_is_back_at_its_address_is_tried_at_once() -> None:
    former, _ = two_brokers()
    registry = WatchedRegistry(former)
    pauses = {"reconnect_ms_min": 20_000, "reconnect_ms_max": 60_000}
    async with running(former, registry), sending(registry, **pauses) as (client, producer):
        known = {"broker-a": Master(former.address, 1)}
        registry.tell(**known)
        await soon(lambda: client.masters.present("broker-a", "") == former.address, "the epoch")
        await former.stop()
        await soon(lambda: client.connections.rest_s(former.address) > 5, "the loss")
        await soon(lambda: bool(registry.parked), "the next question")
        registry.tell()
        await soon(lambda: registry.parked, "the client knows that there is no master")
        send = producer.send_nowait(Message("T", b"second"))
        await former.restart()
        await soon(lambda: bool(registry.parked), "the question after the loss")
        registry.tell(**known)
        async with asyncio.timeout(5):
            await send


async def test_a_later_master_at_the_same_address_is_connected_anew() -> None:
    former, _ = two_brokers()
    registry = WatchedRegistry(former)
    async with running(former, registry), sending(registry) as (client, producer):
        registry.tell(**{"broker-a": Master(former.address, 1)})
        await soon(lambda: client.masters.present("broker-a", "") == former.address, "the epoch")
        connection = client.connections.ready(former.address)
        assert connection is not None, "an epoch that is learnt is no reason"
        former.script[RequestCode.SEND_MESSAGE_V2].append(SILENT)
        send = producer.send_nowait(Message("T", b"second"))
        await soon(lambda: len(former.seen(RequestCode.SEND_MESSAGE_V2)) == 2, "the send")
        told: list[tuple[str, bool]] = []
        client.on_master_back(lambda *back: told.append(back))
        registry.tell(**{"broker-a": Master(former.address, 2)})
        async with asyncio.timeout(5):
            await send
        assert connection.is_closed
        assert told == [("broker-a", True)]
