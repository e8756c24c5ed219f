"""Columns and values of Protobuf messages, by the description that protoc makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from iotmq.bridge.jobs.message_payloads import Parse


def protobuf_schema(descriptor: bytes, message: str) -> StructType:
    """Return a column for each field of a message; raises when the description has no such message.

    Left out are messages within messages of their own kind, which would have no end, and extensions.
    """
    return _schema_of(_message_class(descriptor, message).DESCRIPTOR, ())


def protobuf_parser(descriptor: bytes, message: str, schema: StructType) -> Parse:
    """Return what reads one message."""
    from google.protobuf.message import DecodeError

    kind = _message_class(descriptor, message)
    read = _reader(kind.DESCRIPTOR, schema)

    def parse(body: bytes) -> dict[str, Any]:
        parsed = kind()
        try:
            parsed.ParseFromString(body)
            return read(parsed)
        # A text that is not UTF-8 is found out, by older messages, when it is looked at.
        except (DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"not a message {message}") from error

    return parse


def _message_class(descriptor: bytes, message: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))


def _schema_of(message: Any, within: tuple[str, ...]) -> StructType:
    schema = StructType()
    for field in message.fields:
        kind = _type_of(field, (*within, message.full_name))
        if kind is not None:
            schema.add(StructField(field.name, ArrayType(kind) if field.is_repeated else kind))
    return schema


def _type_of(field: Any, within: tuple[str, ...]) -> DataType | None:
    """Return the type of one value; None for what has no columns."""
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        if field.message_type.full_name in within:
            return None
        inner = _schema_of(field.message_type, within)
        return inner if inner.fields else None
    if field.cpp_type == field.CPPTYPE_STRING:
        return BinaryType() if field.type == field.TYPE_BYTES else StringType()
    kinds: dict[int, DataType] = {
        field.CPPTYPE_INT32: IntegerType(),
        field.CPPTYPE_INT64: LongType(),
        field.CPPTYPE_UINT32: LongType(),
        # Beyond a bigint from 2^63 on.
        field.CPPTYPE_UINT64: DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: DoubleType(),
        field.CPPTYPE_FLOAT: FloatType(),
        field.CPPTYPE_BOOL: BooleanType(),
        field.CPPTYPE_ENUM: IntegerType(),
    }
    return kinds[field.cpp_type]


def _reader(message: Any, schema: StructType) -> Callable[[Any], dict[str, Any]]:
    """Return what makes a row of a message.

    A field without presence (proto3) is its default; one with presence is null when it was not sent.
    """
    plain: list[tuple[str, bool]] = []
    nested: list[tuple[str, bool, Callable[[Any], dict[str, Any]]]] = []
    for column in schema.fields:
        field = message.fields_by_name[column.name]
        kind = column.dataType.elementType if isinstance(column.dataType, ArrayType) else column.dataType
        if isinstance(kind, StructType):
            nested.append((column.name, field.is_repeated, _reader(field.message_type, kind)))
        elif field.is_repeated:
            nested.append((column.name, True, _same))
        else:
            plain.append((column.name, field.has_presence))

    def read(parsed: Any) -> dict[str, Any]:
        row = {
            name: getattr(parsed, name) if not has_presence or parsed.HasField(name) else None
            for name, has_presence in plain
        }
        for name, is_repeated, inner in nested:
            if is_repeated:
                row[name] = [inner(each) for each in getattr(parsed, name)]
            else:
                row[name] = inner(getattr(parsed, name)) if parsed.HasField(name) else None
        return row

    return read


def _same(value: Any) -> Any:
    return value
