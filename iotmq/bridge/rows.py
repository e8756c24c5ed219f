"""Records as rows: the columns a reader may ask for, and pull answers as Arrow record batches of them.

Spark prunes no columns of a Python source, so a schema given by the reader is taken as the list of
columns to make; each one left out is work saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy
import numpy.typing
import pyarrow
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from iotmq.bridge.offsets import QueueKey
from iotmq.bridge.plan import Loss, LossHandler
from iotmq.bridge.pull import Pulled
from iotmq.errors import ConfigError, IotmqError
from iotmq.message.properties import KEYS, MQTT_CLIENT_ID, MQTT_TOPIC, TAGS, decode_properties
from iotmq.message.records.columns import Columns, iter_columns

NAME_END: Final = b"\x01"
PROPERTY_END: Final = b"\x02"


class RecordOrderError(IotmqError):
    """A pull answer whose offsets do not rise: the broker's queue is damaged, and nothing of it is used."""


class Column(NamedTuple):
    """One column of the source: its Spark type, and where the decoder has it ("" when made here)."""

    spark_type: DataType
    decoded: str
    is_default: bool = True


COLUMNS: Final[dict[str, Column]] = {
    "key": Column(StringType(), f"property.{KEYS}"),
    "value": Column(BinaryType(), "body"),
    "topic": Column(StringType(), "topic"),
    "partition": Column(IntegerType(), "queue_id"),
    "offset": Column(LongType(), "queue_offset"),
    "timestamp": Column(TimestampType(), "store_timestamp"),
    "born_timestamp": Column(TimestampType(), "born_timestamp"),
    "mqtt_topic": Column(StringType(), f"property.{MQTT_TOPIC}"),
    "client_id": Column(StringType(), f"property.{MQTT_CLIENT_ID}"),
    "tags": Column(StringType(), f"property.{TAGS}"),
    "properties": Column(MapType(StringType(), StringType()), "", is_default=False),
    "broker": Column(StringType(), "", is_default=False),
    "position": Column(LongType(), "position", is_default=False),
}

_PROPERTY_PREFIX: Final = "property."


def default_schema(*, with_properties: bool) -> StructType:
    """Return the columns of a read that asks for none, in order."""
    schema = StructType()
    for name, column in COLUMNS.items():
        if column.is_default or (name == "properties" and with_properties):
            schema.add(name, column.spark_type)
    return schema


def check_schema(schema: StructType) -> None:
    """Raise ConfigError unless every field of `schema` is a column of the source, with its type."""
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        if column is None:
            raise ConfigError(f"format iotmq has no column {field.name!r}; it has {', '.join(COLUMNS)}")
        if field.dataType != column.spark_type:
            raise ConfigError(
                f"column {field.name} of format iotmq is {column.spark_type.simpleString()}, "
                f"not {field.dataType.simpleString()}: cast it in the query"
            )
    if not schema.fields:
        raise ConfigError("a schema for format iotmq needs at least one column")


