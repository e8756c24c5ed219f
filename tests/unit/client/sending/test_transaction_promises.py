"""Transactions of the native client against a fake broker that does not keep its promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from eventually import soon
from fake_broker import CLOSE, SILENT, FakeBroker, FakeRegistry

from iotmq.client import ClientSettings, IotmqClient, Message, TransactionProducer, TransactionState
from iotmq.client.transport.message import SendStatus
from iotmq.errors import BrokerError
from iotmq.message.records.record import encode_record
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

END = RequestCode.END_TRANSACTION


class Broker(FakeBroker):
    """Stores with a status of the test's, and takes ends of transactions."""

    status = SendStatus.SEND_OK

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == END:
            return None if request.is_oneway else request.reply(0)
        answer = super().answer(connection, request)
        if request.code == RequestCode.SEND_MESSAGE_V2 and answer is not None:
            answer.code = self.status.value
            answer.ext["msgId"] = "7F00000100002A9F0000000000000000"
        return answer


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    broker.add_topic("T", 1)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[IotmqClient]:
    registry = FakeRegistry(broker)
    await registry.start()
    async with IotmqClient(ClientSettings(registries=(registry.address,), reconnect_ms_min=5)) as client:
        yield client
    await registry.stop()


def never(_: object) -> TransactionState:
    raise AssertionError("nothing is to be carried out")


@pytest.mark.parametrize("status", [status for status in SendStatus if status is not SendStatus.SEND_OK])
async def test_what_is_not_prepared_as_promised_is_rolled_back(
    broker: Broker, client: IotmqClient, status: SendStatus
) -> None:
    broker.status = status
    async with TransactionProducer(client, "pg", never) as producer:
        with pytest.raises(BrokerError, match=status.name) as raised:
            await producer.send_in_transaction(Message("T", b"half"), never)
        assert raised.value.code == status.value
        # Nobody knows whether the broker heard of this end: it is said again.
        broker.script[END].append(CLOSE)
        with pytest.raises(BrokerError, match=status.name):
            await producer.begin(Message("T", b"half"))
    ends = [request.ext["commitOrRollback"] for request in broker.seen(END)]
    assert ends == [str(TransactionState.ROLLBACK.value)] * 3


async def test_a_check_that_something_cancelled_answers_unknown(broker: Broker, client: IotmqClient) -> None:
    def check(_: object) -> TransactionState:
        raise asyncio.CancelledError

    async with TransactionProducer(client, "pg", check) as producer:
        result = await producer.send(Message("T", b"connects"))
        (connection,) = broker.server.connections
        record = encode_record(topic="T", body=b"half", properties=b"PGROUP\x01pg\x02", queue_id=0)
        question = Command.request(RequestCode.CHECK_TRANSACTION_STATE, {}, record, oneway=True)
        connection.send_oneway(question)
        async with asyncio.timeout(30):
            while not broker.seen(END):  # noqa: ASYNC110 - a fake has no event to wait for
                await asyncio.sleep(0.002)
        assert {metric.name: metric.value for metric in producer.metrics()}[
            "iotmq_client_transaction_checks_failed_total"
        ] == 1
    assert result.status is SendStatus.SEND_OK
    assert broker.seen(END)[0].ext["commitOrRollback"] == str(TransactionState.UNKNOWN.value)


async def test_a_start_that_is_cancelled_leaves_no_producer(broker: Broker, client: IotmqClient) -> None:
    # A broker that is connected has to be told, and does not answer.
    await client.routes.refresh("T")
    await client.connections.get(broker.address)
    broker.script[RequestCode.HEART_BEAT].extend([SILENT, SILENT])
    producer = TransactionProducer(client, "pg", never)
    starting = asyncio.ensure_future(producer.start())
    async with asyncio.timeout(30):
        while not broker.seen(RequestCode.HEART_BEAT):  # noqa: ASYNC110 - a fake has no event to wait for
            await asyncio.sleep(0.002)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert broker.seen(RequestCode.UNREGISTER_CLIENT)[0].ext["producerGroup"] == "pg"


async def test_brokers_may_ask_about_a_topic_that_nobody_knew_at_the_start(broker: Broker) -> None:
    registry = FakeRegistry()
    await registry.start()
    settings = ClientSettings(registries=(registry.address,), heartbeat_ms=100)
    async with IotmqClient(settings) as client, TransactionProducer(client, "pg", never, topics=("T",)):
        assert broker.seen(RequestCode.HEART_BEAT) == []
        registry.brokers.append(broker)
        await soon(lambda: broker.seen(RequestCode.HEART_BEAT), "the broker knows whom to ask")
    await registry.stop()
