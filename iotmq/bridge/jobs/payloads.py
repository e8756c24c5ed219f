"""Payloads of records as typed columns: JSON, CSV, Protobuf, Avro and fixed binary layouts.

A payload that does not fit is never dropped and never half a row: `reason` says what is wrong with it, and
the job decides where it goes. JSON and CSV are decoded by Spark itself, a binary layout as one array per
record batch; Protobuf and Avro cost Python objects per message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy
import pyarrow
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from iotmq.bridge.jobs.avro_payloads import avro_parser, avro_schema
from iotmq.bridge.jobs.message_payloads import Parse, decode_each
from iotmq.bridge.jobs.protobuf_payloads import protobuf_parser, protobuf_schema
from iotmq.bridge.jobs.readings import believed, stamp
from iotmq.errors import ConfigError

CORRUPT: Final = "_corrupt"

# Of a layout: numpy's type, and Spark's that holds all its values.
_BINARY_TYPES: Final[Mapping[str, tuple[str, DataType]]] = {
    "i1": ("i1", ByteType()),
    "u1": ("u1", ShortType()),
    "i2": ("i2", ShortType()),
    "u2": ("u2", IntegerType()),
    "i4": ("i4", IntegerType()),
    "u4": ("u4", LongType()),
    "i8": ("i8", LongType()),
    "f4": ("f4", FloatType()),
    "f8": ("f8", DoubleType()),
}
# What text can be read as, and Parquet can keep; of JSON also arrays, structs, and maps from texts.
_TEXT_TYPES: Final = (
    *(NumericType, BooleanType, BinaryType, DateType, TimestampType, TimestampNTZType),
    *(DayTimeIntervalType, VariantType),
)
_NOT_JSON: Final = "not JSON of the declared schema"
_NOT_CSV: Final = "not CSV of the declared schema"

_Decode = Callable[[pyarrow.Array], tuple[pyarrow.StructArray, pyarrow.Array]]


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How payloads are read."""

    format: Literal["json", "csv", "protobuf", "avro", "binary"] = "json"
    """Kind of payloads."""
    schema: str = ""
    """Columns of JSON and CSV, as in SQL: "ts DOUBLE, temperature DOUBLE"."""
    required: list[str] = []
    """Columns that must not be missing or null."""
    time_field: str = ""
    """Column with the time: seconds or milliseconds since 1970, a timestamp, or ISO 8601. Without it, and if
    it lies more than a minute ahead, the time of storing is used."""
    separator: str = ","
    """Separator of CSV."""
    descriptor: str = ""
    """File that says what a message has. Protobuf: a FileDescriptorSet (protoc --include_imports
    --descriptor_set_out); Avro: the schema of a record, as JSON."""
    message: str = ""
    """Protobuf: full name of the message."""
    layout: str = ""
    """Binary: names and types in their order, "temperature f4, battery u1, ts u4"; types are i1 to i8 and u1
    to u4 (bytes of an integer), f4 and f8."""
    byte_order: Literal["big", "little"] = "big"
    """Binary: which byte of a number comes first."""


def data_schema(payload: Payload) -> StructType:
    """Return the columns of a payload. ConfigError names the setting that is wrong."""
    if payload.format == "binary":
        return StructType([StructField(name, kind) for name, _, kind in _layout(payload)])
    if payload.format == "protobuf":
        return _protobuf_columns(payload)
    if payload.format == "avro":
        return avro_schema(_described(payload))
    if not payload.schema.strip():
        raise ConfigError(f"payload.schema is needed for {payload.format}")
    try:
        found = StructType.fromDDL(payload.schema)
    except Exception as error:
        raise ConfigError(f"payload.schema is no list of columns: {payload.schema!r}") from error
    if not isinstance(found, StructType):
        raise ConfigError(f"payload.schema is no list of columns: {payload.schema!r}")
    _check_columns(found, "payload.schema", takes_nested=payload.format == "json")
    return found


