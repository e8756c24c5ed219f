"""Answers of devices: pushed to who asked like any reply, stored, dropped and counted when nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from transaction_bench import AskingConnection, Bench, asker, open_bench

from iotmq.message.properties import decode_properties
from iotmq.mqtt.topics.reply import REPLY_PREFIX, ReplyAddress, reply_token
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

TOPIC = REPLY_PREFIX + reply_token(ReplyAddress("broker-a", "asker", "c1"))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await open_bench(tmp_path)
    yield bench
    await bench.close()


def publish(bench: Bench, topic: str = TOPIC, client_id: str = "dev-1", body: bytes = b"21.5") -> Command:
    fields = {"topic": topic, "clientId": client_id}
    return bench.request(Command.request(RequestCode.PUBLISH_REPLY, fields, body))


def number(bench: Bench, name: str) -> float:
    return next(m.value for m in bench.broker.metrics() if m.name == f"iotmq_broker_replies_{name}")


async def test_an_answer_is_pushed_to_who_asked_and_stored(bench: Bench) -> None:
    connection = asker(bench)
    assert publish(bench).code == 0, "at once: the device has nothing to wait for"
    ((push, future),) = connection.pushes
    assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert push.body_bytes() == b"21.5"
    properties = decode_properties(push.ext["properties"].encode())
    del properties["PUSH_REPLY_TIME"]
    expected = {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c1",
        "REPLY_TO_CLIENT": "asker",
        "MQTT_CLIENT_ID": "dev-1",
    }
    assert properties == expected
    assert push.ext["topic"] == "C_REPLY_TOPIC"
    future.set_result(push.reply(0))
    await asyncio.sleep(0)
    (record,) = bench.records("C_REPLY_TOPIC", 0)
    assert record.body == b"21.5"
    assert decode_properties(record.properties) == expected, "without MQTT_TOPIC: it is for nobody else"
    assert (number(bench, "total"), number(bench, "pushed_total")) == (1, 1)


async def test_a_broker_that_does_not_store_replies_stores_none_of_devices(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path, store_replies=False)
    connection = asker(bench)
    assert publish(bench).code == 0
    assert len(connection.pushes) == 1
    assert bench.records("C_REPLY_TOPIC", 0) == []
    await bench.close()


async def test_an_answer_nobody_waits_for_is_dropped_and_counted(bench: Bench) -> None:
    assert publish(bench).code == 0
    connection = asker(bench)
    assert publish(bench).code == 0
    push, future = connection.pushes[0]
    future.set_result(push.reply(1, remark="no request c1 waits"))
    await asyncio.sleep(0)
    assert (number(bench, "failed_total"), number(bench, "pushed_total")) == (2, 0)


@pytest.mark.parametrize("topic", ["", "a", "$reply/", "$reply/x", TOPIC + "/x"])
async def test_topics_that_name_nobody_are_refused(bench: Bench, topic: str) -> None:
    answer = publish(bench, topic=topic)
    assert (answer.code, "reply topic" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)


async def test_names_that_would_forge_properties_are_refused(bench: Bench) -> None:
    forged = REPLY_PREFIX + reply_token(ReplyAddress("b", "asker\x02TTL\x011", "c1"))
    for answer in (publish(bench, topic=forged), publish(bench, client_id="x\x02REPLY_TO_CLIENT\x01other")):
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    long = REPLY_PREFIX + reply_token(ReplyAddress("b", "a" * 40_000, "c1"))
    assert "too long" in (publish(bench, topic=long).remark or "")


async def test_past_as_many_replies_as_may_be_under_way(bench: Bench) -> None:
    connection: AskingConnection = asker(bench)
    bench.broker.native.replies._in_flight_max = 2
    assert [publish(bench).code for _ in range(3)] == [0, 0, ResponseCode.SERVICE_NOT_AVAILABLE]
    assert len(connection.pushes) == 2
