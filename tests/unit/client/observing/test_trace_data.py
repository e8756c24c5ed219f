"""Entries of a trace, field by field as RocketMQ's decoder reads them, and how they are packed."""

from __future__ import annotations

import asyncio

import pytest

from iotmq.client.observing.trace_data import (
    Entry,
    consumed_entries,
    sent_entries,
    taken_entries,
    trace_messages,
)
from iotmq.client.transport.interceptors import Consuming, Sending
from iotmq.client.transport.message import Message, ReceivedMessage, SendResult, SendStatus
from iotmq.client.transport.routes import MessageQueue
from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import offset_message_id
from iotmq.message.records.record import decode_record, encode_record

QUEUE = MessageQueue("T", "broker-a", 0)
PLACES = [offset_message_id("10.0.0.7", 10911, position) for position in (100, 200)]


def result(*, count: int = 1, status: SendStatus = SendStatus.SEND_OK) -> SendResult:
    return SendResult(
        status=status,
        queue=QUEUE,
        queue_offset=5,
        count=count,
        message_id="A",
        joined_message_ids=",".join(PLACES[:count]),
    )


def received(body: bytes, properties: str = "UNIQ_KEY\x01A\x02KEYS\x01k1 k2\x02") -> ReceivedMessage:
    record = encode_record(
        topic="T", body=body, properties=properties.encode(), store_host=encode_host("10.0.0.7", 10911)
    )
    return ReceivedMessage(QUEUE, decode_record(record))


def fields(entry: Entry) -> list[str]:
    assert entry.data.endswith(b"\x02")
    return entry.data[:-1].decode().split("\x01")


def test_what_is_sent() -> None:
    message = Message("T", b"body", key="k1", keys=("k2",), tags="tag")
    sending = Sending("pg", [message], 0.0, results=[result()], message_ids=["A"])
    (entry,) = sent_entries(sending, cost_ms=7, now_ms=1_000)
    assert fields(entry) == [
        "Pub", "993", "DefaultRegion", "pg", "T", "A", "tag", "k1 k2", "10.0.0.7:10911", "4", "7", "0",
        PLACES[0], "true",
    ]  # fmt: skip
    assert entry.keys == ("A", "k1", "k2")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Message("T", b"", delay_level=3), "3"),
        (Message("T", b"", delay_ms=3), "3"),
        (Message("T", b"", properties={"TRAN_MSG": "true"}), "1"),
    ],
)
def test_kinds_of_messages(message: Message, kind: str) -> None:
    sending = Sending("pg", [message], 0.0, results=[result()], message_ids=["A"])
    (entry,) = sent_entries(sending, cost_ms=0, now_ms=0)
    assert fields(entry)[11] == kind


def test_messages_of_a_batch_have_ids_of_their_own() -> None:
    messages = [Message("T", b"%d" % number) for number in range(3)]
    results = [result(count=2), result(status=SendStatus.FLUSH_DISK_TIMEOUT)]
    sending = Sending("pg", messages, 0.0, results=results, message_ids=["A", "B", "C"])
    entries = [fields(entry) for entry in sent_entries(sending, cost_ms=0, now_ms=0)]
    assert [(each[5], each[12], each[13]) for each in entries] == [
        ("A", PLACES[0], "true"),
        ("B", PLACES[1], "true"),
        ("C", PLACES[0], "false"),
    ]


def test_nobody_knows_where_a_oneway_message_is_and_what_failed_has_no_id() -> None:
    oneway = Sending("pg", [Message("T", b"")], 0.0, message_ids=["A"])
    (entry,) = sent_entries(oneway, cost_ms=0, now_ms=0)
    assert (fields(entry)[8], fields(entry)[12]) == ("", "")
    failed = Sending("pg", [Message("T", b"")], 0.0, error=ValueError())
    assert list(sent_entries(failed, cost_ms=0, now_ms=0)) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, "4"), (ValueError(), "2"), (TimeoutError(), "1"), (asyncio.CancelledError(), "1")],
)
def test_what_a_listener_gets_and_does(error: BaseException | None, code: str) -> None:
    good, bad = received(b"good"), received(b"bad")
    consuming = Consuming("cg", QUEUE, [good, bad], 0.0, failed=[bad], error=error)
    entry, _ = taken_entries(consuming, "CALL", now_ms=5)
    assert fields(entry) == ["SubBefore", "5", "DefaultRegion", "cg", "CALL", "A", "0", "k1 k2"]
    without = Consuming("cg", QUEUE, [received(b"", "UNIQ_KEY\x01A\x02")], 0.0)
    (bare,) = taken_entries(without, "CALL", now_ms=5)
    assert fields(bare)[6:] == ["0", "null"]
    first, second = consumed_entries(consuming, "CALL", cost_ms=8, now_ms=9)
    assert fields(first) == ["SubAfter", "CALL", "A", "4", "true", "k1 k2", "0", "9", "cg"]
    assert fields(second) == ["SubAfter", "CALL", "A", "4", "false", "k1 k2", code, "9", "cg"]


def test_a_message_with_many_keys_is_found_by_its_id() -> None:
    message = Message("T", b"", keys=("k" * 100,) * 200)
    sending = Sending("pg", [message], 0.0, results=[result()], message_ids=["A"])
    (entry,) = sent_entries(sending, cost_ms=0, now_ms=0)
    assert (entry.keys, entry.keys_size) == (("A",), 2)


@pytest.mark.parametrize(("data_size", "key_size"), [(10, 200), (50_000, 10), (200_000, 10)])
def test_a_trace_message_has_as_many_entries_as_fit(data_size: int, key_size: int) -> None:
    entries = [
        Entry(b"%d" % number + b"-" * data_size, (f"{number:0{key_size}}",), key_size + 1)
        for number in range(300)
    ]
    packed = list(trace_messages(entries, "TRACE"))
    assert b"".join(message.body for message, _ in packed) == b"".join(entry.data for entry in entries)
    assert sum(count for _, count in packed) == 300
    assert {message.topic for message, _ in packed} == {"TRACE"}
    for message, count in packed:
        assert len(message.encoded_properties("A" * 32)) <= PROPERTIES_BYTES_MAX
        assert count == 1 or len(message.body) <= 128_000