def decode(rows: DataFrame, payload: Payload, schema: StructType) -> DataFrame:
    """Return `rows` with `data` (a struct of `schema`), `reason` (null when all is well) and `event_time`.

    `rows` have at least `value` and `timestamp`; `schema` is that of `data_schema`, or an inferred one.
    """
    names = set(schema.fieldNames())
    for name in (*payload.required, *([payload.time_field] if payload.time_field else [])):
        if name not in names:
            raise ConfigError(
                f"payload: there is no column {name!r} in the schema: {', '.join(sorted(names))}"
            )
    if payload.time_field:
        kind = schema[payload.time_field].dataType
        if not isinstance(kind, (NumericType, StringType, TimestampType)):
            raise ConfigError(
                f"payload.time_field: column {payload.time_field!r} is {kind.simpleString()}; "
                "a time is a number, a timestamp or a string"
            )
    if payload.format in ("json", "csv"):
        decoded = _as_text(rows, payload, schema)
    else:
        make = _binary_decoder(payload) if payload.format == "binary" else _message_decoder(payload, schema)
        decoded = _in_arrow(rows, schema, make)
    missing = "".join(
        f" WHEN data.`{name}` IS NULL THEN 'column {name} is missing'" for name in payload.required
    )
    reason = f"CASE WHEN reason IS NOT NULL THEN reason{missing} END"
    return decoded.withColumn("reason", F.expr(reason)).withColumn("event_time", _event_time(payload, schema))


def _check_columns(columns: StructType, place: str, *, takes_nested: bool) -> None:
    """Raise ConfigError for a column that cannot be read from text or written to Parquet."""
    names: set[str] = set()
    for column in columns.fields:
        if column.name.lower() in names:
            raise ConfigError(f"{place}: column {column.name!r} is there twice")
        names.add(column.name.lower())
        _check_type(column.dataType, f"{place}: column {column.name!r}", takes_nested=takes_nested)


def _check_type(kind: DataType, place: str, *, takes_nested: bool) -> None:
    # CHAR(n) and VARCHAR(n) are kinds of their own beside STRING.
    if isinstance(kind, _TEXT_TYPES) or type(kind) is StringType:
        return
    if takes_nested and isinstance(kind, StructType):
        _check_columns(kind, place, takes_nested=True)
    elif takes_nested and isinstance(kind, ArrayType):
        _check_type(kind.elementType, place, takes_nested=True)
    elif takes_nested and isinstance(kind, MapType) and type(kind.keyType) is StringType:
        _check_type(kind.valueType, place, takes_nested=True)
    else:
        raise ConfigError(f"{place} is {kind.simpleString()}, which payloads of this format cannot have")


def _event_time(payload: Payload, schema: StructType) -> Column:
    if not payload.time_field:
        return F.col("timestamp")
    field = f"data.`{payload.time_field}`"
    if isinstance(schema[payload.time_field].dataType, TimestampType):
        return F.expr(believed(field))
    number = f"try_cast({field} AS DOUBLE)"
    return F.expr(believed(stamp(number, f"CAST({field} AS STRING)")))


def _as_text(rows: DataFrame, payload: Payload, schema: StructType) -> DataFrame:
    declared = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = F.expr("CAST(value AS STRING)")
    if payload.format == "json":
        parsed, what = F.from_json(text, declared, options), _NOT_JSON
    else:
        options["sep"] = payload.separator
        parsed, what = F.from_csv(text, _ddl(declared), options), _NOT_CSV
    reason = (
        "CASE WHEN value IS NULL THEN 'no payload'"
        " WHEN NOT is_valid_utf8(CAST(value AS STRING)) THEN 'not UTF-8'"
        f" WHEN parsed IS NULL OR parsed.{CORRUPT} IS NOT NULL THEN '{what}' END"
    )
    return (
        rows.withColumn("parsed", parsed)
        .withColumn("reason", F.expr(reason))
        .withColumn("data", F.when(F.col("reason").isNull(), F.col("parsed").dropFields(CORRUPT)))
        .drop("parsed")
    )


def _ddl(schema: StructType) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)


def _in_arrow(rows: DataFrame, schema: StructType, decode_values: _Decode) -> DataFrame:
    """Decode `value` record batch by record batch."""
    made = StructType([StructField("data", schema), StructField("reason", StringType())])
    data_type, reason_type = (field.type for field in to_arrow_schema(made, timezone="UTC"))

    def decode_batch(values: pyarrow.Array) -> pyarrow.Array:
        data, reasons = decode_values(values)
        arrays = [data.cast(data_type), reasons.cast(reason_type)]
        return pyarrow.StructArray.from_arrays(arrays, names=["data", "reason"])

    decoded = rows.withColumn("decoded", arrow_udf(decode_batch, made, ArrowUDFType.SCALAR)("value"))
    return decoded.select("*", "decoded.data", "decoded.reason").drop("decoded")


