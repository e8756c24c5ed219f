"""Consumption by message over several brokers: one that ends and comes back, and a master that changes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from eventually import soon
from replicated_brokers import ReplicatedBrokers

from iotmq import limits
from iotmq.broker.broker import Broker
from iotmq.broker.handlers.native.pop import Pop, PopWait
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.client import (
    ClientSettings,
    IotmqClient,
    Message,
    MessageQueue,
    PopConsumer,
    PopConsumerSettings,
    PoppedMessage,
    Producer,
)
from iotmq.client.consuming.pop.held_messages import HeldMessages
from iotmq.client.consuming.pop.pop_fetch import PopFetch
from iotmq.client.consuming.pop.pop_fetches import PopFetches
from iotmq.client.consuming.pop.pop_member import PopMember
from iotmq.client.consuming.pop.settling import Settling
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import ServerConnection
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

LONG_MS = 120_000
KINDS = (
    HeldMessages,
    Pop,
    PopConsumer,
    PopFetch,
    PopFetches,
    PopMember,
    PopWait,
    PoppedMessage,
    ServerConnection,
    Settling,
)


class TwoBrokers:
    """A registry, and the brokers a and b with topic T of 2 queues each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")
        self.brokers: dict[str, tuple[Broker, Store]] = {}

    @property
    def client_settings(self) -> ClientSettings:
        return ClientSettings(
            registries=(f"127.0.0.1:{self.registry.port}",),
            reconnect_ms_min=5,
            reconnect_ms_max=50,
            missing_route_refresh_ms=50,
            route_refresh_ms=100,
        )

    async def start(self, name: str) -> None:
        directory = self._directory / name
        settings = BrokerSettings(name=name, listen_port=0, registries=(f"127.0.0.1:{self.registry.port}",))
        store = Store.open(
            directory, StoreSettings(segment_bytes=4 << 20), store_host=resolve_store_host(settings)
        )
        broker = Broker(settings, store, directory=directory)
        broker.topics.ensure("T", queues=2)
        await broker.start()
        await broker.wait_registered(10)
        self.brokers[name] = broker, store

    async def stop(self, name: str) -> None:
        broker, store = self.brokers.pop(name)
        await broker.stop()
        assert store.check() == []
        store.close()

    async def assigned(self, name: str, **changes: str) -> set[tuple[str, int, str]]:
        """What a broker tells a consumer: brokers, queue ids and modes."""
        answer = await self.ask(name, RequestCode.QUERY_ASSIGNMENT, **changes)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return {
            (each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"], each["mode"])
            for each in json.loads(answer.body_bytes())["messageQueueAssignments"]
        }

    async def ask(self, name: str, code: int, **changes: str) -> Command:
        body = {"topic": "T", "consumerGroup": "G", "clientId": "c", "messageModel": "CLUSTERING", **changes}
        connection = await ClientConnection.connect("127.0.0.1", self.brokers[name][0].port, timeout_s=5)
        try:
            request = Command.request(code, {}, json.dumps(body).encode())
            return await connection.request(request, timeout_s=10)
        finally:
            await connection.close()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[TwoBrokers]:
    two = TwoBrokers(tmp_path)
    await two.registry.start()
    for name in "ab":
        await two.start(name)
    yield two
    for name in list(two.brokers):
        await two.stop(name)
    await two.registry.stop()


async def got(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    messages: list[PoppedMessage] = []
    async with asyncio.timeout(30):
        while len(messages) < count:
            messages += await consumer.getmany(timeout_ms=1_000, records_max=count - len(messages))
    return messages


async def test_any_broker_tells_consumers_the_queues_of_all_of_them(two: TwoBrokers) -> None:
    both = {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    for name in "ab":
        two.brokers[name][0].subscription_groups.put(SubscriptionGroupConfig(group_name="G"))
        pulled = await two.assigned(name, messageModel="BROADCASTING")
        assert pulled == {(*each, "PULL") for each in both}
        assert await two.assigned(name) == set()
        assert (await two.ask(name, RequestCode.SET_MESSAGE_REQUEST_MODE, mode="POP")).code == 0
        assert await two.assigned(name) == {("a", -1, "POP"), ("b", -1, "POP")}
    await two.stop("b")
    assert await two.assigned("a") == {("a", -1, "POP")}
    await two.registry.stop()
    refused = await two.ask("a", RequestCode.QUERY_ASSIGNMENT)
    # So who asks keeps what he has.
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "no registry has said which brokers have topic T" in (refused.remark or "")
    await two.registry.start()


async def test_a_consumer_goes_on_with_the_broker_that_is_there_and_with_the_other_when_it_is_back(
    two: TwoBrokers,
) -> None:
    settings = PopConsumerSettings(
        consume_from="first", invisible_ms=LONG_MS, held_max=40, hold_ms=1_000, pop_timeout_ms=5_000
    )
    async with IotmqClient(two.client_settings) as client, client.producer() as producer:
        queues = (await client.routes.find("T")).writable
        assert {queue.broker_name for queue in queues} == {"a", "b"}
        for number in range(40):
            await producer.send(Message("T", b"%d" % number), queue=queues[number % len(queues)])
        consumer = client.pop_consumer("G", settings)
        await consumer.subscribe("T")
        async with consumer:
            held = await got(consumer, 40)
            assert sorted(int(each.body) for each in held) == list(range(40))
            of_b = [each for each in held if each.queue.broker_name == "b"]
            await consumer.ack(of_b[:5])
            await two.stop("b")
            # What is asked of the broker meanwhile is done when it is back.
            late = asyncio.ensure_future(consumer.ack(of_b[5:10]))
            of_a = [queue for queue in queues if queue.broker_name == "a"]
            await consumer.ack([each for each in held if each.queue.broker_name == "a"])
            for number in range(40, 50):
                await producer.send(Message("T", b"%d" % number), queue=of_a[number % 2])
            await consumer.ack(await got(consumer, 10))
            assert not late.done()
            await two.start("b")
            await asyncio.wait_for(late, 30)
            # Receipts of before its end are good: the log has them.
            await consumer.ack(of_b[10:])
            for number in range(50, 60):
                await producer.send(Message("T", b"%d" % number), queue=queues[number % len(queues)])
            last = await got(consumer, 10)
            assert Counter(each.attempt for each in last) == {1: 10}
            await consumer.ack(last)
        assert sum((await client.admin.group_offsets("G", "T")).values()) == 60


def alive() -> tuple[int, int, Counter[str]]:
    """What there is of descriptors, tasks, and objects of pops."""
    gc.collect()
    kinds = Counter(type(each).__qualname__ for each in gc.get_objects() if isinstance(each, KINDS))
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), kinds


async def live(client: IotmqClient, producer: Producer, queues: tuple[MessageQueue, ...], number: int) -> int:
    """Have three consumers of a group join, share messages, fail some and leave; how many they got."""
    orders: tuple[bool | Literal["key"], ...] = (False, True, "key")
    settings = PopConsumerSettings(
        consume_from="first", orderly=orders[number % 3], held_max=15, hold_ms=100, pop_timeout_ms=5_000
    )
    consumers = [client.pop_consumer("G", settings) for _ in range(3)]
    await asyncio.gather(
        *(
            producer.send(Message("T", b"", keys=[f"k{at % 7}"]), queue=queues[at % len(queues)])
            for at in range(40)
        )
    )
    for consumer in consumers:
        await consumer.subscribe("T")
        await consumer.start()
    done_count = got_count = 0

    async def consume(consumer: PopConsumer) -> None:
        nonlocal done_count, got_count
        while done_count < 40:
            messages = await consumer.getmany(timeout_ms=5, records_max=15)
            got_count += len(messages)
            failed = [each for each in messages if each.attempt == 1 and each.queue_offset % 5 == 0]
            await asyncio.gather(*(each.nak() for each in failed))
            await asyncio.gather(*(each.in_progress() for each in messages[::7] if each not in failed))
            done = [each for each in messages if each not in failed]
            await consumer.ack(done)
            done_count += len(done)

    await asyncio.gather(*map(consume, consumers))
    for consumer in consumers:
        await consumer.stop()
    return got_count


async def test_a_thousand_pops_and_consumers_that_join_and_leave_leave_nothing_behind(
    two: TwoBrokers,
) -> None:
    async with IotmqClient(two.client_settings) as client, client.producer() as producer:
        queues = (await client.routes.find("T")).writable
        for number in range(6):
            await live(client, producer, queues, number)
        before, got_count, number = alive(), 0, 0
        while got_count < 1_000:
            got_count += await live(client, producer, queues, number)
            number += 1

        def is_no_more() -> bool:
            now = alive()
            return now[0] <= before[0] and now[1] <= before[1] and now[2] <= before[2]

        # What ends is still on its way for a moment.
        await soon(is_no_more, "no more than before")
        for broker, _ in two.brokers.values():
            pops, requests = broker.native._pops, broker.native._pop_requests
            pops.check_invariants()
            await soon(lambda: not len(requests._parked), "no pop waits")  # noqa: B023
            assert (pops._block_count, requests._waits, requests._by_topic) == (0, {}, {})
            assert len(pops._due_heap) <= 2 * len(pops._due_ms) + 64
            assert len(requests._attempts) <= limits.POP_ATTEMPTS_MAX


async def test_what_is_held_and_acknowledged_is_so_at_the_next_master(tmp_path: Path) -> None:
    brokers = ReplicatedBrokers(tmp_path)
    await brokers.start()
    settings = PopConsumerSettings(
        consume_from="first", invisible_ms=LONG_MS, held_max=10, hold_ms=1_000, pop_timeout_ms=5_000
    )
    async with IotmqClient(brokers.client_settings) as client, client.producer() as producer:
        await client.admin.create_topic("T", queues=1)
        for number in range(20):
            await producer.send(Message("T", b"%d" % number, key="abc"[number % 3]))
        consumer = client.pop_consumer("G", settings)
        await consumer.subscribe("T")
        async with consumer:
            held = await got(consumer, 10)
            await consumer.ack(held[::2])
            await brokers.level()
            acks = asyncio.ensure_future(consumer.ack(held[1::2]))
            await brokers.take_over()
            await asyncio.wait_for(acks, 30)
            rest = await got(consumer, 10)
            assert [int(each.body) for each in rest] == list(range(10, 20))
            assert {each.attempt for each in rest} == {1}
            await consumer.ack(rest)
            place = brokers.broker.offsets
            await soon(lambda: place.find("G", "T", 0) == 20, "all is done")
    await brokers.stop()
