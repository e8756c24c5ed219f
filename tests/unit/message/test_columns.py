"""A pull response as columns: values, Arrow types, compressed bodies, limits and broken records."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import zlib
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from record_oracle import MAGIC_LONG_TOPIC, OracleRecord, encode

from iotmq.limits import COLUMN_PROPERTIES_MAX, INFLATED_BODY_BYTES_MAX
from iotmq.message.bodies import compress_body
from iotmq.message.compression import Compression, compress
from iotmq.message.errors import CompressionMissingError, MessageFormatError
from iotmq.message.hosts import encode_host
from iotmq.message.records.columns import COLUMNS, Columns, decode_columns, iter_columns
from iotmq.message.records.record import encode_record
from iotmq.message.tags import tag_hash

METHODS = [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)]
PROPERTIES = b"MQTT_TOPIC\x01devices/7/telemetry\x02KEYS\x017\x02TAGS\x01TagA\x02"


def record(number: int = 0, **fields: Any) -> bytes:
    given = {
        "topic": "devices",
        "body": b"body %d" % number,
        "properties": PROPERTIES,
        "queue_id": 3,
        "flag": -2,
        "queue_offset": number,
        "position": 1000 + number,
        "born_timestamp_ms": 1_700_000_000_000 + number,
        "store_timestamp_ms": 1_700_000_000_100 + number,
        "reconsume_times": 4,
    }
    return encode_record(**{**given, **fields})


def values(columns: Columns, name: str) -> list[Any]:
    return [columns.value(name, index) for index in range(columns.count)]


def test_columns_hold_the_fields_of_each_record() -> None:
    columns = decode_columns(record(0) + record(1))
    assert len(columns) == columns.count == 2
    assert columns.names == COLUMNS
    assert columns.end == 2 * len(record())
    assert {name: values(columns, name) for name in COLUMNS} == {
        "queue_id": [3, 3],
        "queue_offset": [0, 1],
        "position": [1000, 1001],
        "born_timestamp": [1_700_000_000_000, 1_700_000_000_001],
        "store_timestamp": [1_700_000_000_100, 1_700_000_000_101],
        "flag": [-2, -2],
        "sys_flag": [0, 0],
        "reconsume_times": [4, 4],
        "tags_code": [tag_hash("TagA")] * 2,
        "body": [b"body 0", b"body 1"],
        "topic": ["devices", "devices"],
        "properties": [PROPERTIES, PROPERTIES],
    }


def test_arrow_gets_types_and_values() -> None:
    columns = decode_columns(record(0) + record(1), keys=("KEYS", "DELAY"), timestamp_unit="us")
    batch = columns.to_arrow()
    batch.validate(full=True)
    assert batch.num_rows == 2
    assert {field.name: str(field.type) for field in batch.schema} == {
        "queue_id": "int32",
        "queue_offset": "int64",
        "position": "int64",
        "born_timestamp": "timestamp[us, tz=UTC]",
        "store_timestamp": "timestamp[us, tz=UTC]",
        "flag": "int32",
        "sys_flag": "int32",
        "reconsume_times": "int32",
        "tags_code": "int64",
        "body": "binary",
        "topic": "string",
        "properties": "binary",
        "KEYS": "string",
        "DELAY": "string",
    }
    assert batch["born_timestamp"].cast(pa.int64()).to_pylist() == [
        1_700_000_000_000_000,
        1_700_000_000_001_000,
    ]
    assert batch["body"].to_pylist() == [b"body 0", b"body 1"]
    assert batch["KEYS"].to_pylist() == ["7", "7"]
    assert batch["DELAY"].to_pylist() == [None, None]


def test_arrow_and_numpy_share_the_memory() -> None:
    columns = decode_columns(record())
    _, _, data = columns.buffers("body")
    address = np.frombuffer(data, dtype=np.uint8).ctypes.data
    assert columns.to_arrow()["body"].buffers()[2].address == address
    offsets = columns.numpy("queue_offset")
    assert columns.to_arrow()["queue_offset"].buffers()[1].address == offsets.ctypes.data
    assert not offsets.flags.writeable
    with pytest.raises(TypeError, match="not writable"):
        ctypes.c_char.from_buffer(data)


def test_arrow_outlives_columns_and_input() -> None:
    buffer = bytearray(record())
    batch = decode_columns(buffer).to_arrow()
    buffer[:] = bytes(len(buffer))
    assert batch["body"].to_pylist() == [b"body 0"]


def test_arrow_fields_can_be_renamed_and_ordered() -> None:
    columns = decode_columns(record(), columns=("body", "queue_offset"), keys=("KEYS",))
    assert columns.names == ("body", "queue_offset", "property.KEYS")
    batch = columns.to_arrow({"key": "property.KEYS", "offset": "queue_offset"})
    assert batch.to_pydict() == {"key": ["7"], "offset": [0]}


def test_a_property_named_like_a_column_needs_a_name() -> None:
    columns = decode_columns(record(properties=b"body\x01b\x02"), columns=("body",), keys=("body",))
    assert columns.to_arrow({"a": "body", "b": "property.body"}).to_pydict() == {"a": [b"body 0"], "b": ["b"]}
    with pytest.raises(ValueError, match="give to_arrow its fields"):
        columns.to_arrow()


def test_numpy_takes_columns_of_numbers() -> None:
    columns = decode_columns(record(0) + record(1))
    assert columns.numpy("queue_id").dtype == np.int32
    assert columns.numpy("position").tolist() == [1000, 1001]
    with pytest.raises(TypeError, match="'body' is not one of numbers"):
        columns.numpy("body")


def test_no_records_are_columns_of_nothing() -> None:
    columns = decode_columns(b"", keys=("KEYS",))
    assert columns.count == 0
    batch = columns.to_arrow()
    batch.validate(full=True)
    assert batch.num_rows == 0
    assert list(iter_columns(b"")) == []


def test_a_value_is_looked_up_within_bounds() -> None:
    columns = decode_columns(record())
    for index in (-1, 1):
        with pytest.raises(IndexError, match="of 1"):
            columns.value("flag", index)


def test_properties_picked_out_are_null_where_missing() -> None:
    raw = [
        PROPERTIES,
        b"",
        b"KEYS\x011\x02KEYS\x012",
        b"KEYS\x01\x02",
        b"KEYS\x02XKEYS\x01no\x02",
        "KEYS\x01schlüssel\x02".encode(),
        b"\x02\x02MQTT_TOPIC\x01a/b",
        b"KEYS\x01" + b"long" * 1000,
    ]
    columns = decode_columns(b"".join(record(properties=each) for each in raw), keys=("KEYS", "MQTT_TOPIC"))
    batch = columns.to_arrow()
    batch.validate(full=True)
    assert batch["KEYS"].to_pylist() == ["7", None, "2", "", None, "schlüssel", None, "long" * 1000]
    assert batch["MQTT_TOPIC"].to_pylist() == ["devices/7/telemetry", *[None] * 5, "a/b", None]
    assert values(columns, "property.KEYS") == batch["KEYS"].to_pylist()
    assert batch["KEYS"].null_count == 3


def test_text_that_is_not_utf8_gets_replacement_characters() -> None:
    wrong = [
        b"\xff",
        b"a\xc3",
        b"\xe6\xb8",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98\x80",
        b"\xc0\x80x",
        b"12345678\xf5",
    ]
    columns = decode_columns(b"".join(record(properties=b"K\x01" + each) for each in wrong), keys=("K",))
    columns.to_arrow().validate(full=True)
    assert values(columns, "property.K") == [each.decode("utf-8", "replace") for each in wrong]


def test_ipv6_hosts_and_long_topics_are_decoded_among_others() -> None:
    v6 = encode_host("fe80::1", 1883)
    long_topic = encode(
        OracleRecord(topic="t" * 300, body=b"long", properties=PROPERTIES), magic=MAGIC_LONG_TOPIC
    )
    columns = decode_columns(
        b"".join(
            (
                record(0),
                record(1, born_host=v6),
                record(2, store_host=v6),
                record(3, born_host=v6, store_host=v6),
                long_topic,
            )
        )
    )
    assert values(columns, "sys_flag") == [0, 16, 32, 48, 0]
    assert values(columns, "reconsume_times") == [4, 4, 4, 4, 0]
    assert values(columns, "body") == [b"body 0", b"body 1", b"body 2", b"body 3", b"long"]
    assert values(columns, "topic")[3:] == ["devices", "t" * 300]


def test_timestamps_stick_at_the_ends_of_their_range() -> None:
    ends = (2**63 - 1, -(2**63), 2**63 // 1000, -(2**63 // 1000))
    columns = decode_columns(b"".join(record(born_timestamp_ms=ms) for ms in ends), timestamp_unit="us")
    assert values(columns, "born_timestamp") == [
        2**63 - 1,
        -(2**63),
        2**63 // 1000 * 1000,
        -(2**63 // 1000 * 1000),
    ]


@pytest.mark.parametrize(("method", "flag"), METHODS)
def test_compressed_bodies_are_inflated(method: Compression, flag: int) -> None:
    body, sys_flag = compress_body(b"telemetry " * 5000, method)
    compressed = record(1, body=body, sys_flag=sys_flag)
    columns = decode_columns(record(0) + compressed + record(2) + compressed, check_crc=True)
    assert values(columns, "body") == [b"body 0", b"telemetry " * 5000, b"body 2", b"telemetry " * 5000]
    assert values(columns, "sys_flag") == [0, flag, 0, flag]
    assert values(decode_columns(compressed, inflate=False), "body") == [body]


def test_an_older_senders_compressed_body_is_inflated() -> None:
    assert values(decode_columns(record(body=zlib.compress(b"abc"), sys_flag=1)), "body") == [b"abc"]


def test_incompressible_bodies_longer_than_a_step_are_inflated() -> None:
    plain = random.Random(1).randbytes(100_000)
    assert values(decode_columns(record(body=zlib.compress(plain), sys_flag=1)), "body") == [plain]


@pytest.mark.parametrize(("method", "flag"), METHODS)
def test_inflated_size_limit(method: Compression, flag: int) -> None:
    def compressed(plain: bytes) -> bytes:
        return record(body=compress(plain, method, 5), sys_flag=flag)

    at_limit = compressed(bytes(INFLATED_BODY_BYTES_MAX))
    past_limit = compressed(bytes(INFLATED_BODY_BYTES_MAX + 1))
    assert values(decode_columns(at_limit), "body") == [bytes(INFLATED_BODY_BYTES_MAX)]
    with pytest.raises(MessageFormatError, match="inflates past the limit"):
        decode_columns(past_limit)
    small = compressed(b"abc")
    assert values(decode_columns(small, inflated_bytes_max=3), "body") == [b"abc"]
    with pytest.raises(MessageFormatError, match="inflates past the limit"):
        decode_columns(small, inflated_bytes_max=2)
    assert values(decode_columns(compressed(b""), inflated_bytes_max=0), "body") == [b""]


@pytest.mark.parametrize("bad_bodies", ["raise", "null"])
def test_a_missing_library_is_never_a_null(
    bad_bodies: Literal["raise", "null"], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = record(0) + record(1, body=compress(b"abc", "zstd", 5), sys_flag=0x201)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        CompressionMissingError, match=r"record 1 at byte \d+: zstd needs .*iotmq\[compression\]"
    ):
        decode_columns(buffer, bad_bodies=bad_bodies)


@pytest.mark.parametrize(
    ("body", "sys_flag", "reason"),
    [
        (b"not zlib", 1, "damaged"),
        (b"", 1, "damaged"),
        (zlib.compress(b"abc")[:-1], 1, "damaged"),
        (zlib.compress(bytes(100_000))[:-1], 1, "damaged"),
        (zlib.compress(bytes(16_384))[:-1], 1, "damaged"),
        (zlib.compress(b"abc"), 0x101, "damaged"),
        (compress_body(bytes(999), "lz4")[0][:-1], 0x101, "damaged"),
        (compress_body(bytes(999), "zstd")[0][:-1], 0x201, "damaged"),
        (zlib.compress(b"abc"), 0x401, "an unknown way"),
    ],
)
def test_bodies_that_cannot_be_inflated_are_an_error_or_null(body: bytes, sys_flag: int, reason: str) -> None:
    buffer = record(0) + record(1, body=body, sys_flag=sys_flag) + record(2)
    with pytest.raises(MessageFormatError, match=f"record 1 at byte {len(record(0))}: .*{reason}") as caught:
        decode_columns(buffer)
    assert caught.value.at == len(record(0))
    columns = decode_columns(buffer, bad_bodies="null")
    assert values(columns, "body") == [b"body 0", None, b"body 2"]
    assert columns.bad_body_count == 1
    batch = columns.to_arrow()
    batch.validate(full=True)
    assert batch["body"].to_pylist() == [b"body 0", None, b"body 2"]


def test_crc_is_checked_when_asked() -> None:
    broken = bytearray(record(0) + record(1))
    broken[88] ^= 1
    assert values(decode_columns(broken), "body") == [b"cody 0", b"body 1"]
    with pytest.raises(MessageFormatError, match="record 0 at byte 0: its body does not match its CRC"):
        decode_columns(broken, check_crc=True)
    columns = decode_columns(broken, check_crc=True, bad_bodies="null")
    assert values(columns, "body") == [None, b"body 1"]


def test_a_broken_record_is_named() -> None:
    with pytest.raises(
        MessageFormatError, match=f"record 1 at byte {len(record())}: its size field"
    ) as caught:
        decode_columns(record(0) + record(1)[:-1])
    assert (caught.value.at, caught.value.code) == (len(record()), 13)
    parts = iter_columns(record(0) + record(1)[:-1], records_max=1)
    assert next(parts).count == 1
    with pytest.raises(MessageFormatError, match="record 0 at byte"):
        next(parts)


def test_iter_columns_ends_after_records_max() -> None:
    buffer = b"".join(map(record, range(7)))
    parts = list(iter_columns(buffer, columns=("queue_offset",), records_max=3))
    assert [part.numpy("queue_offset").tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert parts[-1].end == len(buffer)
    with pytest.raises(MessageFormatError, match="past the records or bytes"):
        decode_columns(buffer, records_max=6)
    assert decode_columns(buffer, records_max=7).count == 7


def test_iter_columns_ends_before_bytes_max() -> None:
    buffer = b"".join(record(number, body=bytes(10)) for number in range(5))
    options: dict[str, Any] = {"keys": ("KEYS",), "bad_bodies": "null"}
    parts = list(iter_columns(buffer, bytes_max=20, **options))
    assert [part.count for part in parts] == [2, 2, 1]
    assert [values(part, "queue_offset") for part in parts] == [[0, 1], [2, 3], [4]]
    for part in parts:
        part.to_arrow().validate(full=True)
    assert [part.count for part in iter_columns(buffer, bytes_max=19, **options)] == [1] * 5
    # One record alone is taken whatever its size.
    assert [part.count for part in iter_columns(buffer, bytes_max=1, **options)] == [1] * 5
    assert decode_columns(buffer, bytes_max=50).count == 5
    with pytest.raises(MessageFormatError, match="past the records or bytes"):
        decode_columns(buffer, bytes_max=49)


def test_well_compressed_bodies_count_as_what_they_become() -> None:
    buffer = record(body=zlib.compress(bytes(1000)), sys_flag=1) * 3
    assert [part.count for part in iter_columns(buffer, bytes_max=2000)] == [2, 1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"columns": ("offset",)}, "no column 'offset'"),
        ({"columns": ("body", "body")}, "asked for twice"),
        ({"keys": ("KEYS", "KEYS")}, "asked for twice"),
        ({"keys": ("",)}, "cannot be the name"),
        ({"keys": ("A\x01",)}, "cannot be the name"),
        ({"keys": ("A\x02",)}, "cannot be the name"),
        ({"timestamp_unit": "s"}, "timestamp_unit"),
        ({"bad_bodies": "skip"}, "bad_bodies"),
        ({"records_max": 0}, "out of its range"),
        ({"bytes_max": 0}, "out of its range"),
        ({"bytes_max": 2**31}, "out of its range"),
        ({"inflated_bytes_max": -1}, "out of its range"),
    ],
)
def test_wrong_options_are_the_callers_fault(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_columns(record(), **options)


def test_properties_asked_for_limit() -> None:
    names = [f"P{number}" for number in range(COLUMN_PROPERTIES_MAX + 1)]
    assert len(decode_columns(record(), columns=(), keys=names[:-1]).names) == COLUMN_PROPERTIES_MAX
    with pytest.raises(ValueError, match="more than 64 properties"):
        decode_columns(record(), keys=names)


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_the_timestamp_unit_is_known(unit: Literal["ms", "us"]) -> None:
    assert decode_columns(record(), timestamp_unit=unit).timestamp_unit == unit


def test_the_decoder_does_not_load_numpy_or_pyarrow() -> None:
    code = (
        "import sys, iotmq.message.records.columns as c, iotmq.message.records.record as r\n"
        "c.decode_columns(r.encode_record(topic='T', body=b'b'))\n"
        "sys.exit(bool({'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
