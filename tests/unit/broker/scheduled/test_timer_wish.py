"""What senders may ask for with their properties, and what they get for nonsense."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.broker.scheduled.delay_levels import DelayLevels
from iotmq.broker.scheduled.delivery_time import (
    NOW,
    DeliveryTime,
    moved_properties,
    read_delivery_time,
    waiting_until,
)
from iotmq.broker.scheduled.recall_handle import RecallHandle, decode_handle
from iotmq.errors import RequestError
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import encode_batch, encode_record
from iotmq.store.log.timer_record import DUE_MS_MAX, restored_message

NOW_MS = 1_700_000_000_000


def wish(properties: bytes) -> DeliveryTime:
    return read_delivery_time(properties, DelayLevels("1s 5s"), now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"", NOW),
        (b"TAGS\x01DEL\x02", NOW),
        (b"DELAY\x012\x02TIMER_DELAY_MS\x01x\x02", DeliveryTime(level=2)),
        # What Java clients may send for no delay.
        (b"DELAY\x010\x02", NOW),
        (b"DELAY\x01-1\x02", NOW),
        (b"DELAY\x01\x02", NOW),
        (b"TIMER_DELAY_SEC\x013\x02", DeliveryTime(due_ms=NOW_MS + 3_000)),
        (b"TIMER_DELAY_MS\x013\x02", DeliveryTime(due_ms=NOW_MS + 3)),
        (b"TIMER_DELIVER_MS\x01%d\x02" % (NOW_MS + 1), DeliveryTime(due_ms=NOW_MS + 1)),
        (b"TIMER_DELIVER_MS\x01%d\x02" % NOW_MS, NOW),
        (b"TIMER_DELIVER_MS\x010\x02", NOW),
        (b"TIMER_DELAY_SEC\x010\x02", NOW),
        (b"TIMER_DELIVER_MS\x015\x02TIMER_DELAY_MS\x017\x02", DeliveryTime(due_ms=NOW_MS + 7)),
        (b"TIMER_DELIVER_MS\x01%d\x02" % DUE_MS_MAX, DeliveryTime(due_ms=DUE_MS_MAX)),
        (b"TIMER_DEL_UNIQKEY\x01k\x02TIMER_DELIVER_MS\x015\x02", DeliveryTime(cancelled_key=b"k")),
    ],
)
def test_what_is_asked_for(properties: bytes, expected: DeliveryTime) -> None:
    found = wish(properties)
    assert found == expected
    assert (found is NOW) == (expected is NOW)


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        (b"DELAY\x01soon\x02", "DELAY"),
        (b"DELAY\x01--1\x02", "DELAY"),
        (b"DELAY\x01-\x02", "DELAY"),
        (b"TIMER_DELAY_SEC\x01soon\x02", "TIMER_DELAY_SEC"),
        (b"TIMER_DELAY_SEC\x01-1\x02", "TIMER_DELAY_SEC"),
        (b"TIMER_DELAY_MS\x011.5\x02", "TIMER_DELAY_MS"),
        (b"TIMER_DELAY_MS\x01\x02", "TIMER_DELAY_MS"),
        (b"TIMER_DELIVER_MS\x01\xd9\xa3\x02", "TIMER_DELIVER_MS"),
        (b"TIMER_DELIVER_MS\x01%d\x02" % (DUE_MS_MAX + 1), "TIMER_DELIVER_MS"),
        (b"TIMER_DELAY_SEC\x01%d\x02" % DUE_MS_MAX, "TIMER_DELAY_SEC"),
        (b"TIMER_DELIVER_MS\x01" + b"9" * 20 + b"\x02", "TIMER_DELIVER_MS"),
        (b"TIMER_DEL_UNIQKEY\x01\x02", "TIMER_DEL_UNIQKEY"),
    ],
)
def test_nonsense_is_an_illegal_message_and_the_remark_names_the_property(
    properties: bytes, name: str
) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        wish(properties)
    assert caught.value.code == 13


def test_a_message_that_waits_has_its_own_properties_again_when_it_is_delivered() -> None:
    properties = b"KEYS\x01k\x02TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x017\x02"
    waiting = waiting_until("T", 3, properties, NOW_MS)
    assert (waiting.topic, waiting.queue_id) == ("rmq_sys_wheel_timer", 0)
    assert decode_properties(waiting.properties) == {
        "KEYS": "k",
        "TIMER_DELAY_SEC": "5",
        "TIMER_OUT_MS": str(NOW_MS),
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    moved = moved_properties(moved_properties(waiting.properties, NOW_MS), NOW_MS)
    assert decode_properties(moved)["TIMER_ROLL_TIMES"] == "2"
    stored = encode_record(topic=waiting.topic, body=b"body", properties=moved, flag=7, sys_flag=8 + 1)
    message = restored_message(stored, True)
    assert (message.topic, message.queue_id, message.sys_flag) == ("T", 3, 1)
    assert message.element == encode_batch([(b"body", b"KEYS\x01k\x02TIMER_OUT_MS\x01%d" % NOW_MS, 7)])
    left = b"KEYS\x01k\x02REAL_TOPIC\x01T\x02REAL_QID\x013"
    assert restored_message(stored, False).element == encode_batch([(b"body", left, 7)])


def test_properties_leave_room_for_what_waiting_needs() -> None:
    overhead = len(waiting_until("T", 0, b"", NOW_MS).properties)
    room = limits.PROPERTIES_BYTES_MAX - overhead - 64
    kept = b"k\x01" + b"v" * (room - 3) + b"\x02"
    waiting = waiting_until("T", 0, kept, NOW_MS)
    assert len(moved_properties(waiting.properties, NOW_MS)) <= limits.PROPERTIES_BYTES_MAX
    with pytest.raises(RequestError, match="more than") as caught:
        waiting_until("T", 0, b"k\x01" + b"v" * (room - 2) + b"\x02", NOW_MS)
    assert caught.value.code == 13


def test_recall_handles_are_those_of_the_format() -> None:
    handle = RecallHandle("T", "broker-a", "1700000000000", "0A00")
    text = handle.encode()
    assert text == "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAwIDBBMDA="
    assert decode_handle(text) == handle


def test_a_handle_has_a_longest_size() -> None:
    longest = (limits.RECALL_HANDLE_BYTES_MAX // 4) * 3
    key = "k" * (longest - len("v1 T b 1 "))
    assert decode_handle(RecallHandle("T", "b", "1", key).encode()).unique_key == key
    with pytest.raises(RequestError, match="recallHandle"):
        decode_handle(RecallHandle("T", "b", "1", key + "k").encode())


@pytest.mark.parametrize("text", ["", "ü", "A", "djEgVA==", "djIgVCBiIDEgaw==", "////", "djEgVCAgMSBr"])
def test_other_texts_are_no_handles(text: str) -> None:
    with pytest.raises(RequestError, match="recallHandle") as caught:
        decode_handle(text)
    assert caught.value.code == 13
