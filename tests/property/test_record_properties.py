"""The compiled record codec against its slow twin, and against bytes that mean no good."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_oracle import (
    MAGIC,
    MAGIC_LONG_TOPIC,
    OracleError,
    OracleRecord,
    decode,
    decode_all,
    decode_batch,
    encode,
    encode_element,
    java_hash,
    join_properties,
    properties_of,
    tags_code,
)

from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.message.records.columns import Columns, decode_columns, iter_columns
from iotmq.message.records.record import (
    Record,
    check_batch,
    check_record,
    decode_record,
    encode_batch,
    encode_record,
    encode_records,
    hash_text,
    iter_records,
    properties_tags_code,
    property_value,
)
from iotmq.message.tags import tag_hash

FIELDS = tuple(OracleRecord.__dataclass_fields__)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
# Pieces that look like properties, and pieces that only nearly do.
pieces = (b"TAGS", b"KEYS", b"T", b"\x01", b"\x02", b"x", b"TagA", b"\xff", b"\xc3\xa9", b"longer value")
raw_properties = st.lists(st.sampled_from(pieces), max_size=24).map(b"".join)
bodies = st.binary(max_size=200)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
topics = st.text(max_size=31)


@st.composite
def records(draw: st.DrawFn) -> OracleRecord:
    born_host, store_host = draw(hosts), draw(hosts)
    sys_flag = draw(int32) & ~(1 | 16 | 32)
    return OracleRecord(
        topic=draw(topics),
        body=draw(bodies),
        properties=draw(raw_properties),
        queue_id=draw(int32),
        flag=draw(int32),
        queue_offset=draw(int64),
        position=draw(int64),
        sys_flag=sys_flag | (len(born_host) == 20) << 4 | (len(store_host) == 20) << 5,
        born_timestamp_ms=draw(int64),
        born_host=born_host,
        store_timestamp_ms=draw(int64),
        store_host=store_host,
        reconsume_times=draw(int32),
        prepared_position=draw(int64),
    )


elements = st.tuples(bodies, raw_properties, int32)


def fields_of(record: OracleRecord | Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in FIELDS}


@given(records())
def test_encoding_is_the_twins(record: OracleRecord) -> None:
    encoded = encode(record)
    assert encode_record(**fields_of(record)) == encoded
    assert check_record(encoded, position=record.position) == len(encoded)


@given(st.lists(st.tuples(records(), st.sampled_from([MAGIC, MAGIC_LONG_TOPIC])), max_size=5))
def test_decoding_is_the_twins(drawn: list[tuple[OracleRecord, int]]) -> None:
    buffer = b"".join(encode(record, magic=magic) for record, magic in drawn)
    assert [fields_of(record) for record in iter_records(buffer)] == [
        fields_of(record) for record, _ in drawn
    ]


@given(st.lists(elements, min_size=1, max_size=6))
def test_batches_are_the_twins(drawn: list[tuple[bytes, bytes, int]]) -> None:
    batch = encode_batch(drawn)
    assert batch == b"".join(encode_element(*element) for element in drawn)
    assert check_batch(batch) == len(drawn)
    assert decode_batch(batch) == drawn


@given(st.lists(elements, min_size=1, max_size=6), raw_properties, records())
def test_a_batch_becomes_records_with_its_properties_behind_their_own(
    drawn: list[tuple[bytes, bytes, int]], batch_properties: bytes, shared: OracleRecord
) -> None:
    own = ("body", "properties", "flag", "queue_offset", "position")
    fields = {name: value for name, value in fields_of(shared).items() if name not in own}
    position, queue_offset = 4096, 7
    buffer = encode_records(
        encode_batch(drawn),
        batch_properties=batch_properties,
        queue_offset=queue_offset,
        position=position,
        **fields,
    )
    for record, (body, properties, flag) in zip(iter_records(buffer), drawn, strict=True):
        joined = join_properties(properties, batch_properties)
        expected = OracleRecord(
            body=body, properties=joined, flag=flag, queue_offset=queue_offset, position=position, **fields
        )
        assert fields_of(record) == fields_of(expected)
        assert decode(buffer, position - 4096)[0] == expected
        position += record.size
        queue_offset += 1


def test_joined_properties_limit() -> None:
    longest = 32_767 - 1 - 10
    for size, batch_properties, fits in (
        (longest, b"0123456789", True),
        (longest + 1, b"0123456789", False),
        (32_767, b"", True),
    ):
        batch = encode_batch([(b"", b"x" * size, 0)])
        if fits:
            encoded = encode_records(batch, topic="T", batch_properties=batch_properties)
            assert len(decode_record(encoded).properties) == 32_767
        else:
            with pytest.raises(MessageFormatError, match="element 0: properties longer"):
                encode_records(batch, topic="T", batch_properties=batch_properties)


@given(st.text() | st.text(alphabet="aé告😀\U00010000\uffff"))
def test_tag_hash_is_the_twins(text: str) -> None:
    assert tag_hash(text) == java_hash(text)


@given(
    st.binary(max_size=40)
    | st.lists(st.sampled_from([0xE0, 0xED, 0xF0, 0xF4, 0xC2, 0x80, 0x9F, 0xA0, 0x41])).map(bytes)
)
def test_the_hash_of_malformed_text_is_that_of_its_replacement(text: bytes) -> None:
    assert hash_text(text) == java_hash(text.decode("utf-8", "replace"))


@given(raw_properties)
def test_properties_are_found_as_the_twin_finds_them(raw: bytes) -> None:
    pairs = properties_of(raw)
    assert properties_tags_code(raw) == tags_code(raw)
    for name in (b"TAGS", b"KEYS", b"T", b"x"):
        assert property_value(raw, name) == pairs.get(name)
    pairs.pop(b"", None)
    assert decode_properties(raw) == {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs.items()
    }


text_without_separators = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))


@given(st.dictionaries(text_without_separators.filter(bool), text_without_separators))
def test_properties_round_trip(pairs: dict[str, str]) -> None:
    assert decode_properties(encode_properties(pairs)) == pairs


def column_rows(parts: list[Columns], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return [tuple(part.value(name, index) for name in names) for part in parts for index in range(part.count)]


COLUMN_OF_FIELD = {
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "position": "position",
    "born_timestamp": "born_timestamp_ms",
    "store_timestamp": "store_timestamp_ms",
    "flag": "flag",
    "sys_flag": "sys_flag",
    "reconsume_times": "reconsume_times",
    "body": "body",
    "topic": "topic",
    "properties": "properties",
}


@given(st.lists(records(), max_size=8), st.integers(1, 8), st.integers(1, 500))
def test_columns_hold_what_the_twin_decodes(
    drawn: list[OracleRecord], records_max: int, bytes_max: int
) -> None:
    buffer = b"".join(map(encode, drawn))
    names = (*COLUMN_OF_FIELD, "tags_code", "property.TAGS", "property.T")
    keys = ("TAGS", "T")
    expected = []
    for record in drawn:
        pairs = properties_of(record.properties)
        expected.append(
            (
                *(getattr(record, field) for field in COLUMN_OF_FIELD.values()),
                tags_code(record.properties),
                *(pairs[key].decode("utf-8", "replace") if key in pairs else None for key in (b"TAGS", b"T")),
            )
        )
    parts = list(
        iter_columns(buffer, keys=keys, records_max=records_max, bytes_max=bytes_max, check_crc=True)
    )
    assert column_rows(parts, names) == expected
    assert all(part.count <= records_max for part in parts)
    for part in parts:
        part.to_arrow().validate(full=True)
    assert column_rows([decode_columns(buffer, keys=keys)], names) == expected


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` with some bytes changed, numbers put over it at random places, and its end cut off."""
    data = bytearray(whole)
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)
    ):
        data[at] = value
    extremes = st.sampled_from([0, 1, 22, 91, 2**15, 2**31 - 1, 2**31, 2**32 - 1])
    for at, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 4), extremes), max_size=2)):
        struct.pack_into(">I", data, at, value)
    return bytes(data[: draw(st.just(len(data)) | st.integers(0, len(data)))])


