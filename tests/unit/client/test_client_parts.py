"""One client and all that it makes: started by `await` or `async with`, and ended in order by one call."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest
from fake_broker import SILENT, FakeBroker, FakeRegistry

import iotmq
from iotmq.client import (
    Interceptor,
    Message,
    ProducerSettings,
    PushConsumerSettings,
    ReceivedMessage,
    SendResult,
    TransactionState,
)
from iotmq.errors import ClientClosedError, ClientError, ConfigError, RequestTimeoutError
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    broker.url = f"iotmq://{registry.address}"  # type: ignore[attr-defined]
    yield broker
    await broker.stop()
    await registry.stop()


def client_of(broker: FakeBroker) -> iotmq.client.IotmqClient:
    return iotmq.connect(broker.url)  # type: ignore[attr-defined]


async def test_a_client_makes_every_part_and_ends_it(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        producer = await client.producer()
        requester = await client.requester()
        transactions = await client.transaction_producer("tg", lambda _: TransactionState.ROLLBACK)
        pulls = await client.pull_consumer()
        assert client.admin is client.admin
        assert "T" in await client.admin.topics()
        await producer.send(Message("T", b"1"))
        await pulls.assign(await pulls.queues("T"))
        assert [message.body for message in await pulls.getmany()] == [b"1"]
    for part in (producer, requester, transactions):
        assert not part._is_running
    with pytest.raises(ClientClosedError):
        await producer.send(Message("T", b"2"))
    with pytest.raises(ClientClosedError):
        await pulls.assign([])


async def test_a_part_may_end_before_its_client_and_a_client_twice(broker: FakeBroker) -> None:
    client = await client_of(broker)
    async with client.producer() as producer:
        await producer.send(Message("T", b"1"))
    with pytest.raises(ClientClosedError):
        await producer.send(Message("T", b"2"))
    async with client.producer() as producer:
        await producer.send(Message("T", b"3"))
    await client.stop()
    await client.stop()
    assert broker.stored_bodies("T") == [b"1", b"3"]


async def test_the_end_finishes_what_is_handled_and_what_that_sends(broker: FakeBroker) -> None:
    """Consumers end before producers: a listener that answers by a message can do so to the last one."""
    broker.store("T", 0, b"work")
    handled = asyncio.Event()
    go_on = asyncio.Event()

    async with client_of(broker) as client:
        producer = await client.producer()

        async def listen(messages: list[ReceivedMessage]) -> None:
            handled.set()
            await go_on.wait()
            await producer.send(Message("done", messages[0].body))

        consumer = client.push_consumer("cg", listen, settings=PushConsumerSettings(consume_from="first"))
        await consumer.subscribe("T")
        await consumer.start()
        await handled.wait()
        stopping = asyncio.ensure_future(client.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
    assert broker.stored_bodies("done") == [b"work"]
    assert broker.offsets["cg", "T", 0] == 1


async def test_sends_in_flight_are_stored_before_the_connections_close(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        producer = await client.producer()
        await producer.queues("T")
        futures = [producer.send_nowait(Message("T", b"%d" % number)) for number in range(100)]
    assert all(isinstance(future.result(), SendResult) for future in futures)
    assert len(broker.stored_bodies("T")) == 100


async def test_a_part_that_does_not_end_well_keeps_no_other_from_its_end(broker: FakeBroker) -> None:
    client = await client_of(broker)
    producer = await client.producer(settings=ProducerSettings(send_timeout_ms=50))
    failing = client.producer("other")

    async def fail() -> None:
        raise ClientError("this one does not end")

    failing.stop = fail  # type: ignore[method-assign]
    broker.script[RequestCode.SEND_MESSAGE_V2].append(SILENT)
    sent = producer.send_nowait(Message("T", b"1"))
    with pytest.raises(ClientError, match="does not end"):
        await client.stop()
    assert isinstance(sent.exception(), RequestTimeoutError)
    assert not client.is_running
    assert client.connections.open_addresses() == []


async def test_parts_that_are_over_are_not_kept(broker: FakeBroker) -> None:
    async with client_of(broker) as client:
        for _ in range(10):
            async with client.producer() as producer:
                await producer.send(Message("T", b""))
        del producer
        gc.collect()
        assert len(client._parts) == 0


async def test_who_stops_while_another_does_waits_for_the_same_end(broker: FakeBroker) -> None:
    """The connections stay until every part has ended, whoever ends it."""
    held: list[Callable[[], None]] = []
    has_held = asyncio.Event()

    def hold(connection: ServerConnection, request: Command) -> Command | None:
        answer = FakeBroker.answer(broker, connection, request)
        if answer is None or request.code != RequestCode.SEND_MESSAGE_V2:
            return answer
        held.append(lambda: connection.reply(answer))
        has_held.set()
        return None

    broker.answer = hold  # type: ignore[method-assign]
    for ends_part_first in (False, True):
        client = await client_of(broker)
        producer = await client.producer()
        sent = producer.send_nowait(Message("T", b"1"))
        await has_held.wait()
        has_held.clear()
        # Who does not wait any more does not end the end.
        first = asyncio.ensure_future(producer.stop() if ends_part_first else client.stop())
        await asyncio.sleep(0)
        first.cancel()
        others = [asyncio.ensure_future(client.stop()) for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        held.pop()()
        assert (await sent).queue_offset == int(ends_part_first)
        await asyncio.gather(*others)
        assert not client.is_running
        assert not client._producers


def test_what_is_no_interceptor_and_no_function_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="extend Interceptor, not 5"):
        iotmq.connect(interceptors=[5])  # type: ignore[list-item]
    client = iotmq.connect()
    with pytest.raises(ConfigError, match="on_connection takes a function, not 'note'"):
        client.on_connection("note")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the check of a transaction producer is a function, not None"):
        client.transaction_producer("g", None)  # type: ignore[arg-type]


async def test_interceptors_start_and_stop_once(broker: FakeBroker) -> None:
    calls: list[str] = []

    class Noting(Interceptor):
        async def start(self, client: object) -> None:
            calls.append("start")

        async def stop(self) -> None:
            calls.append("stop")

    client = iotmq.connect(broker.url, interceptors=[Noting()])  # type: ignore[attr-defined]
    await client.stop()
    async with client:
        await client.stop()
    assert calls == ["start", "stop"]


async def test_a_client_whose_interceptor_does_not_start_leaves_nothing_behind(broker: FakeBroker) -> None:
    calls: list[str] = []

    class First(Interceptor):
        async def stop(self) -> None:
            calls.append("stop")

    class Failing(Interceptor):
        async def start(self, client: object) -> None:
            raise ClientError("not this one")

        async def stop(self) -> None:
            raise AssertionError("it was not started")

    tasks = asyncio.all_tasks()
    client = iotmq.connect(broker.url, interceptors=[First(), Failing()])  # type: ignore[attr-defined]
    with pytest.raises(ClientError, match="not this one"):
        async with client:
            pass
    assert (calls, client.is_running, asyncio.all_tasks()) == (["stop"], False, tasks)