# Binary layouts ---------------------------------------------------------------------------------------


def _layout(payload: Payload) -> list[tuple[str, str, DataType]]:
    found = []
    for piece in payload.layout.split(","):
        matched = re.fullmatch(r"\s*([A-Za-z_]\w*)\s+(\w+)\s*", piece)
        if matched is None or matched[2] not in _BINARY_TYPES:
            raise ConfigError(
                f"payload.layout has {piece.strip()!r}; it is a list of names and types such as "
                f"'temperature f4, battery u1'; types are {', '.join(_BINARY_TYPES)}"
            )
        found.append((matched[1], *_BINARY_TYPES[matched[2]]))
    names = [name for name, _, _ in found]
    if len(set(names)) != len(names):
        raise ConfigError("payload.layout has a name twice")
    return found


def _binary_decoder(payload: Payload) -> _Decode:
    layout = _layout(payload)
    order = ">" if payload.byte_order == "big" else "<"
    kind = numpy.dtype([(name, order + code) for name, code, _ in layout])
    arrow_types = [
        to_arrow_schema(StructType([StructField("x", each)])).field(0).type for _, _, each in layout
    ]
    names = [name for name, _, _ in layout]

    def decode_values(values: pyarrow.Array) -> tuple[pyarrow.StructArray, pyarrow.Array]:
        from pyarrow import compute

        is_good = compute.fill_null(compute.equal(compute.binary_length(values), kind.itemsize), False)
        good = values.filter(is_good)
        # One run of bytes: what has another length is filtered out.
        packed = good.cast(pyarrow.binary(kind.itemsize))
        start = packed.offset * kind.itemsize
        size = len(packed) * kind.itemsize
        content = packed.buffers()[1]
        numbers = numpy.frombuffer(memoryview(content)[start : start + size] if size else b"", dtype=kind)
        # Where each value's row is among those of the right length; null for the others.
        flags = is_good.to_numpy(zero_copy_only=False)
        places = pyarrow.array(numpy.cumsum(flags) - 1, mask=~flags)
        columns = [
            pyarrow.array(numbers[name].astype(numbers[name].dtype.newbyteorder("="))).cast(each).take(places)
            for name, each in zip(names, arrow_types, strict=True)
        ]
        data = pyarrow.StructArray.from_arrays(columns, names=names, mask=compute.invert(is_good))
        wrong = f"not the {kind.itemsize} bytes of the layout"
        reasons = compute.case_when(
            compute.make_struct(is_good, values.is_null()),
            pyarrow.scalar(None, pyarrow.string()),
            pyarrow.scalar("no payload"),
            pyarrow.scalar(wrong),
        )
        return data, reasons

    return decode_values


# Message by message ---------------------------------------------------------------------------------


def _described(payload: Payload) -> bytes:
    """Return the file that says what messages have."""
    if not payload.descriptor:
        raise ConfigError(f"payload.descriptor is needed for {payload.format}")
    try:
        return Path(payload.descriptor).read_bytes()
    except OSError as error:
        raise ConfigError(f"payload.descriptor {payload.descriptor}: {error.strerror}") from error


def _protobuf_columns(payload: Payload) -> StructType:
    if not payload.message:
        raise ConfigError("payload.message is needed for protobuf")
    descriptor = _described(payload)
    try:
        found = protobuf_schema(descriptor, payload.message)
    except Exception as error:
        raise ConfigError(
            f"payload.message: {payload.descriptor} has no message {payload.message!r} ({error})"
        ) from error
    if not found.fields:
        raise ConfigError(f"payload.message {payload.message} has no field that can be a column")
    return found


def _message_decoder(payload: Payload, schema: StructType) -> _Decode:
    described = _described(payload)
    message = payload.message
    is_avro = payload.format == "avro"
    data_type = pyarrow.struct(list(to_arrow_schema(schema, timezone="UTC")))
    made: list[Parse] = []

    def decode_values(values: pyarrow.Array) -> tuple[pyarrow.StructArray, pyarrow.Array]:
        # Parsers do not travel to workers: each makes its own.
        if not made:
            made.append(avro_parser(described) if is_avro else protobuf_parser(described, message, schema))
        return decode_each(values, data_type, made[0])

    return decode_values
