"""Records as rows: the columns a reader may ask for, and pull answers as Arrow record batches of them.

Spark prunes no columns of a Python source, so a schema given by the reader is taken as the list of
columns to make; each one left out is work saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy
import numpy.typing
import pyarrow
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from iotmq.bridge import derived
from iotmq.bridge.gaps import gaps_of, left_out, rows_between, tell_all
from iotmq.bridge.offsets import QueueKey
from iotmq.bridge.options.wanted import EVERYTHING, Wanted
from iotmq.bridge.plan import Loss, LossHandler
from iotmq.bridge.pull import Pulled
from iotmq.errors import ConfigError
from iotmq.message.properties import (
    KEYS,
    MQTT_CLIENT_ID,
    MQTT_CONTENT_TYPE,
    MQTT_QOS,
    MQTT_RETAIN,
    MQTT_TOPIC,
    TAGS,
    UNIQ_KEY,
)
from iotmq.message.records.columns import MESSAGE_ID_COLUMN, Columns, iter_columns


class Column(NamedTuple):
    """One column of the source: its Spark type, and where the decoder has it ("" when made here).

    `derive` makes a column of what the decoder has under the names of `needs`, for all rows at once.
    """

    spark_type: DataType
    decoded: str
    is_default: bool = True
    needs: tuple[str, ...] = ()
    derive: Callable[[derived.Decoded], pyarrow.Array] | None = None


_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_QOS: Final = f"property.{MQTT_QOS}"
_RETAIN: Final = f"property.{MQTT_RETAIN}"
_UNIQUE_KEY: Final = f"property.{UNIQ_KEY}"

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
    "qos": Column(IntegerType(), "", False, (_QOS,), lambda of: derived.qos(of(_QOS))),
    "retain": Column(
        BooleanType(), "", False, (_RETAIN, _QOS), lambda of: derived.retain(of(_RETAIN), of(_QOS))
    ),
    "content_type": Column(StringType(), f"property.{MQTT_CONTENT_TYPE}", is_default=False),
    "message_id": Column(
        StringType(),
        "",
        False,
        (_UNIQUE_KEY, MESSAGE_ID_COLUMN),
        lambda of: derived.first_given(of(_UNIQUE_KEY), of(MESSAGE_ID_COLUMN)),
    ),
    "headers": Column(_HEADERS, "", False, ("properties",), lambda of: derived.headers(of("properties"))),
    "properties": Column(
        MapType(StringType(), StringType()),
        "",
        False,
        ("properties",),
        lambda of: derived.properties_as_maps(of("properties")),
    ),
    "timestampType": Column(
        IntegerType(), "", False, ("store_timestamp",), lambda of: derived.stored_time(of("store_timestamp"))
    ),
    "broker": Column(StringType(), "", is_default=False),
    "position": Column(LongType(), "position", is_default=False),
}

_PROPERTY_PREFIX: Final = "property."
_OF_HEADERS: Final = ("headers", "properties")


def default_schema(*, with_properties: bool) -> StructType:
    """Return the columns of a read that asks for none, in order."""
    schema = StructType()
    for name, column in COLUMNS.items():
        if column.is_default or (name in _OF_HEADERS and with_properties):
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

    def __init__(self, schema: StructType, wanted: Wanted = EVERYTHING) -> None:
        self._wanted = wanted
        names = schema.fieldNames()
        self._schema: pyarrow.Schema = to_arrow_schema(schema, timezone="UTC")
        self._names = names
        decoded = {name: COLUMNS[name].decoded for name in names if COLUMNS[name].decoded}
        # The offset is always decoded, because every answer is checked for gaps.
        needed = {
            *decoded.values(),
            "queue_offset",
            *wanted.needs,
            *(each for name in names for each in COLUMNS[name].needs),
        }
        self._columns = tuple(sorted(column for column in needed if not column.startswith(_PROPERTY_PREFIX)))
        self._keys = tuple(
            sorted(
                column.removeprefix(_PROPERTY_PREFIX)
                for column in needed
                if column.startswith(_PROPERTY_PREFIX)
            )
        )
        self._decoded = decoded

    def build(self, pulled: Pulled, key: QueueKey, lose: LossHandler) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of `pulled`, exactly those from its first to before its next offset.

        Offsets that are missing, and bodies that cannot be read (their value is null then), go to
        `lose`. Raises MessageFormatError for bytes that are no records, RecordOrderError for records
        that do not come in the order of their offsets.
        """
        expected = pulled.first_offset
        # The broker may leave out records that nobody wants, or that are lost; then it says how many.
        missing = pulled.missing
        # Brokers of other software do not say how many records do not pass a filter.
        tells_gaps = missing > 0 or self._wanted.is_everything
        found = 0
        gaps: list[Loss] = []
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
                low, high = rows_between(offsets, expected, pulled.next_offset, key)
                gaps += gaps_of(offsets[low:high], expected, key)
                batch = batch.slice(low, high - low)
            else:
                low = 0
            if columns.bad_body_count:
                lose(Loss(key, first, f"{columns.bad_body_count} bodies from here on cannot be decompressed"))
            if gaps and not missing and tells_gaps:
                tell_all(gaps, lose)
            found += batch.num_rows
            mask = self._wanted.mask(partial(_arrow_column, columns))
            if mask is not None:
                batch = batch.filter(mask.slice(low, batch.num_rows))
            if batch.num_rows:
                yield batch
            expected = max(expected, last + 1)
        if expected < pulled.next_offset:
            gaps.append(left_out(key, expected, pulled.next_offset))
        if found + missing != pulled.next_offset - pulled.first_offset and tells_gaps:
            tell_all(gaps, lose)

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
        for name, field in zip(self._names, self._schema, strict=True):
            derive = COLUMNS[name].derive
            if derive is not None:
                # Arrow has names for the parts of lists and maps, and so has Spark.
                arrays.append(derive(partial(_arrow_column, columns)).cast(field.type))
            elif name == "broker":
                # A record does not say which broker has it.
                name_of_broker = pyarrow.scalar(None if key is None else key.broker, pyarrow.string())
                arrays.append(pyarrow.repeat(name_of_broker, len(columns)))
            else:
                assert made is not None
                arrays.append(made.column(name))
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def _arrow_column(columns: Columns, name: str) -> pyarrow.Array:
    return columns.to_arrow({"": name}).column(0)
