"""Interceptors: what they see and may change, and that their failures stay their own."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry

from iotmq.client import (
    ClientSettings,
    Columns,
    Consuming,
    ConsumingColumns,
    Interceptor,
    IotmqClient,
    Message,
    MessageQueue,
    PullConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    Sending,
    SendingEncoded,
    SyncClient,
    TransactionState,
    encode_batch,
)
from iotmq.client.consuming.consumption import Consumption
from iotmq.client.consuming.pushing.listener_calls import ListenerCalls
from iotmq.client.transport.interceptors import UNSEEN_GROUP, Interceptors
from iotmq.client.transport.lifetime import Lifetime
from iotmq.errors import BrokerError, ClientClosedError, MessageRefusedError
from iotmq.message.properties import decode_properties
from iotmq.remoting.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2


class Noting(Interceptor):
    """Keeps what it sees, and gives each message a property."""

    def __init__(self) -> None:
        self.lives: list[str] = []
        self.sent: list[Sending] = []
        self.consumed: list[Consuming] = []

    async def start(self, client: Lifetime) -> None:
        assert isinstance(client, IotmqClient)
        assert client.is_running
        self.lives.append("started")

    async def stop(self) -> None:
        self.lives.append("stopped")

    def before_send(self, sending: Sending) -> None:
        sending.set_property("seen", "yes")
        sending.notes[self] = len(sending.messages)

    def after_send(self, sending: Sending) -> None:
        assert sending.notes[self] == len(sending.messages)
        self.sent.append(sending)

    def before_consume(self, consuming: Consuming) -> None:
        consuming.notes[self] = len(consuming.messages)

    def after_consume(self, consuming: Consuming) -> None:
        assert consuming.notes[self] == len(consuming.messages)
        self.consumed.append(consuming)


class NotingWholes(Noting):
    """Looks at encoded batches and columns, too."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[SendingEncoded] = []
        self.columns: list[ConsumingColumns] = []
        self.begun = 0

    def before_send_encoded(self, sending: SendingEncoded) -> None:
        self.begun += 1

    def after_send_encoded(self, sending: SendingEncoded) -> None:
        self.encoded.append(sending)

    def before_consume_columns(self, consuming: ConsumingColumns) -> None:
        self.begun += 1

    def after_consume_columns(self, consuming: ConsumingColumns) -> None:
        self.columns.append(consuming)


class Broken(Interceptor):
    """Raises wherever it is called."""

    def before_send(self, sending: Sending) -> None:
        raise ValueError("before send")

    def after_send(self, sending: Sending) -> None:
        raise ValueError("after send")

    def before_consume(self, consuming: Consuming) -> None:
        raise ValueError("before consume")

    def after_consume(self, consuming: Consuming) -> None:
        raise ValueError("after consume")


@asynccontextmanager
async def running(broker: FakeBroker, *interceptors: Interceptor) -> AsyncIterator[IotmqClient]:
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    try:
        settings = ClientSettings(registries=(registry.address,), reconnect_ms_min=5)
        async with IotmqClient(settings, interceptors=interceptors) as client:
            yield client
    finally:
        await registry.stop()
        await broker.stop()


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    return broker


async def test_every_way_of_sending_is_seen_with_its_ids(broker: FakeBroker) -> None:
    noting = Noting()
    async with running(broker, noting) as client:
        producer = await client.producer("pg")
        message = Message("T", b"one", properties={"own": "1"})
        result = await producer.send(message)
        assert message.properties == {"own": "1"}, "the application's object stays as it is"
        await producer.send_nowait(Message("T", b"two"))
        await producer.send_oneway(Message("T", b"three"))
        await producer.send_batch([Message("T", b"%d" % number) for number in range(3)])
        await until(lambda: len(broker.stored_bodies("T")) == 6)
        assert [(len(each.messages), len(each.results)) for each in noting.sent] == [
            (1, 1),
            (1, 1),
            (1, 0),
            (3, 1),
        ]
        assert noting.sent[0].message_ids == [result.message_id]
        assert {each.group for each in noting.sent} == {"pg"}
        assert all(each.error is None for each in noting.sent)
        for each in noting.sent:
            assert len(set(each.message_ids)) == len(each.messages)
        ext = broker.seen(SEND)[0].ext
        properties = decode_properties(ext["i"].encode())
        assert (properties["own"], properties["seen"]) == ("1", "yes")
        assert properties["UNIQ_KEY"] == result.message_id
    assert noting.lives == ["started", "stopped"]


