"""Columns of rows on their way to the encoder: schemas, slices of record batches, pairs."""

from __future__ import annotations

import pyarrow
import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)
from sink_harness import TYPES, record_batches

from iotmq.bridge.sink.errors import SinkColumnError
from iotmq.bridge.sink.rows import COLUMNS, check_sink_schema, sink_rows
from iotmq.broker.writing.single_message_batch import split_elements
from iotmq.message.errors import RowError
from iotmq.message.properties import decode_properties
from iotmq.message.records.row_elements import RowEncoder

HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
FITTING: dict[str, tuple[DataType, ...]] = {
    "value": (BinaryType(), StringType()),
    "key": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(), LongType()),
    "broker": (StringType(),),
    "tags": (StringType(),),
    "mqtt_topic": (StringType(),),
    "qos": (IntegerType(), LongType()),
    "retain": (BooleanType(),),
    "ttl_ms": (IntegerType(), LongType()),
    "delay_ms": (IntegerType(), LongType()),
    "content_type": (StringType(),),
    "response_topic": (StringType(),),
    "correlation_data": (BinaryType(), StringType()),
    "properties": (MapType(StringType(), StringType()),),
    "headers": (HEADERS,),
}


def schema(**fields: DataType) -> StructType:
    made = StructType()
    for name, kind in fields.items():
        made.add(name, kind)
    return made


def test_every_column_is_taken_in_each_of_its_types() -> None:
    assert TYPES.keys() == COLUMNS.keys() == FITTING.keys()
    for place in (0, -1):
        check_sink_schema(schema(**{name: kinds[place] for name, kinds in FITTING.items()}), has_topic=False)
    check_sink_schema(schema(value=StringType()), has_topic=True)


@pytest.mark.parametrize(
    ("fields", "has_topic", "problem"),
    [
        ({"value": StringType(), "mqtt_topc": StringType()}, True, "did you mean mqtt_topic"),
        ({"value": StringType(), "offset": LongType()}, True, r"writes no column 'offset'.*Select"),
        ({"value": LongType()}, True, r"column value .* is binary or string, not bigint: cast it"),
        ({"value": StringType(), "qos": StringType()}, True, r"column qos .* is int, not string"),
        ({"value": StringType(), "properties": MapType(StringType(), LongType())}, True, "column properties"),
        ({"value": StringType(), "headers": ArrayType(StringType())}, True, "column headers"),
        ({"value": StringType(), "headers": ArrayType(StructType())}, True, "column headers"),
        ({"key": StringType()}, True, "needs a column value"),
        ({"value": StringType()}, False, "needs a broker topic"),
        ({"value": StringType(), "broker": StringType()}, True, "broker .* needs a column partition"),
    ],
)
def test_other_columns_are_refused(fields: dict[str, DataType], has_topic: bool, problem: str) -> None:
    with pytest.raises(SinkColumnError, match=problem):
        check_sink_schema(schema(**fields), has_topic=has_topic)


texts = st.text("aü-", max_size=4)
maps = st.none() | st.dictionaries(st.text("abc", min_size=1, max_size=3), st.none() | texts, max_size=3)


@given(
    st.lists(
        st.tuples(st.binary(max_size=5), maps, st.none() | st.booleans(), st.none() | st.integers(0, 2)),
        min_size=1,
    ),
    st.integers(0, 5),
)  # fmt: skip
def test_rows_of_slices_are_what_they_were(
    rows: list[tuple[bytes, dict[str, str | None] | None, bool | None, int | None]], skipped: int
) -> None:
    given_rows = [
        {
            "value": value, "properties": list(pairs.items()) if pairs is not None else None,
            "headers": None if pairs is None else [
                {"key": f"h{k}", "value": v and v.encode()} for k, v in pairs.items()
            ],
            "retain": retain, "qos": qos, "delay_ms": 0, "topic": f"T{qos}", "partition": qos,
        }
        for value, pairs, retain, qos in [(b"skipped", {"x": "y"}, True, 1)] * skipped + rows
    ]  # fmt: skip
    [batch] = record_batches(given_rows)
    found = sink_rows(batch.slice(skipped), has_topic=False, first_row=0)
    assert found.topics is not None
    assert found.topics.to_pylist() == [f"T{qos}" for *_, qos in rows]
    assert found.partitions is not None
    assert found.partitions.tolist() == [-1 if qos is None else qos for *_, qos in rows]
    encoder = RowEncoder(batch_bytes=1 << 20, batch_rows=1_000, room=100, buffered_bytes_max=1 << 20)
    encoder.add_topic(1)
    zeros = pyarrow.array([0] * len(rows), pyarrow.int32()).to_numpy()
    encoder.encode(found.body, found.columns, found.keys, zeros, None)
    [sent] = encoder.finish()
    decoded = [
        (body, decode_properties(properties)) for body, properties, _ in split_elements(sent.marked(b""))
    ]
    assert decoded == [
        (
            value,
            ({"MQTT_QOS": str(qos)} if qos is not None else {})
            | ({"MQTT_RETAIN": "1"} if retain else {})
            | {k: v for k, v in (pairs or {}).items() if v is not None}
            | {f"h{k}": v for k, v in (pairs or {}).items() if v is not None},
        )
        for value, pairs, retain, qos in rows
    ]


def test_a_row_is_named_by_its_number_in_the_partition() -> None:
    [batch] = record_batches([{"value": b"x", "qos": 1}, {"value": b"x", "qos": 7}])
    with pytest.raises(RowError, match="row 101: column qos is not from 0 to 2"):
        sink_rows(batch, has_topic=True, first_row=100)
