"""Columns and values of Protobuf messages, those of Sparkplug B among them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow
import pytest

pytest.importorskip("pyspark")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql.pandas.types import to_arrow_schema

from iotmq.bridge.jobs.message_payloads import decode_each
from iotmq.bridge.jobs.protobuf_payloads import protobuf_parser, protobuf_schema

KIND = descriptor_pb2.FieldDescriptorProto
PAYLOAD = "org.eclipse.tahu.protobuf.Payload"


def fields(message: descriptor_pb2.DescriptorProto, text: str) -> None:
    """Add fields such as "seq=3 uint64" and "metrics=2 *Metric" (repeated, a message of the payload's)."""
    for piece in text.split(","):
        name_and_number, kind = piece.split()
        name, number = name_and_number.split("=")
        label = KIND.LABEL_REPEATED if kind.startswith("*") else KIND.LABEL_OPTIONAL
        kind = kind.lstrip("*")
        made = message.field.add(name=name, number=int(number), label=label)
        if kind[0].isupper():
            made.type, made.type_name = KIND.TYPE_MESSAGE, f".{PAYLOAD}.{kind}"
        else:
            made.type = getattr(KIND, f"TYPE_{kind.upper()}")


def sparkplug_b() -> bytes:
    """The description of Sparkplug B's payloads, as protoc makes it of the specification's file."""
    file = descriptor_pb2.FileDescriptorProto(name="b.proto", package="org.eclipse.tahu.protobuf")
    payload = file.message_type.add(name="Payload")
    fields(payload, "timestamp=1 uint64, metrics=2 *Metric, seq=3 uint64, uuid=4 string, body=5 bytes")
    value = "int_value={} uint32, long_value={} uint64, float_value={} float, double_value={} double,"
    value += "boolean_value={} bool, string_value={} string"
    for name, text in {
        "Parameter": "name=1 string, type=2 uint32," + value.format(*range(3, 9)),
        "Template": "version=1 string, metrics=2 *Metric, parameters=3 *Parameter, template_ref=4 string,"
        "is_definition=5 bool",
        "DataSetValue": value.format(*range(1, 7)),
        "Row": "elements=1 *DataSetValue",
        "DataSet": "num_of_columns=1 uint64, columns=2 *string, types=3 *uint32, rows=4 *Row",
        "PropertyValue": "type=1 uint32, is_null=2 bool,"
        + value.format(*range(3, 9))
        + ",propertyset_value=9 PropertySet",
        "PropertySet": "keys=1 *string, values=2 *PropertyValue",
        "Metric": "name=1 string, alias=2 uint64, timestamp=3 uint64, datatype=4 uint32,"
        "is_historical=5 bool, is_transient=6 bool, is_null=7 bool, properties=9 PropertySet,"
        + value.format(*range(10, 16))
        + ",bytes_value=16 bytes, dataset_value=17 DataSet, template_value=18 Template",
    }.items():
        fields(payload.nested_type.add(name=name), text)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def message(descriptor: bytes, name: str, **values: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor).file:
        pool.Add(file)
    found: bytes = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(
        **values
    ).SerializeToString()
    return found


def test_sparkplug_b_is_columns_of_metrics_without_what_has_no_end() -> None:
    descriptor = sparkplug_b()
    schema = protobuf_schema(descriptor, PAYLOAD)
    assert schema.fieldNames() == ["timestamp", "metrics", "seq", "uuid", "body"]
    metric: Any = schema["metrics"].dataType
    assert metric.elementType["template_value"].dataType.fieldNames() == [
        *("version", "parameters", "template_ref", "is_definition")
    ]
    property_value = metric.elementType["properties"].dataType["values"].dataType.elementType
    assert "propertyset_value" not in property_value.fieldNames()
    metrics = [
        {"name": "temperature", "datatype": 10, "double_value": 21.5},
        {
            "name": "state",
            "alias": 2**64 - 1,
            "string_value": "",
            "properties": {"keys": ["unit"], "values": [{"type": 12, "string_value": "C"}]},
        },
        {"dataset_value": {"columns": ["a"], "rows": [{"elements": [{"int_value": 7}]}]}},
    ]
    body = message(descriptor, PAYLOAD, timestamp=1_767_225_600_000, seq=5, metrics=metrics)
    row = protobuf_parser(descriptor, PAYLOAD, schema)(body)
    assert (row["timestamp"], row["seq"], row["uuid"]) == (1_767_225_600_000, 5, None)
    first, second, third = row["metrics"]
    assert (first["name"], first["double_value"], first["string_value"]) == ("temperature", 21.5, None)
    assert (second["alias"], second["string_value"], second["dataset_value"]) == (2**64 - 1, "", None)
    assert second["properties"]["keys"] == ["unit"]
    assert third["dataset_value"]["rows"] == [
        {"elements": [{**dict.fromkeys(first_values(schema)), "int_value": 7}]}
    ]


def test_a_template_of_sparkplug_b_has_its_parameters_and_not_its_metrics() -> None:
    descriptor = sparkplug_b()
    template = {
        "template_ref": "motor",
        "metrics": [{"name": "speed", "double_value": 3.5}],
        "parameters": [
            {"name": "number", "type": 3, "int_value": 4},
            {"name": "maker", "type": 12, "string_value": "x"},
        ],
    }
    body = message(descriptor, PAYLOAD, metrics=[{"name": "motor 4", "template_value": template}])
    row = protobuf_parser(descriptor, PAYLOAD, protobuf_schema(descriptor, PAYLOAD))(body)
    found = row["metrics"][0]["template_value"]
    assert found.keys() == {"version", "parameters", "template_ref", "is_definition"}
    assert [
        (each["name"], each["type"], each["int_value"], each["string_value"]) for each in found["parameters"]
    ] == [("number", 3, 4, None), ("maker", 12, None, "x")]


def first_values(schema: Any) -> list[str]:
    metric = schema["metrics"].dataType.elementType
    names: list[str] = (
        metric["dataset_value"]
        .dataType["rows"]
        .dataType.elementType["elements"]
        .dataType.elementType.fieldNames()
    )
    return names


def test_numbers_beyond_a_bigint_are_decimals() -> None:
    schema = protobuf_schema(sparkplug_b(), PAYLOAD)
    assert schema["seq"].dataType.simpleString() == "decimal(20,0)"
    row = protobuf_parser(sparkplug_b(), PAYLOAD, schema)(message(sparkplug_b(), PAYLOAD, seq=2**64 - 1))
    assert Decimal(row["seq"]) == 2**64 - 1


def test_what_is_no_message_says_so() -> None:
    descriptor = sparkplug_b()
    parse = protobuf_parser(descriptor, PAYLOAD, protobuf_schema(descriptor, PAYLOAD))
    whole = message(descriptor, PAYLOAD, metrics=[{"name": "temperature"}], uuid="x")
    # Cut off, no wire type, a length beyond the end.
    for body in (whole[:-1], b"\xff", b"\x12\x7f\x00"):
        with pytest.raises(ValueError, match=r"^not a message org\.eclipse"):
            parse(body)
    assert parse(b"")["metrics"] == []


def test_a_text_that_is_not_utf_8_does_not_fit() -> None:
    schema = protobuf_schema(sparkplug_b(), PAYLOAD)
    parse = protobuf_parser(sparkplug_b(), PAYLOAD, schema)
    arrow_type = pyarrow.struct(list(to_arrow_schema(schema, timezone="UTC")))
    rows, reasons = decode_each(
        pyarrow.array([b'"\x02\xff\xfe', b'"\x01x'], pyarrow.binary()), arrow_type, parse
    )
    assert [row and row["uuid"] for row in rows.to_pylist()] == [None, "x"]
    assert ["does not fit" in (reason or "") for reason in reasons.to_pylist()] == [True, False]
