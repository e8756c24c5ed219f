"""One of the processes that watch a cluster tells people of its alarms, and all know what operators say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from manual_clock import ManualClock
from small_cluster import WAIT_S, SmallCluster

from iotmq.alarms import lease as lease_module
from iotmq.alarms.book import AlarmBook
from iotmq.alarms.lease import LEASE_S, RENEWAL_S, Lease
from iotmq.alarms.settings import AlarmSettings
from iotmq.alarms.shared import SharedWords
from iotmq.alarms.silence import Silence
from iotmq.client.client import IotmqClient
from iotmq.client.transport.settings import ClientSettings
from iotmq.clock import SystemClock
from iotmq.errors import BrokerError
from iotmq.remoting.codes import ResponseCode


async def test_one_process_has_the_lease_and_another_one_after_it(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, brokers=2, registries=1) as cluster, cluster.client() as one:
        other_settings = ClientSettings(registries=cluster.addresses, client_id="other")
        async with IotmqClient(other_settings) as other:
            first, second = Lease(SystemClock()), Lease(SystemClock())
            for _ in range(2):
                await first.renew(one)
                await second.renew(other)
                assert (first.tells, second.tells) == (True, False)
            await first.release()
            await second.renew(other)
            await first.renew(one)
            assert (first.tells, second.tells) == (False, True)
            # The lease is at the first broker; with that one gone it is at the next.
            broker, store = cluster.brokers.pop(0), cluster.stores.pop(0)
            await broker.stop()
            store.close()
            await cluster.until(
                lambda: all(registry.routes.broker_count == 1 for registry in cluster.registries)
            )
            for _ in range(2):
                await first.renew(one)
                await second.renew(other)
            assert [first.tells, second.tells].count(True) == 1


async def test_without_a_broker_everybody_tells(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, brokers=0, registries=1) as cluster, cluster.client() as client:
        lease = Lease(SystemClock())
        await lease.renew(client)
        assert lease.tells


async def test_a_lease_that_was_not_renewed_is_asked_for_anew(tmp_path: Path) -> None:
    clock = ManualClock()
    async with SmallCluster(tmp_path, brokers=1, registries=1) as cluster:
        settings = ClientSettings(registries=cluster.addresses)
        async with IotmqClient(settings, clock=clock) as client:
            lease = Lease(clock)
            await lease.renew(client)
            clock.advance(LEASE_S)
            await lease.renew(client)
            assert lease.tells
            await lease.release()


async def test_an_account_that_may_not_have_it_asks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = ManualClock(), 0

    async def refuse(_client: object) -> dict[str, str]:
        nonlocal asked
        asked += 1
        raise BrokerError(ResponseCode.NO_PERMISSION, "who are you?")

    monkeypatch.setattr(lease_module, "master_addresses", refuse)
    lease = Lease(clock)
    client = IotmqClient()
    for _ in range(60):
        await lease.renew(client)
        assert lease.tells
        clock.advance(RENEWAL_S)
    assert asked == 1
    await lease.renew(client)
    assert asked == 2


async def test_what_is_said_to_one_process_is_known_to_all(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, brokers=2, registries=1) as cluster, cluster.client() as client:
        books = [AlarmBook(AlarmSettings(), SystemClock()) for _ in range(2)]
        one, two = (SharedWords(book, SystemClock()) for book in books)
        now_ms = books[0].now_ms
        silence = Silence(
            name="works", alarm="*", until_ms=now_ms + 600_000, reason="works", by="ann", made_ms=now_ms
        )
        books[0].silence(silence)
        one.silence(silence)

        async def both_know(silences: list[Silence]) -> None:
            async with asyncio.timeout(WAIT_S):
                while [book.silences for book in books] != [silences, silences]:
                    await one.exchange(client)
                    await two.exchange(client)

        await both_know([silence])
        # Each broker has it: one that goes takes nothing along.
        broker, store = cluster.brokers.pop(0), cluster.stores.pop(0)
        await broker.stop()
        store.close()
        await cluster.until(lambda: cluster.registries[0].routes.broker_count == 1)
        books[1].take_silences([], lambda _name: False)
        await both_know([silence])
        books[1].end_silence("works")
        two.end_silence("works")
        await both_know([])
