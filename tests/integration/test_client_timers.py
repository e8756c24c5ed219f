"""Messages for any time over the wire: sent, delivered, listed and taken back with the native client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

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
    PullConsumer,
    WaitingMessages,
)
from iotmq.errors import BrokerError, MessageRefusedError, RouteNotFoundError
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store


class Running:
    """A registry, a broker and a client of them."""

    def __init__(self, registry: Registry, broker: Broker, client: IotmqClient) -> None:
        self.registry = registry
        self.broker = broker
        self.client = client


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    registry = Registry(RegistrySettings(listen_port=0), directory=tmp_path / "registry")
    await registry.start()
    settings = BrokerSettings(
        listen_port=0,
        registries=(f"127.0.0.1:{registry.port}",),
        registration_interval_s=0.2,
        timers_pending_max=50,
    )
    store = Store.open(
        tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=resolve_store_host(settings)
    )
    broker = Broker(settings, store, directory=tmp_path / "data")
    await broker.start()
    await broker.wait_registered(10)
    async with IotmqClient(ClientSettings(registries=(f"127.0.0.1:{registry.port}",))) as client:
        await Admin(client).create_topic("T", queues=1)
        yield Running(registry, broker, client)
    await broker.stop()
    store.close()
    await registry.stop()


async def test_a_message_comes_at_its_time(running: Running) -> None:
    async with Producer(running.client) as producer, PullConsumer(running.client, "g") as consumer:
        await consumer.assign(await consumer.queues("T"))
        due_ms = time.time_ns() // 1_000_000 + 400
        at = await producer.send(Message("T", b"at", deliver_at_ms=due_ms))
        await producer.send(Message("T", b"after", delay_ms=600))
        await producer.send(Message("T", b"past", deliver_at_ms=1))
        assert at.recall_handle
        received = []
        async with asyncio.timeout(30):
            while len(received) < 3:
                received += [(message.body, message) for message in await consumer.getmany()]
    assert [body for body, _ in received] == [b"past", b"at", b"after"]
    late_ms = received[1][1].store_timestamp_ms - due_ms
    assert late_ms >= 0
    assert received[1][1].message_id == at.message_id


async def test_what_waits_is_listed_and_taken_back(running: Running) -> None:
    async with Producer(running.client) as producer:
        results = [
            await producer.send(Message("T", b"%d" % number, delay_ms=3_600_000 - 60_000 * number))
            for number in range(5)
        ]
        level = await producer.send(Message("T", b"level", delay_level=18))
        assert level.recall_handle == ""
        waiting = WaitingMessages(running.client)
        listed = [message async for message in waiting.list("T")]
        assert [message.unique_key for message in listed] == [
            result.message_id for result in (*reversed(results), level)
        ]
        assert {message.level for message in listed} == {0, 18}
        assert {message.broker_name for message in listed} == {"broker-a"}
        assert [message async for message in waiting.list("other")] == []

        assert await producer.recall(results[0].recall_handle) is True
        assert await producer.recall(results[0].recall_handle) is False
        assert await waiting.cancel("T", level.message_id) is True
        assert await waiting.cancel("T", "nobody") is False
        # As a Java producer does it: a message that names the other.
        await producer.send(Message("T", b"", properties={"TIMER_DEL_UNIQKEY": results[1].message_id}))
        assert [message.unique_key async for message in waiting.list()] == [
            result.message_id for result in reversed(results[2:])
        ]


async def test_what_cannot_be_done_says_why(running: Running) -> None:
    async with Producer(running.client) as producer:
        with pytest.raises(BrokerError, match="TIMER_DELAY_SEC") as caught:
            await producer.send(Message("T", b"", properties={"TIMER_DELAY_SEC": "soon"}))
        assert caught.value.code == 13
        with pytest.raises(BrokerError, match="nobody") as caught:
            await producer.send(Message("T", b"", properties={"TIMER_DEL_UNIQKEY": "nobody"}))
        assert caught.value.code == 22
        with pytest.raises(MessageRefusedError, match="batch"):
            await producer.send_batch([Message("T", b"", delay_ms=5)])
        with pytest.raises(MessageRefusedError, match="one of"):
            await producer.send(Message("T", b"", delay_ms=5, delay_level=1))
        with pytest.raises(MessageRefusedError, match="positive"):
            await producer.send(Message("T", b"", delay_ms=-5))
        with pytest.raises(MessageRefusedError, match="invalid recall handle"):
            await producer.recall("x")
        with pytest.raises(RouteNotFoundError, match="broker-z"):
            await producer.recall("djEgVCBicm9rZXIteiAxNzAwMDAwMDAwMDAwIDBBMDA=")


async def test_too_many_are_refused_until_some_are_gone(running: Running) -> None:
    async with Producer(running.client) as producer:
        # None of them is due however long the sends take.
        results = [
            await producer.send(Message("T", b"%d" % number, delay_ms=3_600_000)) for number in range(50)
        ]
        with pytest.raises(Exception, match="timers_pending_max"):
            await producer.send(Message("T", b"too many", delay_ms=300), timeout_ms=2_000)
        assert await producer.recall(results[0].recall_handle) is True
        await producer.send(Message("T", b"one more", delay_ms=300))
        await soon(lambda: running.broker.timers.pending_count == 49, "it was delivered")
        await producer.send(Message("T", b"the last", delay_ms=3_600_000))
        with pytest.raises(Exception, match="timers_pending_max"):
            await producer.send(Message("T", b"too many", delay_ms=300), timeout_ms=2_000)
