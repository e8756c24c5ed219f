"""Replies as brokers push them (326), and questions about transactions (39), in all their forms."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry
from running_producer import running

from iotmq.client import (
    ClientSettings,
    IotmqClient,
    Message,
    Requester,
    TransactionProducer,
    TransactionState,
)
from iotmq.client.sending.requests import _read_reply
from iotmq.errors import BrokerError, RequestTimeoutError
from iotmq.message.hosts import decode_host
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record, encode_record
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

FIELDS = {
    "topic": "C_REPLY_TOPIC",
    "queueId": "-1",
    "flag": "7",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "storeTimestamp": "1700000000005",
    "bornHost": "127.0.0.1:5000",
    "storeHost": "127.0.0.1:10911",
    "reconsumeTimes": "0",
    "properties": "CORRELATION_ID\x01c1\x02",
}


def push(**fields: str) -> Command:
    return Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {**FIELDS, **fields}, b"body")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("/127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("host/10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("::1:5000", ("::1", 5000)),
        ("[::1]:5000", ("::1", 5000)),
        ("", ("0.0.0.0", 0)),
    ],
)
def test_the_hosts_of_a_reply_are_read_in_every_form(text: str, host: tuple[str, int]) -> None:
    reply = _read_reply(push(bornHost=text, storeHost=text), b"A\x01b\x02")
    assert decode_host(reply.record.born_host) == host
    assert decode_host(reply.record.store_host) == host
    assert (reply.body, reply.properties, reply.flag) == (b"body", {"A": "b"}, 7)
    assert (reply.born_timestamp_ms, reply.store_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_005)


async def test_a_reply_that_cannot_be_read_is_refused_and_the_request_goes_on_waiting() -> None:
    requester = Requester(IotmqClient(ClientSettings()))
    future = requester._waiting["c1"] = asyncio.get_running_loop().create_future()
    connection: Any = None
    for fields in ({"bornHost": "nowhere:x"}, {"flag": "seven"}, {"queueId": ""}, {"topic": "t" * 300}):
        answer = requester._replied(connection, push(**fields))
        assert answer is not None
        assert (answer.code, "cannot be read" in (answer.remark or "")) == (1, True), fields
    assert not future.done()
    answer = requester._replied(connection, push())
    assert answer is not None
    assert answer.code == 0
    assert (await future).body == b"body"
    late = requester._replied(connection, push())
    assert late is not None
    assert "no request c1 waits" in (late.remark or "")


def never(message: object) -> TransactionState:
    raise AssertionError("nobody asked")


async def test_a_question_that_is_not_for_this_group_or_cannot_be_read_is_left_alone() -> None:
    producer = TransactionProducer(IotmqClient(ClientSettings()), "mine", never)
    connection: Any = None
    other = encode_record(topic="T", body=b"", properties=b"PGROUP\x01other\x02")
    for body in (b"", b"garbage", other[:-1], other):
        question = Command.request(RequestCode.CHECK_TRANSACTION_STATE, {}, body, oneway=True)
        assert producer._asked(connection, question) is None
    assert not producer._checks


async def test_the_end_of_a_transaction_fails_with_what_the_broker_says() -> None:
    broker = FakeBroker()
    registry = FakeRegistry(broker)
    for role in (broker, registry):
        await role.start()
    settings = ClientSettings(registries=(registry.address,))
    async with IotmqClient(settings) as client, TransactionProducer(client, "mine", never) as producer:
        transaction = await producer.begin(Message("T", b"body"))
        sent = broker.seen(RequestCode.SEND_MESSAGE_V2)[0]
        assert sent.ext["f"] == "4"
        assert "TRAN_MSG\x01true\x02PGROUP\x01mine\x02" in sent.ext["i"]
        # It knows no transactions.
        with pytest.raises(BrokerError, match="not supported"):
            await transaction.commit()
        assert transaction.state is TransactionState.UNKNOWN
        transaction.result.joined_message_ids = "nonsense"
        with pytest.raises(BrokerError, match="bad id"):
            await transaction.commit()
    for role in (broker, registry):
        await role.stop()


async def test_a_request_to_a_device_expires_when_nobody_waits_for_its_answer() -> None:
    broker = FakeBroker()
    broker.add_topic("commands", 1)
    async with running(broker) as producer, Requester(producer._client) as requester:
        with pytest.raises(RequestTimeoutError, match="Is there a device that subscribes dev/7/ask"):
            await requester.ask_device("dev/7/ask/{reply}", b"how warm?", qos=2, timeout_ms=500)
    record = decode_record(broker.topics["commands"][0][0])
    properties = decode_properties(record.properties)
    assert record.body == b"how warm?"
    assert (properties["MQTT_TOPIC"], properties["MQTT_QOS"]) == ("dev/7/ask/{reply}", "2")
    assert (properties["TTL"], properties["MSG_TTL_MS"]) == ("500", "500")
    assert properties["CORRELATION_ID"]


async def test_a_broker_that_answers_no_connection_holds_up_no_request_to_another_one() -> None:
    """Whose host is gone without a word, and whose route is still there."""

    class Gone(FakeBroker):
        address = "127.0.0.1:1"

    broker, gone = FakeBroker("broker-a"), Gone("broker-b")
    for each in (broker, gone):
        each.add_topic("T", 1)
    registry = FakeRegistry(broker, gone)
    for role in (broker, registry):
        await role.start()
    async with IotmqClient(ClientSettings(registries=(registry.address,))) as client:
        requester = await client.requester()
        queue = (await requester._producer.queues("T"))[0]
        connect = client.connections.get
        tried = []

        async def get(address: str) -> Any:
            if address != Gone.address:
                return await connect(address)
            tried.append(address)
            return await asyncio.Event().wait()

        client.connections.get = get  # type: ignore[method-assign]
        for _ in range(2):
            asking = asyncio.ensure_future(requester.request(Message("T", b"ask"), queue=queue))
            await until(lambda: bool(requester._waiting))
            correlation_id = next(iter(requester._waiting))
            reply = push(properties=f"CORRELATION_ID\x01{correlation_id}\x02")
            assert requester._replied(None, reply).code == 0  # type: ignore[arg-type, union-attr]
            assert (await asking).body == b"body"
        # The second one did not even ask again.
        assert tried == [Gone.address]
    assert broker.stored_bodies("T") == [b"ask", b"ask"]
    for role in (broker, registry):
        await role.stop()
