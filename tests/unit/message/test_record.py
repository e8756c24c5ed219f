"""Records and batches: golden vectors, limits, and what broken bytes get."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from record_oracle import MAGIC_LONG_TOPIC, OracleRecord, encode

from iotmq.limits import BATCH_RECORDS_MAX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from iotmq.message.errors import MessageFormatError
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import (
    body_checksum,
    check_batch,
    check_record,
    decode_record,
    encode_batch,
    encode_record,
    iter_records,
    properties_tags_code,
    property_value,
)
from iotmq.message.tags import expression_codes, expression_tags, tag_hash

# The record of the wire document's golden vectors.
GOLDEN = bytes.fromhex(
    "00000073daa320a73610a686000000020000000000000000000000030000000000001000000000000000018bcfe56800"
    "7f000001000013880000018bcfe568057f00000100002a9f0000000000000000000000000000000568656c6c6f015400"
    "12544147530154616741024b455953016b3102"
)
MQTT_PROPERTIES = (
    b"MQTT_TOPIC\x01devices/7/telemetry\x02KEYS\x017\x02MQTT_CLIENT_ID\x01c7\x02MQTT_QOS\x011\x02"
)


def golden_record() -> bytes:
    return encode_record(
        topic="T",
        body=b"hello",
        properties=b"TAGS\x01TagA\x02KEYS\x01k1\x02",
        queue_id=2,
        queue_offset=3,
        position=4096,
        born_timestamp_ms=1_700_000_000_000,
        born_host=encode_host("127.0.0.1", 5000),
        store_timestamp_ms=1_700_000_000_005,
        store_host=encode_host("127.0.0.1", 10911),
    )


def put(data: bytes, at: int, code: str, value: int) -> bytes:
    """`data` with one big-endian number overwritten."""
    changed = bytearray(data)
    struct.pack_into(">" + code, changed, at, value)
    return bytes(changed)


def test_the_golden_record_is_encoded_byte_for_byte() -> None:
    assert golden_record() == GOLDEN


def test_the_golden_record_decodes_to_its_fields() -> None:
    record = decode_record(GOLDEN)
    assert (record.size, record.magic, record.body_crc) == (115, 0xDAA320A7, 0x3610A686)
    assert (record.queue_id, record.flag, record.queue_offset, record.position) == (2, 0, 3, 4096)
    assert (record.sys_flag, record.reconsume_times, record.prepared_position) == (0, 0, 0)
    assert (record.born_timestamp_ms, record.store_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_005)
    assert record.born_host == encode_host("127.0.0.1", 5000)
    assert record.store_host == encode_host("127.0.0.1", 10911)
    assert (record.topic, record.body) == ("T", b"hello")
    assert record.properties == b"TAGS\x01TagA\x02KEYS\x01k1\x02"
    assert properties_tags_code(record.properties) == 2_598_919
    assert check_record(GOLDEN, position=4096) == 115


def test_a_record_says_what_it_is() -> None:
    assert repr(decode_record(GOLDEN)) == "<Record 'T' queue 2 offset 3 position 4096 body 5 B>"


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("TagA", 2_598_919),
        ("TagB", 2_598_920),
        ("*", 42),
        ("", 0),
        ("polygenelubricants", -2_147_483_648),
        ("temperature", 321_701_236),
        ("告警", 704_604),
        ("😀", 1_772_899),
        ("TopicTest#KEY1", -1_656_969_516),
    ],
)
def test_tag_hash_is_javas(tag: str, code: int) -> None:
    assert tag_hash(tag) == code
    assert properties_tags_code(b"TAGS\x01" + tag.encode()) == code


def test_body_checksum_has_31_bits() -> None:
    assert body_checksum(b"hello") == 907_060_870
    assert body_checksum(b"") == 0


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", ()),
        ("", ()),
        (" * ", ()),
        ("TagA", ("TagA",)),
        ("TagA || TagB", ("TagA", "TagB")),
        ("TagA||TagB||TagA|| ", ("TagA", "TagB")),
        (" || ", ()),
    ],
)
def test_filter_expressions(expression: str, tags: tuple[str, ...]) -> None:
    assert expression_tags(expression) == tags
    assert expression_codes(expression) == (frozenset(map(tag_hash, tags)) if tags else None)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"", 0),
        (MQTT_PROPERTIES, 0),
        (MQTT_PROPERTIES + b"TAGS\x01TagA\x02", 2_598_919),
        (b"TAGS\x01TagA\x02" + MQTT_PROPERTIES, 2_598_919),
        (b"TAGS\x01TagB\x02TAGS\x01TagA", 2_598_919),
        (b"TAGS\x01TagA\x02TAGS\x01\x02", 0),
        (b"TAGS", 0),
        (b"TAGS\x02", 0),
        (b"XTAGS\x01TagA\x02", 0),
        (b"TAGSX\x01TagA\x02", 0),
        (b"KEYS\x01TAGS\x01TagA\x02", 0),
        (b"\x02\x02TAGS\x01TagA", 2_598_919),
        (b"MSG_REGION\x01TAGS\x02GGTAGS\x01TagB\x02TAGS\x01TagA\x02G", 2_598_919),
        (b"MSG_REGION\x01G\x02TRACE_ON\x01true\x02TAGS", 0),
        (b"TAGS\x01", 0),
        (b"G", 0),
    ],
)
def test_tags_code_finds_the_tags_property_only(properties: bytes, code: int) -> None:
    assert properties_tags_code(properties) == code


def test_property_value_takes_the_last_of_several() -> None:
    assert property_value(b"A\x011\x02B\x012\x02A\x013\x02", b"A") == b"3"
    assert property_value(b"A\x01\x02", b"A") == b""
    assert property_value(b"A\x011\x02", b"B") is None
    assert property_value(b"", b"A") is None


@pytest.mark.parametrize(("born", "store"), [("::1", "10.0.0.1"), ("10.0.0.1", "fe80::2"), ("::1", "::2")])
def test_ipv6_hosts_move_the_fields_behind_them(born: str, store: str) -> None:
    encoded = encode_record(
        topic="T",
        body=b"body",
        properties=b"A\x01b",
        born_host=encode_host(born, 1),
        store_host=encode_host(store, 2),
        store_timestamp_ms=5,
        reconsume_times=6,
    )
    record = decode_record(encoded)
    assert record.born_host == encode_host(born, 1)
    assert record.store_host == encode_host(store, 2)
    assert record.sys_flag == (16 if ":" in born else 0) | (32 if ":" in store else 0)
    assert (record.store_timestamp_ms, record.reconsume_times) == (5, 6)
    assert (record.body, record.topic, record.properties) == (b"body", "T", b"A\x01b")


def test_the_host_bits_follow_the_hosts_not_the_argument() -> None:
    assert decode_record(encode_record(topic="T", body=b"", sys_flag=16 | 32 | 1)).sys_flag == 1


def test_a_host_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="8 or 20 bytes, not 4"):
        encode_record(topic="T", body=b"", born_host=b"1234")


def test_records_with_the_long_topic_magic_are_read() -> None:
    topic = "t" * 300
    encoded = encode(OracleRecord(topic=topic, body=b"b", properties=b"A\x01b"), magic=MAGIC_LONG_TOPIC)
    record = decode_record(encoded)
    assert (record.topic, record.body, record.properties) == (topic, b"b", b"A\x01b")


def test_an_empty_body_is_legal() -> None:
    assert decode_record(encode_record(topic="T", body=b"")).body == b""


def test_topic_limit() -> None:
    assert decode_record(encode_record(topic="t" * TOPIC_BYTES_MAX, body=b"")).topic == "t" * TOPIC_BYTES_MAX
    with pytest.raises(MessageFormatError, match="topic longer than 127 bytes"):
        encode_record(topic="t" * (TOPIC_BYTES_MAX + 1), body=b"")


def test_properties_limit() -> None:
    longest = b"p" * PROPERTIES_BYTES_MAX
    assert decode_record(encode_record(topic="T", body=b"", properties=longest)).properties == longest
    assert check_batch(encode_batch([(b"", longest, 0)])) == 1
    with pytest.raises(MessageFormatError, match="properties longer than 32767 bytes"):
        encode_record(topic="T", body=b"", properties=longest + b"p")
    with pytest.raises(MessageFormatError, match="element 1: properties longer"):
        encode_batch([(b"", b"", 0), (b"", longest + b"p", 0)])


def test_iter_records_walks_a_pull_response() -> None:
    second = encode_record(topic="U", body=b"2")
    assert [record.topic for record in iter_records(GOLDEN + second)] == ["T", "U"]
    assert list(iter_records(b"")) == []
    assert decode_record(memoryview(GOLDEN + second), len(GOLDEN)).body == b"2"


def test_iter_records_names_the_byte_of_a_broken_record() -> None:
    records = iter_records(GOLDEN + GOLDEN[:-1])
    next(records)
    with pytest.raises(MessageFormatError, match="record at byte 115: its size field") as caught:
        next(records)
    assert caught.value.at == 115
    assert caught.value.code == 13


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"", "fewer bytes left"),
        (GOLDEN[:90], "fewer bytes left"),
        (GOLDEN[:114], "runs past the end"),
        (put(GOLDEN, 0, "i", 90), "its size field"),
        (put(GOLDEN, 0, "i", 116), "its size field"),
        (put(GOLDEN, 0, "i", -1), "its size field"),
        (put(GOLDEN, 4, "I", 0xCBD43194), "wrong magic"),
        (put(GOLDEN, 84, "i", -1), "its body runs past"),
        (put(GOLDEN, 84, "i", 2**31 - 1), "its body runs past"),
        (put(GOLDEN, 84, "i", 25), "its body runs past"),
        (put(GOLDEN, 93, "B", 20), "its topic runs past"),
        (put(GOLDEN, 95, "H", 19), "its properties run past"),
        (put(GOLDEN, 95, "H", 0x8000), "its properties run past"),
        (put(GOLDEN, 95, "H", 17), "do not add up"),
        (put(GOLDEN, 36, "i", 16), "body runs past|topic runs past|do not add up"),
        (put(GOLDEN, 36, "i", 48), "its size field|runs past|run past|do not add up"),
    ],
)
def test_broken_records_are_refused_with_the_reason(broken: bytes, reason: str) -> None:
    with pytest.raises(MessageFormatError, match=reason):
        decode_record(broken)
    with pytest.raises(MessageFormatError, match=reason):
        check_record(broken)


@pytest.mark.parametrize("at", [-1, 116, 2**62])
def test_a_start_outside_the_buffer_is_refused(at: int) -> None:
    with pytest.raises(MessageFormatError, match="no record at byte"):
        decode_record(GOLDEN, at)


def test_check_record_compares_crc_and_position() -> None:
    with pytest.raises(MessageFormatError, match="does not match its CRC"):
        check_record(put(GOLDEN, 88, "B", ord("j")))
    with pytest.raises(MessageFormatError, match="says position 4096, expected 4097"):
        check_record(GOLDEN, position=4097)
    decode_record(put(GOLDEN, 88, "B", ord("j")))


def test_a_topic_that_is_not_utf8_is_still_readable() -> None:
    assert decode_record(put(GOLDEN, 94, "B", 0xFF)).topic == "\ufffd"


def test_a_batch_is_elements_one_after_another() -> None:
    batch = encode_batch([(b"hello", b"A\x01b", 7), (b"", b"", -1)])
    assert batch == bytes.fromhex(
        "0000001e0000000000000000000000070000000568656c6c6f0003410162"
        "000000160000000000000000ffffffff000000000000"
    )
    assert check_batch(batch) == 2


def test_batch_limit() -> None:
    element = encode_batch([(b"", b"", 0)])
    assert check_batch(element * BATCH_RECORDS_MAX) == BATCH_RECORDS_MAX
    with pytest.raises(MessageFormatError, match="more than 65536 elements"):
        check_batch(element * (BATCH_RECORDS_MAX + 1))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(MessageFormatError, match="without elements"):
        check_batch(b"")


def test_the_magic_and_crc_of_elements_are_not_looked_at() -> None:
    element = encode_batch([(b"hello", b"", 0)])
    assert check_batch(put(put(element, 4, "I", 0xDAA320A7), 8, "I", 1)) == 1


ELEMENT = encode_batch([(b"hello", b"A\x01b", 0)])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (ELEMENT[:21], "fewer bytes left"),
        (ELEMENT[:-1], "its size field"),
        (put(ELEMENT, 0, "i", 21), "its size field"),
        (put(ELEMENT, 0, "i", 31), "its size field"),
        (put(ELEMENT, 0, "i", -(2**31)), "its size field"),
        (put(ELEMENT, 16, "i", -1), "its body runs past"),
        (put(ELEMENT, 16, "i", 9), "its body runs past"),
        (put(ELEMENT, 25, "h", 4), "do not add up"),
        (put(ELEMENT, 25, "h", 2), "do not add up"),
        (put(ELEMENT, 25, "h", -1), "its properties run past"),
    ],
)
def test_broken_elements_are_refused_with_the_place(broken: bytes, reason: str) -> None:
    with pytest.raises(MessageFormatError, match=f"batch element 1 at byte 30: .*{reason}") as caught:
        check_batch(ELEMENT + broken)
    assert caught.value.at == 30


@pytest.mark.parametrize("size", [*range(300), 1_000, 65_535, 100_003])
def test_body_checksum_is_zlibs_at_every_size(size: int) -> None:
    body = random.Random(size).randbytes(size)
    assert body_checksum(body) == zlib.crc32(body) & 0x7FFFFFFF
    assert body_checksum(bytes(size)) == zlib.crc32(bytes(size)) & 0x7FFFFFFF
