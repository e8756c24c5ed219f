"""Columns of rows as those of the encoder: which there are, their types, and what their values may be.

All is done by kernels of Arrow and numpy, for a whole record batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy
import numpy.typing
import pyarrow
import pyarrow.compute
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from iotmq import limits
from iotmq.bridge.sink.errors import SinkColumnError
from iotmq.message import properties as names
from iotmq.message.errors import RowError
from iotmq.message.records.row_elements import ALONE, BASE64, ENCODED, MQTT_NAME, TEXT, TextColumn
from iotmq.spelling import did_you_mean

Numbers = numpy.typing.NDArray[numpy.int32]

_TTL_MS_MAX: Final = 10**15 - 1
_DELAY_MS_MAX: Final = 10**13
_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXTS: Final = (StringType,)
_BYTES: Final = (BinaryType, StringType)

# Names that brokers, front ends or columns of this sink set; as a property of a row they would be a lie.
_RESERVED: Final = pyarrow.array(
    [
        name.encode()
        for name in (
            names.KEYS, names.TAGS, names.WAIT, names.DELAY, names.TIMER_DELAY_S, names.TIMER_DELAY_MS,
            names.TIMER_DELIVER_MS, names.TRANSACTION_PREPARED, names.TIME_TO_LIVE_MS, names.BATCH_NUMBER,
            names.REAL_TOPIC, names.REAL_QUEUE_ID, names.RETRY_TOPIC, names.CLUSTER, names.MQTT_TOPIC,
            names.MQTT_QOS, names.MQTT_RETAIN, names.MQTT_PACKET_ID, names.MQTT_CLIENT_ID, names.MQTT_BRIDGE,
            names.MQTT_CONTENT_TYPE, names.MQTT_RESPONSE_TOPIC, names.MQTT_CORRELATION_DATA,
        )
    ],
    pyarrow.binary(),
)  # fmt: skip


class SinkColumn(NamedTuple):
    """One column: Spark types it may have, in words, and the property it becomes ("" for none)."""

    types: tuple[type[DataType], ...]
    takes: str
    property: str = ""
    kind: int = TEXT


COLUMNS: Final[dict[str, SinkColumn]] = {
    "value": SinkColumn(_BYTES, "binary or string"),
    "key": SinkColumn(_BYTES, "string or binary", names.KEYS),
    "topic": SinkColumn(_TEXTS, "string"),
    "partition": SinkColumn(_NUMBERS, "int"),
    "broker": SinkColumn(_TEXTS, "string"),
    "tags": SinkColumn(_TEXTS, "string", names.TAGS),
    "mqtt_topic": SinkColumn(_TEXTS, "string", names.MQTT_TOPIC, MQTT_NAME),
    "qos": SinkColumn(_NUMBERS, "int", names.MQTT_QOS),
    "retain": SinkColumn((BooleanType,), "boolean", names.MQTT_RETAIN),
    "ttl_ms": SinkColumn(_NUMBERS, "int or bigint", names.TIME_TO_LIVE_MS),
    "delay_ms": SinkColumn(_NUMBERS, "int or bigint", names.TIMER_DELAY_MS, ALONE),
    "content_type": SinkColumn(_TEXTS, "string", names.MQTT_CONTENT_TYPE),
    "response_topic": SinkColumn(_TEXTS, "string", names.MQTT_RESPONSE_TOPIC, MQTT_NAME),
    "correlation_data": SinkColumn(_BYTES, "binary or string", names.MQTT_CORRELATION_DATA, BASE64),
    "properties": SinkColumn((MapType,), "map<string,string>", "", ENCODED),
    "headers": SinkColumn((ArrayType,), "array<struct<key:string,value:binary>>", "", ENCODED),
}


class Rows(NamedTuple):
    """Rows for `RowEncoder.encode`, but for the numbers of topics."""

    body: TextColumn
    columns: list[TextColumn]
    keys: TextColumn | None
    topics: pyarrow.Array | None
    partitions: Numbers | None
    # Of `partitions`.
    brokers: pyarrow.Array | None


def check_sink_schema(schema: StructType, *, has_topic: bool) -> None:
    """Raise SinkColumnError unless every field is a column of the sink, of a type it takes."""
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        if column is None:
            hint = (
                did_you_mean(field.name, {name: name for name in COLUMNS})
                or f"; it takes {', '.join(COLUMNS)}"
            )
            raise SinkColumnError(
                f"format iotmq writes no column {field.name!r}{hint}. Select what is to be written"
            )
        if not isinstance(field.dataType, column.types) or not _is_nested_right(field.dataType):
            raise SinkColumnError(
                f"column {field.name} of writing with format iotmq is {column.takes}, "
                f"not {field.dataType.simpleString()}: cast it in the query"
            )
    found = schema.fieldNames()
    if "value" not in found:
        raise SinkColumnError("writing with format iotmq needs a column value: the body, binary or string")
    if "broker" in found and "partition" not in found:
        raise SinkColumnError("column broker of writing with format iotmq needs a column partition")
    if not has_topic and "topic" not in found:
        raise SinkColumnError(
            "writing with format iotmq needs a broker topic: option topic, or a column topic"
        )


def sink_rows(batch: pyarrow.RecordBatch, *, has_topic: bool, first_row: int) -> Rows:
    """Return the rows of a record batch; raises RowError for one whose values are not allowed.

    With `has_topic` a column topic is not looked at.
    """
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns: list[TextColumn] = []
    for name, column in COLUMNS.items():
        if name in given and (column.property or column.kind == ENCODED):
            array = _PREPARED.get(name, _as_it_is)(given[name], first_row, name)
            if array.null_count < len(array):
                prefix = f"{column.property}{names.NAME_END}".encode() if column.property else b""
                columns.append(_text_column(name, array, prefix=prefix, kind=column.kind))
    keys = next((column for column in columns if column.name == "key"), None)
    topics = None
    if not has_topic:
        topics = given["topic"]
        _refuse_rows(topics.is_null(), first_row, "topic", "is null, and there is no option topic")
    partitions = None
    if "partition" in given:
        numbers = pyarrow.compute.cast(given["partition"], pyarrow.int64())
        _refuse_rows(
            _outside(numbers, 0, limits.QUEUES_PER_TOPIC_MAX - 1),
            first_row,
            "partition",
            "is no queue number",
        )
        partitions = numbers.fill_null(-1).to_numpy(zero_copy_only=False).astype(numpy.int32)
    body = _text_column("value", given["value"])
    return Rows(body, columns, keys, topics, partitions, given.get("broker"))


def _text_column(name: str, array: pyarrow.Array, *, prefix: bytes = b"", kind: int = TEXT) -> TextColumn:
    if not (pyarrow.types.is_binary(array.type) or pyarrow.types.is_string(array.type)):
        array = array.cast(pyarrow.binary())
    validity, offsets, data = array.buffers()
    if offsets is None or not offsets.size:
        offsets = pyarrow.py_buffer(bytes(4 * (array.offset + len(array) + 1)))
    return TextColumn(
        name,
        (_octets(validity), numpy.frombuffer(offsets, numpy.int32), _octets(data)),
        first=array.offset,
        count=len(array),
        prefix=prefix,
        kind=kind,
    )


def _octets(buffer: pyarrow.Buffer | None) -> numpy.typing.NDArray[numpy.uint8] | None:
    return numpy.frombuffer(buffer, numpy.uint8) if buffer is not None and buffer.size else None


def _as_it_is(array: pyarrow.Array, first_row: int, name: str) -> pyarrow.Array:
    return array


def _numbers(least: int, most: int) -> Callable[[pyarrow.Array, int, str], pyarrow.Array]:
    def prepared(array: pyarrow.Array, first_row: int, name: str) -> pyarrow.Array:
        numbers = pyarrow.compute.cast(array, pyarrow.int64())
        _refuse_rows(_outside(numbers, least, most), first_row, name, f"is not from {least} to {most}")
        return pyarrow.compute.cast(numbers, pyarrow.string())

    return prepared


def _delays(array: pyarrow.Array, first_row: int, name: str) -> pyarrow.Array:
    """Without those of 0, which do not wait."""
    delays = _numbers(0, _DELAY_MS_MAX)(array, first_row, name)
    return pyarrow.compute.if_else(pyarrow.compute.equal(delays, "0"), None, delays)


def _flags(array: pyarrow.Array, first_row: int, name: str) -> pyarrow.Array:
    return pyarrow.compute.if_else(array, pyarrow.scalar("1"), pyarrow.scalar(None, pyarrow.string()))


def _names(array: pyarrow.Array, first_row: int, name: str) -> pyarrow.Array:
    """Refuse names that are too long for MQTT."""
    sizes = pyarrow.compute.binary_length(array)
    most = limits.MQTT_TOPIC_BYTES_MAX
    _refuse_rows(pyarrow.compute.greater(sizes, most), first_row, name, f"has more than {most} bytes")
    return array


def _pairs(array: pyarrow.Array, first_row: int, name: str) -> pyarrow.Array:
    """Encode maps, or lists of pairs, as properties; a null value is left out."""
    compute = pyarrow.compute
    # Where the lists of a slice lie among the pairs of the whole.
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(numpy.int32)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    offsets = offsets - first
    if isinstance(array, pyarrow.MapArray):
        halves = (array.keys, array.items)
    else:
        halves = tuple(compute.struct_field(array.values, [place]) for place in (0, 1))
    keys, values = (half.slice(first, count).cast(pyarrow.binary()) for half in halves)

    def refuse(found: pyarrow.Array, problem: str) -> None:
        places = numpy.flatnonzero(found.fill_null(False).to_numpy(zero_copy_only=False))
        if len(places):
            row = int(numpy.searchsorted(offsets, places[0], side="right")) - 1
            raise RowError(first_row + row, name, problem)

    refuse(compute.or_kleene(keys.is_null(), compute.equal(compute.binary_length(keys), 0)), "has no name")
    for each in (keys, values):
        for text in (b"\x01", b"\x02"):
            refuse(compute.match_substring(each, text), "contains \\x01 or \\x02, which no property can hold")
    refuse(compute.is_in(keys, _RESERVED), "names a property that has a column of its own, or is a broker's")
    pairs = compute.binary_join_element_wise(keys, values, pyarrow.scalar(b"", pyarrow.binary()), b"\x01")
    # The last separator is in the place of the one that ends a property.
    pairs = compute.binary_replace_slice(pairs, -1, 2**31 - 1, b"\x02")
    lists = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pairs.fill_null(b""))
    joined = compute.binary_join(lists, b"")
    return compute.if_else(array.is_valid(), joined, None) if array.null_count else joined


def _outside(numbers: pyarrow.Array, least: int, most: int) -> pyarrow.Array:
    compute = pyarrow.compute
    return compute.or_(compute.less(numbers, least), compute.greater(numbers, most))


def _refuse_rows(found: pyarrow.Array, first_row: int, name: str, problem: str) -> None:
    places = numpy.flatnonzero(found.fill_null(False).to_numpy(zero_copy_only=False))
    if len(places):
        raise RowError(first_row + int(places[0]), name, problem)


_PREPARED: Final[Mapping[str, Callable[[pyarrow.Array, int, str], pyarrow.Array]]] = {
    "qos": _numbers(0, 2),
    "retain": _flags,
    "ttl_ms": _numbers(1, _TTL_MS_MAX),
    "delay_ms": _delays,
    "mqtt_topic": _names,
    "response_topic": _names,
    "properties": _pairs,
    "headers": _pairs,
}


def _is_nested_right(found: Any) -> bool:
    if isinstance(found, MapType):
        return isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if isinstance(found, ArrayType):
        entry = found.elementType
        return (
            isinstance(entry, StructType)
            and entry.fieldNames() == ["key", "value"]
            and isinstance(entry.fields[0].dataType, _BYTES)
            and isinstance(entry.fields[1].dataType, _BYTES)
        )
    return True