class RowBuilder:
    """Turns pull answers into record batches of one schema."""

    def __init__(self, schema: StructType) -> None:
        names = schema.fieldNames()
        self._schema: pyarrow.Schema = to_arrow_schema(schema, timezone="UTC")
        self._names = names
        decoded = {name: COLUMNS[name].decoded for name in names if COLUMNS[name].decoded}
        # The offset is always decoded, because every answer is checked for gaps.
        columns = {column for column in decoded.values() if not column.startswith(_PROPERTY_PREFIX)}
        columns.add("queue_offset")
        if "properties" in names:
            columns.add("properties")
        self._columns = tuple(sorted(columns))
        self._keys = tuple(
            column.removeprefix(_PROPERTY_PREFIX)
            for column in decoded.values()
            if column.startswith(_PROPERTY_PREFIX)
        )
        self._decoded = decoded

    def build(self, pulled: Pulled, key: QueueKey, lose: LossHandler) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of `pulled`, exactly those from its first to before its next offset.

        Offsets that are missing, and bodies that cannot be read (their value is null then), go to
        `lose`. Raises MessageFormatError for bytes that are no records, RecordOrderError for records
        that do not come in the order of their offsets.
        """
        expected = pulled.first_offset
        for columns in iter_columns(
            pulled.body, columns=self._columns, keys=self._keys, timestamp_unit="us", bad_bodies="null"
        ):
            offsets = columns.numpy("queue_offset")
            first, last, count = int(offsets[0]), int(offsets[-1]), len(offsets)
            batch = self._record_batch(columns, key)
            is_run = (
                first == expected and last == expected + count - 1 and bool((numpy.diff(offsets) == 1).all())
            )
            if not is_run or last >= pulled.next_offset:
                batch = self._cut(batch, offsets, expected, pulled.next_offset, key, lose)
            if columns.bad_body_count:
                lose(Loss(key, first, f"{columns.bad_body_count} bodies from here on cannot be decompressed"))
            if batch.num_rows:
                yield batch
            expected = max(expected, last + 1)
        if expected < pulled.next_offset:
            lose(Loss(key, expected, f"the broker left out offsets up to {pulled.next_offset - 1}"))

    def build_mixed(self, records: memoryview) -> Iterator[tuple[pyarrow.RecordBatch, int]]:
        """Yield the rows of records of any queues in their order, and how many bodies are unreadable."""
        for columns in iter_columns(
            records, columns=self._columns, keys=self._keys, timestamp_unit="us", bad_bodies="null"
        ):
            yield self._record_batch(columns, None), columns.bad_body_count

    def _record_batch(self, columns: Columns, key: QueueKey | None) -> pyarrow.RecordBatch:
        if len(self._decoded) == len(self._names):
            plain: pyarrow.RecordBatch = columns.to_arrow(self._decoded)
            return pyarrow.RecordBatch.from_arrays(plain.columns, schema=self._schema)
        made = columns.to_arrow(self._decoded) if self._decoded else None
        arrays: list[pyarrow.Array] = []
        for name in self._names:
            if name == "properties":
                raw = columns.to_arrow({"raw": "properties"}).column(0)
                arrays.append(properties_as_maps(raw))
            elif name == "broker":
                # A record does not say which broker has it.
                name_of_broker = pyarrow.scalar(None if key is None else key.broker, pyarrow.string())
                arrays.append(pyarrow.repeat(name_of_broker, len(columns)))
            else:
                assert made is not None
                arrays.append(made.column(name))
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    @staticmethod
    def _cut(
        batch: pyarrow.RecordBatch,
        offsets: numpy.typing.NDArray[Any],
        expected: int,
        end: int,
        key: QueueKey,
        lose: LossHandler,
    ) -> pyarrow.RecordBatch:
        """The rows of `batch` from `expected` to before `end`; what is missing between goes to `lose`."""
        steps = numpy.diff(offsets)
        if (steps < 1).any():
            raise RecordOrderError(f"the broker sent records of {key} out of order from offset {expected} on")
        low, high = (int(n) for n in numpy.searchsorted(offsets, (expected, end)))
        kept = offsets[low:high]
        if len(kept):
            ahead = numpy.concatenate(([expected], kept[:-1] + 1))
            for at in numpy.flatnonzero(kept != ahead):
                lose(Loss(key, int(ahead[at]), f"the broker left out offsets up to {int(kept[at]) - 1}"))
        return batch.slice(low, high - low)


def properties_as_maps(raw: pyarrow.Array) -> pyarrow.Array:
    """Property strings of records (binary) as an Arrow map<string, string> column, without Python loops.

    As `decode_properties`: pieces without a name or without a separator are left out, and the last of
    several values of one name wins. Those rare cases, and text that is not UTF-8, take the slow way.
    """
    # Costs every planning process 40 ms of start, so only those pay that need it.
    from pyarrow import compute

    pieces = compute.split_pattern(raw, PROPERTY_END)
    rows = compute.list_parent_indices(pieces).to_numpy()
    flat = compute.list_flatten(pieces)
    separator_at = compute.find_substring(flat, NAME_END)
    is_pair = compute.greater(separator_at, 0)
    if not compute.all(compute.or_(is_pair, compute.equal(compute.binary_length(flat), 0))).as_py():
        return _maps_slowly(raw)
    rows = rows[is_pair.to_numpy(zero_copy_only=False)]
    pairs = compute.list_flatten(compute.split_pattern(flat.filter(is_pair), NAME_END, max_splits=1))
    try:
        texts = pairs.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        return _maps_slowly(raw)
    names = texts.take(pyarrow.array(numpy.arange(0, len(texts), 2)))
    values = texts.take(pyarrow.array(numpy.arange(1, len(texts), 2)))
    codes = compute.dictionary_encode(names)
    tickets = rows.astype(numpy.int64) * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    if len(numpy.unique(tickets)) != len(tickets):
        return _maps_slowly(raw)
    offsets = numpy.zeros(len(raw) + 1, dtype=numpy.int32)
    numpy.cumsum(numpy.bincount(rows, minlength=len(raw)), out=offsets[1:])
    return pyarrow.MapArray.from_arrays(pyarrow.array(offsets), names, values)


def _maps_slowly(raw: pyarrow.Array) -> pyarrow.Array:
    maps = [list(decode_properties(text).items()) for text in raw.to_pylist()]
    return pyarrow.array(maps, type=pyarrow.map_(pyarrow.string(), pyarrow.string()))
