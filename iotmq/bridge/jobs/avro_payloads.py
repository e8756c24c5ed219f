"""Columns and values of Avro records, by a schema that writer and reader share."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from iotmq.bridge.jobs.message_payloads import Parse
from iotmq.errors import ConfigError

_PRIMITIVES: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: Final[Mapping[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
}
_DECIMAL_DIGITS_MAX: Final = 38
# In front of a message with a single object: these, and a fingerprint of its schema.
_SINGLE_OBJECT: Final = b"\xc3\x01"


def avro_schema(text: bytes) -> StructType:
    """Return a column for each field of a record; ConfigError for a schema that has no columns."""
    return _columns(_parsed(text), {}, ())


def avro_parser(text: bytes) -> Parse:
    """Return what reads one record; with the head of a single object in front, of that schema."""
    from fastavro import schemaless_reader
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    parsed = _parsed(text)
    # What fastavro would make other types of than the columns have.
    plain = _without_others(parsed)
    canonical = to_parsing_canonical_form(parsed)
    head = _SINGLE_OBJECT + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    name = parsed["name"]

    def parse(body: bytes) -> dict[str, Any]:
        source = io.BytesIO(body)
        if body.startswith(head):
            source.seek(len(head))
        try:
            row = schemaless_reader(source, plain, None)
        except (EOFError, ValueError, LookupError, ArithmeticError, TypeError, RecursionError) as error:
            raise ValueError(f"not a record {name}") from error
        left = len(body) - source.tell()
        if left:
            raise ValueError(f"not a record {name}: {left} bytes behind it")
        assert isinstance(row, dict), row
        return row

    return parse


def _parsed(text: bytes) -> dict[str, Any]:
    import json

    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError:
        raise ConfigError(
            "the Python package fastavro, which reads Avro, is not installed: pip install 'iotmq[spark]'"
        ) from None
    try:
        parsed = parse_schema(json.loads(text))
    except (ValueError, KeyError, TypeError, SchemaParseException, UnknownType) as error:
        raise ConfigError(f"payload.descriptor is no Avro schema: {error}") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ConfigError("payload.descriptor: the Avro schema is not that of a record")
    return parsed


def _columns(record: dict[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> StructType:
    name = record["name"]
    if not record["fields"]:
        # An array of them would take no bytes, however long.
        raise ConfigError(f"payload.descriptor: the Avro record {name} has no fields")
    named[name] = record
    return StructType(
        [
            StructField(
                field["name"], _type_of(field["type"], f"{name}.{field['name']}", named, (*within, name))
            )
            for field in record["fields"]
        ]
    )


def _type_of(schema: Any, where: str, named: dict[str, Any], within: tuple[str, ...]) -> DataType:
    """Return the type of a column; ConfigError that names the field when there is none."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ConfigError(f"payload.descriptor: {where} may have several types, and a column has one")
        return _type_of(others[0], where, named, within)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if kind in _PRIMITIVES and "name" not in schema:
        if kind == "bytes" and schema.get("logicalType") == "decimal":
            return _decimal(schema, where)
        return _LOGICAL.get((kind, schema.get("logicalType", "")), _PRIMITIVES[kind])
    match kind:
        case "record":
            if schema["name"] in within:
                raise ConfigError(f"payload.descriptor: {where} is a record {schema['name']} within itself")
            return _columns(schema, named, within)
        case "enum":
            named[schema["name"]] = schema
            return StringType()
        case "fixed":
            named[schema["name"]] = schema
            if schema["size"] < 1:
                raise ConfigError(f"payload.descriptor: {where} has no bytes")
            return _decimal(schema, where) if schema.get("logicalType") == "decimal" else BinaryType()
        case "array":
            return ArrayType(_type_of(schema["items"], where, named, within))
        case "map":
            return MapType(StringType(), _type_of(schema["values"], where, named, within))
    raise ConfigError(f"payload.descriptor: {where} has type {kind!r}, which is no column")


def _decimal(schema: dict[str, Any], where: str) -> DataType:
    digits, scale = schema["precision"], schema.get("scale", 0)
    if digits > _DECIMAL_DIGITS_MAX:
        raise ConfigError(f"payload.descriptor: {where} has {digits} digits; a column has at most 38")
    return DecimalType(digits, scale)


def _without_others(schema: Any) -> Any:
    """Return the schema without the logical types that are columns of what they are stored as."""
    if isinstance(schema, list):
        return [_without_others(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _without_others(value) for name, value in schema.items() if name in ("type", "items", "values")
    }
    if "fields" in schema:
        kept["fields"] = [{**field, "type": _without_others(field["type"])} for field in schema["fields"]]
    logical = schema.get("logicalType")
    is_column = logical == "decimal" or (schema.get("type"), logical) in _LOGICAL
    return {name: value for name, value in {**schema, **kept}.items() if name != "logicalType" or is_column}
