"""Which records wait, until when, and what their queue entries say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timer_oracle import OWN, delivered_properties

from iotmq.message.records.record import encode_batch, encode_record, properties_tags_code
from iotmq.store.log.timer_record import (
    DELAY_LEVELS_MAX,
    DUE_MS_MAX,
    USUAL_DELAYS_MS,
    due_time,
    mark_of,
    name_hash,
    record_tags_code,
    restored_message,
)

STORED_MS = 1_700_000_000_000
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
WHEEL = "rmq_sys_wheel_timer"


def record(topic: str, properties: bytes, queue_id: int = 0, sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=topic,
        body=b"b",
        properties=properties,
        queue_id=queue_id,
        sys_flag=sys_flag,
        store_timestamp_ms=STORED_MS,
    )


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(1, 1_000), (3, 10_000), (18, 7_200_000), (19, 7_200_000), (10**17, 7_200_000)]
)
def test_a_level_is_due_so_long_after_it_was_stored(level: int, delay_ms: int) -> None:
    stored = record(SCHEDULE, b"TAGS\x01TagA\x02DELAY\x01%d\x02REAL_TOPIC\x01T\x02" % level, queue_id=2)
    assert due_time(stored) == (3, STORED_MS + delay_ms)
    # For this topic the tags code is the due time instead of the hash of the tags.
    assert record_tags_code(stored) == STORED_MS + delay_ms


def test_a_level_of_another_length_says_so_in_the_record() -> None:
    stored = record(SCHEDULE, b"TIMER_OUT_MS\x01%d\x02DELAY\x011\x02" % (STORED_MS + 77))
    assert due_time(stored) == (1, STORED_MS + 77)
    assert record_tags_code(stored) == STORED_MS + 77


@pytest.mark.parametrize("properties", [b"", b"DELAY\x01\x02", b"DELAY\x010\x02", b"DELAY\x01x\x02"])
def test_a_level_that_cannot_be_read_is_due_at_once(properties: bytes) -> None:
    assert due_time(record(SCHEDULE, properties)) == (1, STORED_MS)


@pytest.mark.parametrize("text", [b"1", b"1700000000000", b"%d" % DUE_MS_MAX])
def test_a_time_of_its_own_is_what_the_record_says(text: bytes) -> None:
    stored = record(WHEEL, b"TAGS\x01TagA\x02TIMER_OUT_MS\x01%s\x02REAL_TOPIC\x01T" % text)
    assert due_time(stored) == (0, int(text))
    assert record_tags_code(stored) == properties_tags_code(b"TAGS\x01TagA")


@pytest.mark.parametrize(
    ("topic", "properties", "sys_flag"),
    [
        (WHEEL, b"", 0),
        (WHEEL, b"TIMER_OUT_MS\x01x\x02", 0),
        (WHEEL, b"TIMER_OUT_MS\x01%d\x02" % (DUE_MS_MAX + 1), 0),
        (WHEEL, b"TIMER_OUT_MS\x015\x02TIMER_DEL_UNIQKEY\x01k\x02", 0),
        (WHEEL, b"TIMER_OUT_MS\x015\x02TIMER_DEL_UNIQKEY\x01\x02", 0),
        (WHEEL, b"TIMER_OUT_MS\x015\x02", 4),
        (SCHEDULE, b"DELAY\x011\x02", 12),
        ("T", b"TIMER_OUT_MS\x015\x02DELAY\x011\x02", 0),
        ("SCHEDULE_TOPIC_XXXY", b"DELAY\x011\x02", 0),
        ("rmq_sys_wheel_timeR", b"TIMER_OUT_MS\x015\x02", 0),
    ],
)
def test_other_records_wait_for_nothing(topic: str, properties: bytes, sys_flag: int) -> None:
    stored = record(topic, properties, sys_flag=sys_flag)
    assert due_time(stored) is None


@pytest.mark.parametrize("position", [0, 1, 4_096, 2**54 - 1])
@pytest.mark.parametrize("kind", [0, 1, 18, DELAY_LEVELS_MAX])
def test_a_mark_is_negative_and_says_which_record_it_ends(position: int, kind: int) -> None:
    mark = mark_of(position, kind)
    assert -(2**63) <= mark < 0
    assert divmod(~mark, 2**54) == (kind, position)


def test_what_cannot_be_marked_is_refused() -> None:
    for position, kind in ((-1, 0), (2**54, 0), (0, -1), (0, DELAY_LEVELS_MAX + 1)):
        with pytest.raises(ValueError, match="no mark"):
            mark_of(position, kind)


def test_names_are_stored_and_stay_what_they_are() -> None:
    assert name_hash(b"T", b"") == 0
    assert name_hash(b"T", b"0A" * 16) == name_hash(b"T", b"0A" * 16)
    assert len({name_hash(b"T%d" % topic, b"k%d" % key) for topic in range(50) for key in range(50)}) == 2_500
    assert name_hash(b"ab", b"c") != name_hash(b"a", b"bc")


def test_the_usual_levels_are_those_of_the_format() -> None:
    assert len(USUAL_DELAYS_MS) == 18
    assert USUAL_DELAYS_MS[4:7] == (60_000, 120_000, 180_000)


NAMES = st.sampled_from((*sorted(OWN), "TIMER_OUT_MS", "TIMER_OUT", "KEYS", "DELAYED", "TIMER_", "R", ""))
PIECES = st.tuples(NAMES, st.sampled_from((b"\x01", b"")), st.binary(max_size=6)).map(
    lambda piece: piece[0].encode() + piece[1] + piece[2]
)


@given(pieces=st.lists(PIECES, max_size=8), has_own_time=st.booleans(), ends=st.booleans(), body=st.binary())
def test_a_delivery_is_what_the_slow_way_makes_of_it(
    pieces: list[bytes], has_own_time: bool, ends: bool, body: bytes
) -> None:
    properties = b"\x02".join(pieces) + b"\x02" * ends
    stored = encode_record(
        topic=WHEEL,
        body=body,
        properties=properties,
        flag=3,
        sys_flag=13,
        reconsume_times=2,
        born_timestamp_ms=5,
    )
    delivery = restored_message(stored, has_own_time)
    left = delivered_properties(properties, has_own_time=has_own_time)
    assert delivery.element == encode_batch([(body, left, 3)])
    assert (delivery.sys_flag, delivery.reconsume_times, delivery.born_timestamp_ms) == (1, 2, 5)


def test_what_is_no_record_is_no_delivery() -> None:
    with pytest.raises(ValueError, match=r"\w"):
        restored_message(b"x" * 200, True)


@pytest.mark.parametrize("text", ["", "x", "-1", "2147483648", "9" * 30])
def test_a_queue_that_is_no_number_is_none(text: str) -> None:
    stored = record(WHEEL, b"REAL_TOPIC\x01T\x02REAL_QID\x01" + text.encode())
    assert restored_message(stored, True).queue_id == -1
