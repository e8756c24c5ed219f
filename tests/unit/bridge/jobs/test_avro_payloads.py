"""Columns and values of Avro records."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from iotmq.bridge.jobs.avro_payloads import avro_parser, avro_schema
from iotmq.errors import ConfigError

SAMPLE = {"type": "record", "name": "Sample", "fields": [{"name": "x", "type": "float"}]}
STATE = {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}
FIELDS: dict[str, Any] = {
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "day": {"type": "int", "logicalType": "date"},
    "temperature": ["null", "double"],
    "count": "int",
    "state": STATE,
    "before": "State",
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    "address": {"type": "fixed", "name": "Address", "size": 6},
    "tags": {"type": "map", "values": "string"},
    "samples": {"type": "array", "items": SAMPLE},
    "id": {"type": "string", "logicalType": "uuid"},
    "since": {"type": "int", "logicalType": "time-millis"},
}
ROW = {
    "at": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "temperature": None,
    "count": -3,
    "state": "ON",
    "before": "OFF",
    "price": Decimal("12.34"),
    "address": b"123456",
    "tags": {"site": "north"},
    "samples": [{"x": 1.5}, {"x": 2.5}],
    "id": "not as a UUID is written",
    "since": 7,
}


def schema_of(**fields: Any) -> bytes:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Reading", "namespace": "site", "fields": listed}).encode()


def record(text: bytes, row: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(text)), row)
    return target.getvalue()


# As devices write it that know nothing of logical types of texts and times.
WRITTEN = record(schema_of(**{**FIELDS, "id": "string", "since": "int"}), ROW)


def test_fields_are_columns_and_values() -> None:
    text = schema_of(**FIELDS)
    types = {field.name: field.dataType.simpleString() for field in avro_schema(text).fields}
    assert types == {
        "at": "timestamp",
        "day": "date",
        "temperature": "double",
        "count": "int",
        "state": "string",
        "before": "string",
        "price": "decimal(6,2)",
        "address": "binary",
        "tags": "map<string,string>",
        "samples": "array<struct<x:float>>",
        "id": "string",
        "since": "int",
    }
    assert avro_parser(text)(WRITTEN) == ROW


def test_the_head_of_a_single_object_is_that_of_the_schema() -> None:
    text = schema_of(count="int")
    mark = fingerprint(to_parsing_canonical_form(fastavro.parse_schema(json.loads(text))), "CRC-64-AVRO")
    parse = avro_parser(text)
    assert parse(b"\xc3\x01" + bytes.fromhex(mark) + b"\x06") == {"count": 3}
    with pytest.raises(ValueError, match=r"not a record site\.Reading"):
        parse(b"\xc3\x01" + bytes(8) + b"\x06")


def test_what_is_no_record_says_so() -> None:
    parse = avro_parser(schema_of(**FIELDS))
    for size in range(len(WRITTEN)):
        with pytest.raises(ValueError, match=r"^not a record site\.Reading$"):
            parse(WRITTEN[:size])
    with pytest.raises(ValueError, match="2 bytes behind it"):
        parse(WRITTEN + b"xx")
    for at in range(len(WRITTEN)):
        for byte in (0, 1, 0x7F, 0x80, 0xFF):
            # Whatever else it raises fails the test.
            with contextlib.suppress(ValueError):
                parse(WRITTEN[:at] + bytes([byte]) + WRITTEN[at + 1 :])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"{", "is no Avro schema"),
        (b'"int"', "not that of a record"),
        (schema_of(), "has no fields"),
        (schema_of(x="what"), "is no Avro schema"),
        (schema_of(x=["int", "string"]), r"site\.Reading\.x may have several types"),
        (schema_of(x=["null", "Reading"]), "within itself"),
        (schema_of(x="null"), "which is no column"),
        (schema_of(x={"type": "array", "items": "null"}), "which is no column"),
        (schema_of(x={"type": "fixed", "name": "F", "size": 0}), "has no bytes"),
        (schema_of(x={"type": "bytes", "logicalType": "decimal", "precision": 39}), "at most 38"),
    ],
)
def test_a_schema_without_columns_is_refused(text: bytes, what: str) -> None:
    with pytest.raises(ConfigError, match=f"payload.descriptor.*{what}"):
        avro_schema(text)
