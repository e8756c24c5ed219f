"""Replies: pushed to who asked, stored or not, and answered when both are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from transaction_bench import AskingConnection, Bench, asker, open_bench

from iotmq import limits
from iotmq.errors import ConnectionClosedError, RequestTimeoutError
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.properties import decode_properties
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import encode

REPLY_TOPIC = "C_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000"
SHORT = {
    "a": "pg",
    "b": REPLY_TOPIC,
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "1",
    "g": "1700000000000",
    "h": "7",
    "i": PROPERTIES,
    "j": "0",
    "k": "false",
}
LONG = {
    "producerGroup": "pg",
    "topic": REPLY_TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "1",
    "bornTimestamp": "1700000000000",
    "flag": "7",
    "properties": PROPERTIES,
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await open_bench(tmp_path)
    yield bench
    await bench.close()


def send(
    bench: Bench, body: bytes = b"answer", code: int = RequestCode.SEND_REPLY_MESSAGE_V2, **fields: str
) -> Command:
    ext = {**(SHORT if code == RequestCode.SEND_REPLY_MESSAGE_V2 else LONG), **fields}
    return bench.request(
        Command.request(code, {name: value for name, value in ext.items() if value != "-"}, body)
    )


async def answered(bench: Bench, connection: AskingConnection, code: int = 0, at: int = -1) -> Command:
    push, future = connection.pushes[at]
    future.set_result(push.reply(code, remark="no" if code else None))
    await asyncio.sleep(0)
    return bench.connection.replies[-1]


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_is_pushed_to_who_asked_and_stored(bench: Bench, code: int) -> None:
    connection = asker(bench)
    assert send(bench, code=code).code == -1
    ((push, _),) = connection.pushes
    assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert not push.is_oneway
    assert push.body_bytes() == b"answer"
    properties = decode_properties(push.ext.pop("properties").encode())
    assert properties.pop("PUSH_REPLY_TIME") == str(bench.clock.now_ms())
    assert properties == decode_properties(PROPERTIES.encode())
    assert push.ext == {
        "producerGroup": "pg",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "1",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "127.0.0.1:5000",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(bench.clock.now_ms()),
    }
    answer = await answered(bench, connection)
    (record,) = bench.records(REPLY_TOPIC, 0)
    assert answer.code == 0
    assert parse_offset_message_id(answer.ext["msgId"]) == ("127.0.0.1", 10911, record.position)
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    assert (record.body, record.flag, record.sys_flag) == (b"answer", 7, 1)
    assert decode_properties(record.properties) == {**decode_properties(PROPERTIES.encode()), "CLUSTER": "C"}


async def test_a_reply_need_not_be_stored(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, store_replies=False)
    connection = asker(bench)
    send(bench)
    answer = await answered(bench, connection)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert bench.records(REPLY_TOPIC, 0) == []
    await bench.close()


async def test_a_reply_that_is_refused_is_an_error(bench: Bench) -> None:
    connection = asker(bench)
    send(bench)
    answer = await answered(bench, connection, code=1)
    assert answer.code == 1
    assert answer.remark == "the client asker refused the reply: no"
    # It is stored all the same.
    assert len(bench.records(REPLY_TOPIC, 0)) == 1


@pytest.mark.parametrize("error", [ConnectionClosedError("gone"), RequestTimeoutError("late")])
async def test_a_client_that_goes_or_is_silent_is_an_error(bench: Bench, error: Exception) -> None:
    connection = asker(bench)
    send(bench)
    connection.pushes[0][1].set_exception(error)
    await asyncio.sleep(0)
    (answer,) = bench.connection.replies
    assert (answer.code, answer.remark) == (1, f"the client asker did not take the reply: {error}")
    assert bench.broker.native.replies.failed_count == 1


async def test_a_reply_to_nobody_is_an_error(bench: Bench) -> None:
    answer = send(bench)
    assert answer.code == 1
    assert "asker of REPLY_TO_CLIENT is not connected" in (answer.remark or "")
    nameless = send(bench, i="CORRELATION_ID\x01c1\x02")
    assert "REPLY_TO_CLIENT is missing" in (nameless.remark or "")
    asker(bench).is_closed = True
    assert "is not connected" in (send(bench).remark or "")
    congested = asker(bench)
    congested.is_congested = True
    assert "does not read" in (send(bench).remark or "")
    assert congested.pushes == []
    assert len(bench.records(REPLY_TOPIC, 0)) == 4


async def test_a_client_is_found_until_it_leaves_its_last_group(bench: Bench) -> None:
    connection = asker(bench)
    bench.join("asker", connection, "second")
    bench.join("other", AskingConnection(), "second")
    groups = bench.broker.groups
    groups.unregister(connection, "asker", producer_group="pg", consumer_group=None)  # type: ignore[arg-type]
    member = groups.producer_of("asker")
    assert member is not None
    assert member.connection is connection
    groups.connection_lost(connection)  # type: ignore[arg-type]
    assert groups.producer_of("asker") is None
    assert groups.producer_of("other") is not None


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"a": "-"}, 1, "field a"),
        ({"b": "-"}, 1, "field b"),
        ({"e": "x"}, 1, "field e"),
        ({"e": "99"}, 1, "queueId"),
        ({"f": "-1"}, 1, "field f"),
        ({"g": "-"}, 1, "field g"),
        ({"h": "9999999999"}, 1, "field h"),
        ({"j": "-1"}, 1, "field j"),
        ({"k": "maybe"}, 1, "field k"),
        ({"b": "no topic!"}, 1, "topic"),
        ({"b": "Unknown"}, 17, "CLUSTER_REPLY_TOPIC"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, 16, "belongs to the broker"),
        ({"i": "x\x01" + "v" * limits.PROPERTIES_BYTES_MAX}, 13, "properties"),
    ],
)
async def test_a_reply_that_does_not_fit_is_refused(
    bench: Bench, fields: dict[str, str], code: int, remark: str
) -> None:
    connection = asker(bench)
    answer = send(bench, **fields)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert connection.pushes == []


async def test_a_topic_or_broker_that_takes_nothing_takes_no_replies(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, is_writable=False)
    assert send(bench).code == 16
    await bench.close()


async def test_any_queue_will_do(bench: Bench) -> None:
    connection = asker(bench)
    send(bench, e="-1")
    assert connection.pushes[0][0].ext["queueId"] == "-1"
    assert (await answered(bench, connection)).ext["queueId"] == "0"


async def test_a_reply_that_cannot_be_stored_arrives_all_the_same(bench: Bench) -> None:
    connection = asker(bench)
    bench.writer.close("no room")
    send(bench)
    answer = await answered(bench, connection)
    assert (answer.code, answer.ext["msgId"]) == (0, "0")


async def test_so_many_replies_may_be_under_way_and_no_more(bench: Bench) -> None:
    assert bench.broker.native.replies._in_flight_max == limits.REPLIES_IN_FLIGHT_MAX
    bench.broker.native.replies._in_flight_max = 2
    connection = asker(bench)
    assert [send(bench).code for _ in range(3)] == [-1, -1, 14]
    await answered(bench, connection, at=0)
    assert send(bench).code == -1


async def test_a_reply_that_does_not_fit_a_frame_with_our_fields_is_an_error_and_takes_no_place(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = asker(bench)
    request = connection.request

    def encode_first(command: Command, timeout_s: float) -> asyncio.Future[Command]:
        encode(command)
        return request(command, timeout_s)

    monkeypatch.setattr(connection, "request", encode_first)
    largest = Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, SHORT)
    body = bytes(limits.FRAME_BYTES_MAX - sum(map(len, encode(largest))))
    largest.body = body
    encode(largest)
    bench.broker.native.replies._in_flight_max = 1
    for _ in range(2):
        answer = send(bench, body)
        assert answer.code == 1
        assert "does not fit" in (answer.remark or "")
    assert send(bench).code == -1
    assert (await answered(bench, connection)).code == 0


async def test_a_oneway_reply_is_pushed_and_not_answered(bench: Bench) -> None:
    connection = asker(bench)
    bench.request(Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, SHORT, b"x", oneway=True))
    push, future = connection.pushes[0]
    future.set_result(push.reply(0))
    await asyncio.sleep(0)
    assert bench.connection.replies == []
    values: dict[str, Any] = {metric.name: metric.value for metric in bench.broker.native.replies.metrics()}
    assert values == {
        "iotmq_broker_replies_total": 1,
        "iotmq_broker_replies_pushed_total": 1,
        "iotmq_broker_replies_failed_total": 0,
        "iotmq_broker_replies_in_flight": 0,
    }