async def test_half_of_a_transaction_is_seen(broker: FakeBroker) -> None:
    noting = Noting()
    async with running(broker, noting) as client:
        producer = await client.transaction_producer("pg", lambda _: TransactionState.UNKNOWN)
        transaction = await producer.begin(Message("T", b"half"))
        assert [each.message_ids for each in noting.sent] == [[transaction.message_id]]
        assert broker.seen(SEND)[0].ext["f"] == "4"


async def test_what_is_not_sent_is_seen_with_its_error(broker: FakeBroker) -> None:
    noting = Noting()
    async with running(broker, noting) as client:
        producer = await client.producer("pg")
        with pytest.raises(MessageRefusedError):
            await producer.send(Message("no topic", b""))
        with pytest.raises(MessageRefusedError):
            await producer.send_oneway(Message("no topic", b""))
        with pytest.raises(MessageRefusedError):
            await producer.send_batch([Message("no topic", b"")])
        given_up = producer.send_nowait(Message("T", b""))
        given_up.cancel()
        await until(lambda: len(noting.sent) == 4)
        assert [type(each.error) for each in noting.sent] == [MessageRefusedError] * 3 + [
            asyncio.CancelledError
        ]
        assert not any(each.results for each in noting.sent)


async def test_listeners_are_seen_with_what_failed_and_in_their_context(broker: FakeBroker) -> None:
    noting = Noting()
    current = contextvars.ContextVar("current", default="nothing")
    seen: list[str] = []

    class Context(Interceptor):
        def before_consume(self, consuming: Consuming) -> None:
            current.set(consuming.group)

    def listen(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        seen.append(current.get())
        if messages[0].body == b"raise":
            raise ValueError("of the listener")
        return [message for message in messages if message.body == b"fail"]

    settings = PushConsumerSettings(consume_from="first", batch_max=1)
    async with running(broker, noting, Context()) as client:
        consumer = client.push_consumer("cg", listen, settings=settings)
        await consumer.subscribe("T")
        for body in (b"good", b"fail", b"raise"):
            broker.store("T", 0, body)
        async with consumer:
            await until(lambda: len(noting.consumed) >= 3)
    calls = noting.consumed[:3]
    assert [[message.body for message in call.failed] for call in calls] == [[], [b"fail"], [b"raise"]]
    assert [type(call.error) for call in calls] == [type(None), type(None), ValueError]
    assert {(call.group, call.queue.topic) for call in calls} == {("cg", "T")}
    assert set(seen) == {"cg"}


async def test_encoded_batches_are_seen_as_a_whole(broker: FakeBroker) -> None:
    noting = NotingWholes()
    elements = encode_batch([(b"one", b"", 0), (b"two", b"", 0)])
    async with running(broker, noting) as client:
        producer = await client.producer("pg")
        result = await producer.send_encoded_batch("T", None, elements, 2)
        later = producer.send_encoded_batch_nowait("T", None, elements, 2)
        assert noting.begun == 2
        await later
        broker.script[RequestCode.SEND_BATCH_MESSAGE].append(2)
        with pytest.raises(BrokerError):
            await producer.send_encoded_batch("T", None, elements, 2)
    assert [(each.group, each.topic, each.elements, each.count) for each in noting.encoded] == [
        ("pg", "T", elements, 2)
    ] * 3
    assert noting.encoded[0].result is result
    assert noting.encoded[2].result is None
    assert [type(each.error) for each in noting.encoded] == [type(None), type(None), BrokerError]
    assert noting.sent == []


async def test_listeners_of_columns_are_seen_at_each_try(broker: FakeBroker) -> None:
    noting = NotingWholes()
    tries: list[int] = []

    def listen(queue: MessageQueue, columns: Columns) -> None:
        tries.append(len(columns))
        if len(tries) == 1:
            raise ValueError("of the listener")

    settings = PushConsumerSettings(consume_from="first", local_retry_ms=1)
    async with running(broker, noting) as client:
        consumer = client.push_consumer("cg", columns_listener=listen, settings=settings)
        await consumer.subscribe("T")
        broker.store("T", 0, b"x")
        async with consumer:
            await until(lambda: len(noting.columns) == 2)
    assert [type(each.error) for each in noting.columns] == [ValueError, type(None)]
    assert {(each.group, each.queue.topic, len(each.columns), each.is_asked) for each in noting.columns} == {
        ("cg", "T", 1, False)
    }
    assert noting.consumed == []


async def test_what_a_pull_consumer_returns_is_consumed_when_more_is_asked_for(broker: FakeBroker) -> None:
    noting = NotingWholes()
    for body in (b"one", b"two", b"three", b"four", b"five"):
        broker.store("T", 0, body)

    def bodies() -> list[list[bytes]]:
        return [[message.body for message in each.messages] for each in noting.consumed]

    @asynccontextmanager
    async def reading(client: IotmqClient) -> AsyncIterator[PullConsumer]:
        async with client.pull_consumer("cg") as consumer:
            await consumer.assign(await consumer.queues("T"))
            yield consumer

    async def fail(client: IotmqClient) -> None:
        async with reading(client) as consumer:
            await consumer.getmany(records_max=1)
            raise ValueError("of the program")

    async with running(broker, noting) as client:
        async with reading(client) as consumer:
            await consumer.getmany(records_max=2)
            assert noting.consumed == []
            async for message in consumer:
                assert bodies() == [[b"one", b"two"]]
                assert message.body == b"three"
                break
            columns = await consumer.getmany_columns()
            assert columns is not None
            assert bodies() == [[b"one", b"two"], [b"three"]]
            assert noting.columns == []
            assert await consumer.getmany(timeout_ms=1) == []
            assert [each.columns for each in noting.columns] == [columns[1]]
        assert all(each.is_asked and each.error is None and not each.failed for each in noting.consumed)

        async with reading(client) as consumer:
            await consumer.getmany(records_max=1)
        assert bodies()[2:] == [[b"one"]]
        with pytest.raises(ValueError, match="of the program"):
            await fail(client)
        consumer = await client.pull_consumer("cg")
        await consumer.assign(await consumer.queues("T"))
        await consumer.getmany(records_max=1)
        await consumer.stop()
    ends = noting.consumed[3:]
    assert [type(each.error) for each in ends] == [ValueError, ClientClosedError]
    assert [[message.body for message in each.failed] for each in ends] == [[b"one"], [b"one"]]


async def test_what_an_operator_sends_to_a_listener_is_seen(broker: FakeBroker) -> None:
    noting = Noting()
    for body in (b"good", b"nak", b"raise"):
        broker.store("T", 0, body)

    def listen(messages: list[ReceivedMessage]) -> None:
        if messages[0].body == b"raise":
            raise ValueError("of the listener")
        if messages[0].body == b"nak":
            messages[0].nak()

    async with running(broker, noting) as client:
        async with client.pull_consumer("other") as consumer:
            await consumer.assign(await consumer.queues("T"))
            messages = await consumer.getmany()
        noting.consumed.clear()
        calls = ListenerCalls(
            client,
            "cg",
            Consumption(client.clock),
            listener=listen,
            columns_listener=None,
            settings=PushConsumerSettings(),
        )
        assert [await calls.consume_one(message) for message in messages[:2]] == [True, False]
        with pytest.raises(ValueError, match="of the listener"):
            await calls.consume_one(messages[2])
    assert [[message.body for message in each.failed] for each in noting.consumed] == [
        [],
        [b"nak"],
        [b"raise"],
    ]
    assert [type(each.error) for each in noting.consumed] == [type(None), type(None), ValueError]


async def test_replies_are_seen(broker: FakeBroker) -> None:
    noting = Noting()
    asked = b"CLUSTER\x01c\x02CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01me\x02"
    broker.store("T", 0, b"how warm?", asked)
    broker.script[RequestCode.SEND_REPLY_MESSAGE_V2] += [0, 1]
    async with running(broker, noting) as client:
        async with client.pull_consumer() as consumer:
            await consumer.assign(await consumer.queues("T"))
            [request] = await consumer.getmany()
        replier = client.replier("rg")
        await replier.reply(request, b"21.5")
        with pytest.raises(BrokerError):
            await replier.reply(request, b"21.5")
    assert [(each.group, each.messages[0].body, type(each.error)) for each in noting.sent] == [
        ("rg", b"21.5", type(None)),
        ("rg", b"21.5", BrokerError),
    ]
    properties = decode_properties(broker.seen(RequestCode.SEND_REPLY_MESSAGE_V2)[0].ext["i"].encode())
    assert (properties["seen"], [properties["UNIQ_KEY"]]) == ("yes", list(noting.sent[0].message_ids))


async def test_a_listener_that_is_cancelled_is_seen(broker: FakeBroker) -> None:
    noting = Noting()
    begun = asyncio.Event()

    async def listen(_: list[ReceivedMessage]) -> None:
        begun.set()
        await asyncio.Event().wait()

    settings = PushConsumerSettings(consume_from="first", stop_timeout_ms=0)
    async with running(broker, noting) as client:
        consumer = client.push_consumer("cg", listen, settings=settings)
        await consumer.subscribe("T")
        broker.store("T", 0, b"x")
        async with consumer:
            await begun.wait()
    (call,) = noting.consumed
    assert isinstance(call.error, asyncio.CancelledError)
    assert [message.body for message in call.failed] == [b"x"]


async def test_a_broken_one_changes_nothing_and_is_counted(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    noting = Noting()
    consumed: list[bytes] = []
    settings = PushConsumerSettings(consume_from="first")
    with caplog.at_level(logging.ERROR):
        async with running(broker, Broken(), noting) as client:
            producer = await client.producer("pg")
            for number in range(10):
                await producer.send(Message("T", b"%d" % number))
            consumer = client.push_consumer(
                "cg",
                lambda messages: consumed.extend(message.body for message in messages),
                settings=settings,
            )
            await consumer.subscribe("T")
            async with consumer:
                await until(lambda: len(consumed) == 10)
            calls = 2 * len(noting.sent) + 2 * len(noting.consumed)
            assert client.interceptors.failed_total == calls
            (metric,) = client.interceptors.metrics()
            assert (metric.name, metric.value) == ("iotmq_client_interceptors_failed_total", calls)
    assert len(noting.sent) == 10
    # Once a second, however many fail.
    assert 1 <= len(caplog.records) < calls


def test_nothing_is_made_where_nobody_looks() -> None:
    """Not without interceptors, not for those that look elsewhere, and not for their own messages."""

    class OnlySends(Interceptor):
        def after_send(self, sending: Sending) -> None:
            pass

    assert Interceptors().for_producer("pg") is None
    assert Interceptors().for_consumer("cg") is None
    assert Interceptors([Interceptor()]).for_producer("pg") is None
    only = Interceptors([OnlySends()])
    assert only.for_producer("pg") is not None
    assert only.for_consumer("cg") is None
    assert only.for_producer(UNSEEN_GROUP) is None
    assert only.for_encoded("pg") is None
    assert only.for_columns("cg") is None


def test_a_blocking_client_has_them_too() -> None:
    noting = Noting()
    with SyncClient(interceptors=[noting]):
        assert noting.lives == ["started"]
    assert noting.lives == ["started", "stopped"]