damaged_records = st.lists(records(), min_size=1, max_size=3).flatmap(
    lambda drawn: damaged(b"".join(map(encode, drawn)))
)


@given(damaged_records | st.binary(max_size=300))
def test_damaged_records_are_refused_where_the_twin_refuses(data: bytes) -> None:
    try:
        expected = decode_all(data)
    except OracleError:
        expected = None
    if expected is None:
        with pytest.raises(MessageFormatError):
            list(iter_records(data))
        with pytest.raises(MessageFormatError):
            decode_columns(data, columns=("queue_id",))
    else:
        assert [fields_of(record) for record in iter_records(data)] == [fields_of(each) for each in expected]
        columns = decode_columns(data, keys=("TAGS",), bad_bodies="null")
        columns.to_arrow().validate(full=True)
        assert columns.count == len(expected)


@given(st.lists(elements, min_size=1, max_size=3).flatmap(lambda drawn: damaged(encode_batch(drawn))))
def test_damaged_batches_are_refused_where_the_twin_refuses(data: bytes) -> None:
    try:
        expected = decode_batch(data)
    except OracleError:
        expected = []
    if expected:
        assert check_batch(data) == len(expected)
    else:
        with pytest.raises(MessageFormatError):
            check_batch(data)


@given(st.binary(max_size=400), st.integers(0, 400), st.sampled_from([1, 0x301]))
def test_damaged_compressed_bodies_are_refused_where_zlib_refuses(
    plain: bytes, at: int, sys_flag: int
) -> None:
    body = bytearray(zlib.compress(plain))
    body[at % len(body)] ^= 1 << (at % 8)
    inflater = zlib.decompressobj()
    try:
        expected: bytes | None = inflater.decompress(bytes(body))
    except zlib.error:
        expected = None
    if not inflater.eof:
        expected = None
    columns = decode_columns(encode_record(topic="T", body=bytes(body), sys_flag=sys_flag), bad_bodies="null")
    assert columns.value("body", 0) == expected
