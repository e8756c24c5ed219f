"""Rows of columns as batches: the same as the slow way, whatever the rows and however they are cut."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.broker.writing.single_message_batch import split_elements
from iotmq.message.errors import RowError
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import check_batch
from iotmq.message.records.row_elements import (
    ALONE,
    BASE64,
    ENCODED,
    MQTT_NAME,
    TEXT,
    Encoded,
    RowEncoder,
    TextColumn,
)

ROOM = 100
ELEMENT_BYTES = 22


def column(
    name: str, values: Sequence[bytes | None], *, prefix: bytes = b"", kind: int = TEXT, skipped: int = 0
) -> TextColumn:
    """A column of Arrow; `skipped` values before its first one are in its buffers, as slices have it."""
    whole = [b"skipped"] * skipped + list(values)
    offsets = numpy.cumsum([0, *(len(value or b"") for value in whole)]).astype(numpy.int32)
    bits = numpy.packbits(numpy.array([value is not None for value in whole], bool), bitorder="little")
    data = b"".join(value or b"" for value in whole)
    validity = numpy.frombuffer(bits.tobytes(), numpy.uint8) if None in whole else None
    buffers = (validity, offsets, numpy.frombuffer(data, numpy.uint8) if data else None)
    return TextColumn(name, buffers, first=skipped, count=len(values), prefix=prefix, kind=kind)


def encoder(
    *queue_counts: int, batch_bytes: int = 1 << 20, batch_rows: int = 1000, buffered: int = 1 << 20
) -> RowEncoder:
    made = RowEncoder(batch_bytes=batch_bytes, batch_rows=batch_rows, room=ROOM, buffered_bytes_max=buffered)
    for count in queue_counts:
        made.add_topic(count)
    return made


def numbers(*values: int) -> Any:
    return numpy.array(values, numpy.int32)


texts = st.binary(max_size=20).map(lambda value: value.replace(b"\x01", b"-").replace(b"\x02", b"-"))
rows = st.lists(
    st.tuples(
        st.binary(max_size=40), st.none() | texts, st.none() | texts, st.none() | st.binary(max_size=9),
        st.none() | st.just(b"5"), st.integers(0, 1), st.integers(-1, 1),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


@given(
    rows,
    st.integers(1, 400),
    st.integers(1, 7),
    st.integers(100, 3000),
    st.lists(st.integers(1, 40)),
    st.integers(0, 9),
)
def test_rows_come_out_as_they_went_in(
    given_rows: list[tuple[Any, ...]],
    batch_bytes: int,
    batch_rows: int,
    buffered: int,
    cuts: list[int],
    skipped: int,
) -> None:
    whole = encoder(3, 2, batch_bytes=batch_bytes, batch_rows=batch_rows, buffered=buffered)
    expected = encode(whole, given_rows, skipped) + whole.finish()
    in_parts = encoder(3, 2, batch_bytes=batch_bytes, batch_rows=batch_rows, buffered=buffered)
    found: list[Encoded] = []
    at = 0
    for size in [*cuts, len(given_rows)]:
        part = given_rows[at : at + size]
        if part:
            found += encode(in_parts, part, 0)
        at += size
    found += in_parts.finish()
    # Where batches end does not depend on how many rows come at a time.
    shown = [
        (each.lane, each.count, each.first_row, each.is_alone, each.size, each.checksum) for each in expected
    ]
    assert shown == [
        (each.lane, each.count, each.first_row, each.is_alone, each.size, each.checksum) for each in found
    ]
    assert in_parts.buffered_bytes == 0
    sent: dict[int, list[tuple[bytes, dict[str, str]]]] = {}
    for each in expected:
        assert each.count == 1 or (each.count <= batch_rows and each.size <= batch_bytes)
        checksum = each.checksum
        mark = b"MARK\x01%d\x02" % each.first_row
        elements = each.marked(mark)
        assert check_batch(elements) == each.count
        assert len(elements) == each.size
        parts = list(split_elements(elements))
        assert parts[0][1].endswith(mark)
        first = (parts[0][0], parts[0][1].removesuffix(mark), 0)
        assert checksum == zlib.crc32(b"".join(map(element_of, [first, *parts[1:]])))
        assert each.parts() == (first[0], first[1] + mark)
        sent.setdefault(each.lane, []).extend(
            (body, decode_properties(properties)) for body, properties, _ in [first, *parts[1:]]
        )
    assert sent == sent_of(given_rows)


def encode(into: RowEncoder, part: list[tuple[Any, ...]], skipped: int) -> list[Encoded]:
    bodies, keys, tags, data, delays, topics, queues = map(list, zip(*part, strict=True))
    key_column = column("key", keys, prefix=b"KEYS\x01", skipped=skipped)
    return into.encode(
        column("value", bodies, skipped=skipped),
        [
            key_column,
            column("tags", tags, prefix=b"TAGS\x01"),
            column("data", data, prefix=b"DATA\x01", kind=BASE64),
            column("delay", delays, prefix=b"WAITS\x01", kind=ALONE),
            column("more", [b"a\x01b\x02" if tag is None else b"" for tag in tags], kind=ENCODED),
        ],
        key_column,
        numbers(*topics),
        numbers(*queues),
    )


def sent_of(given_rows: list[tuple[Any, ...]]) -> dict[int, list[tuple[bytes, dict[str, str]]]]:
    """The slow way."""
    sent: dict[int, list[tuple[bytes, dict[str, str]]]] = {}
    for body, key, tag, data, delay, topic, queue in given_rows:
        count = (3, 2)[topic]
        place = queue
        if queue < 0:
            place = zlib.crc32(key) % count if key else count
        properties: dict[str, str] = {}
        for name, value in (("KEYS", key), ("TAGS", tag)):
            if value is not None:
                properties[name] = value.decode("utf-8", "replace")
        if data is not None:
            properties["DATA"] = base64.b64encode(data).decode()
        if delay is not None:
            properties["WAITS"] = "5"
        if tag is None:
            properties["a"] = "b"
        sent.setdefault((0, 4)[topic] + place, []).append((body, properties))
    return sent


def element_of(part: tuple[bytes, bytes, int]) -> bytes:
    from iotmq.broker.writing.single_message_batch import encode_element

    return encode_element(*part)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (TEXT, b"a\x01", "contains"),
        (TEXT, b"\x02", "contains"),
        (MQTT_NAME, b"a/+/b", "no MQTT topic"),
        (MQTT_NAME, b"#", "no MQTT topic"),
        (MQTT_NAME, b"", "no MQTT topic"),
        (MQTT_NAME, b"a\x00", "no MQTT topic"),
        (ENCODED, b"a\x01b", "no list"),
    ],
)
def test_a_value_that_no_property_can_hold_is_named(kind: int, value: bytes, problem: str) -> None:
    made = encoder(1)
    with pytest.raises(RowError, match=f"row 2: column x .*{problem}"):
        made.encode(
            column("value", [b"1", b"2", b"3"]),
            [column("x", [None, None, value], prefix=b"X\x01", kind=kind)], None, numbers(0, 0, 0), None,
        )  # fmt: skip


def test_a_row_without_a_body_is_named() -> None:
    made = encoder(1)
    made.encode(column("value", [b"1"]), [], None, numbers(0), None)
    with pytest.raises(RowError, match="row 2: column value is null"):
        made.encode(column("value", [b"2", None]), [], None, numbers(0, 0), None)


def test_properties_leave_room_for_the_mark_and_for_what_brokers_add() -> None:
    most = 32_767 - ROOM - 512
    fits = b"x" * (most - len(b"X\x01\x02"))
    made = encoder(1)
    made.encode(column("value", [b""]), [column("x", [fits], prefix=b"X\x01")], None, numbers(0), None)
    with pytest.raises(RowError, match=f"has {most + 1} bytes of properties, more than {most}"):
        made.encode(
            column("value", [b""]), [column("x", [fits + b"x"], prefix=b"X\x01")], None, numbers(0), None
        )


def test_a_batch_is_complete_when_the_next_row_would_be_too_much() -> None:
    made = encoder(1, batch_bytes=3 * (ELEMENT_BYTES + 10))
    [batch] = made.encode(column("value", [b"0123456789"] * 4), [], None, numbers(0, 0, 0, 0), None)
    assert (batch.count, batch.size) == (3, 3 * (ELEMENT_BYTES + 10))
    [large, last] = [
        *made.encode(column("value", [b"x" * 500, b"y"]), [], None, numbers(0, 0), None)[1:], *made.finish(),
    ]  # fmt: skip
    assert (large.count, large.size, last.count) == (1, ELEMENT_BYTES + 500, 1)


@pytest.mark.parametrize("mark_size", [ROOM, ROOM + 1])
def test_a_mark_as_large_as_its_room_and_one_byte_more(mark_size: int) -> None:
    made = encoder(1)
    made.encode(column("value", [b"body", b"next"]), [], None, numbers(0, 0), None)
    [batch] = made.finish()
    if mark_size > ROOM:
        with pytest.raises(ValueError, match="there is room for 100 bytes"):
            batch.marked(b"m" * mark_size)
    else:
        assert [part[1] for part in split_elements(batch.marked(b"m" * mark_size))] == [b"m" * mark_size, b""]


def test_columns_that_are_none_are_refused() -> None:
    offsets = numpy.array([0, 1, 2], numpy.int32)
    data = numpy.zeros(2, numpy.uint8)
    for buffers, first, count in [
        ((None, offsets, data), 0, 3),
        ((None, offsets, data[:1]), 0, 2),
        ((None, offsets[::-1].copy(), data), 0, 2),
        ((None, offsets - 1, data), 0, 2),
        ((None, offsets, None), 0, 2),
        ((data[:0], offsets, data), 0, 2),
        ((None, offsets, data), -1, 2),
    ]:
        with pytest.raises(ValueError, match="column x"):
            TextColumn("x", buffers, first=first, count=count)
    made = encoder(1)
    body = column("value", [b"x"])
    with pytest.raises(ValueError, match="no topic 1"):
        made.encode(body, [], None, numbers(1), None)
    with pytest.raises(ValueError, match="has no queue 1"):
        made.encode(body, [], None, numbers(0), numbers(1))
    with pytest.raises(ValueError, match="different lengths"):
        made.encode(body, [column("y", [])], None, numbers(0), None)
