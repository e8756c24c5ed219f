"""Pull answers as Arrow record batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from iotmq.bridge.gaps import RecordOrderError
from iotmq.bridge.offsets import QueueKey
from iotmq.bridge.options.wanted import parse_wanted
from iotmq.bridge.plan import Loss
from iotmq.bridge.pull import Pulled
from iotmq.bridge.rows import COLUMNS, RowBuilder, default_schema
from iotmq.message.errors import MessageFormatError
from iotmq.message.message_ids import message_id_prefix
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import decode_record, encode_record

KEY = QueueKey("t", "b", 3)
OFFSETS = StructType().add("offset", "long")


def records(*offsets: int) -> bytes:
    return b"".join(
        encode_record(topic="t", body=b"x", queue_id=3, queue_offset=n, properties=b"KEYS\x01k")
        for n in offsets
    )


def built(body: bytes, first: int, end: int, schema: StructType = OFFSETS) -> tuple[list[int], list[Loss]]:
    lost: list[Loss] = []
    batches = RowBuilder(schema).build(Pulled(body, first, end), KEY, lost.append)
    return [row["offset"] for batch in batches for row in batch.to_pylist()], lost


def test_the_schema_is_exactly_what_spark_expects() -> None:
    everything = StructType()
    for name, column in COLUMNS.items():
        everything.add(name, column.spark_type)
    for schema in (default_schema(with_properties=True), everything, OFFSETS):
        (batch,) = RowBuilder(schema).build(Pulled(records(5, 6), 5, 7), KEY, lambda _loss: None)
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
        batch.validate(full=True)


def test_columns_made_of_properties_are_those_of_the_record() -> None:
    schema = StructType()
    for name in ("qos", "retain", "content_type", "message_id", "headers", "timestampType"):
        schema.add(name, COLUMNS[name].spark_type)
    properties = {
        "MQTT_TOPIC": "a/b",
        "MQTT_QOS": "1",
        "MQTT_RETAIN": "1",
        "MQTT_CONTENT_TYPE": "application/json",
        "MQTT_USER.unit": "C",
    }
    body = b"".join(
        encode_record(topic="t", body=b"x", queue_id=3, queue_offset=n, position=77, properties=raw)
        for n, raw in enumerate((encode_properties(properties), b"", b"UNIQ_KEY\x01K\x02color\x01red"))
    )
    (batch,) = RowBuilder(schema).build(Pulled(body, 0, 3), KEY, lambda _loss: None)
    record = decode_record(body)
    stored_at = message_id_prefix(record.store_host) + f"{77:016X}"
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (1, True, "application/json", stored_at, [{"key": "unit", "value": b"C"}], 1),
        (None, None, None, stored_at, [], 1),
        (None, None, None, "K", [{"key": "color", "value": b"red"}], 1),
    ]


def test_complete_answers_are_taken_whole() -> None:
    assert built(records(5, 6, 7), 5, 8) == ([5, 6, 7], [])


def test_records_before_and_behind_the_range_are_cut_off() -> None:
    assert built(records(3, 4, 5, 6, 7, 8), 5, 7) == ([5, 6], [])
    assert built(records(3, 4), 5, 5) == ([], [])


def test_gaps_are_told_with_their_first_offset() -> None:
    offsets, lost = built(records(6, 7, 9), 5, 12)
    assert offsets == [6, 7, 9]
    assert [loss.wanted for loss in lost] == [5, 8, 10]


def explained(present: list[int], first: int, end: int, lost: list[int], passed: int) -> list[Loss]:
    """What is told of an answer with `present` of [first, end), of which the broker explains some."""
    told: list[Loss] = []
    ranges = tuple((n, n) for n in lost)
    pulled = Pulled(records(*present), first, end, ranges, passed)
    rows = [row for batch in RowBuilder(OFFSETS).build(pulled, KEY, told.append) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == present
    return told


@given(st.sets(st.integers(0, 30), min_size=1), st.integers(0, 5), st.integers(0, 5))
def test_every_gap_is_found_unless_the_broker_explains_as_many_offsets(
    present: set[int], lost: int, passed: int
) -> None:
    first, end = 0, 31
    missing = sorted(set(range(first, end)) - present)
    told = explained(sorted(present), first, end, missing[:lost], passed)
    if len(missing[:lost]) + passed == len(missing):
        assert told == []
    else:
        # All gaps: which of them are explained nobody can say.
        assert [n for loss in told for n in range(loss.wanted, loss.end or 0)] == missing


def test_very_many_gaps_become_one_behind_the_first_hundred() -> None:
    told = explained(list(range(0, 600, 2)), 0, 599, [], 0)
    assert [(loss.wanted, loss.end) for loss in told[:2]] == [(1, 2), (3, 4)]
    assert len(told) == 101
    assert (told[-1].wanted, told[-1].end) == (201, 598)
    assert "at 199 places" in told[-1].what


def test_records_out_of_order_are_refused() -> None:
    for order in ((5, 7, 6), (5, 5), (5, 6, 6, 8), (5, 7, 6, 8)):
        with pytest.raises(RecordOrderError, match="topic 't' queue b:3"):
            built(records(*order), 5, 9)


def test_bytes_that_are_no_records_are_refused() -> None:
    with pytest.raises(MessageFormatError):
        built(records(5) + b"rubbish", 5, 7)


def tagged(*pairs: tuple[int, str]) -> bytes:
    return b"".join(
        encode_record(topic="t", body=b"x", queue_id=3, queue_offset=n, properties=b"TAGS\x01" + tag.encode())
        for n, tag in pairs
    )


def filtered(pulled: Pulled) -> tuple[list[int], list[Loss]]:
    told: list[Loss] = []
    wanted = parse_wanted(tags="red", sql=None, mqtt_topic_filter=None)
    batches = list(RowBuilder(OFFSETS, wanted).build(pulled, KEY, told.append))
    return [row["offset"] for batch in batches for row in batch.to_pylist()], told


def test_records_that_a_filter_leaves_out_are_no_loss_and_those_sent_too_many_are_dropped() -> None:
    body = tagged((4, "red"), (5, "red"), (7, "blue"), (9, "red"), (10, "red"))
    # The broker tells how many it has passed over.
    assert filtered(Pulled(body, 5, 10, passed_over=2)) == ([5, 9], [])
    # Or it does not know of such questions.
    assert filtered(Pulled(body, 5, 10)) == ([5, 9], [])


def test_a_gap_that_no_filter_explains_is_a_loss() -> None:
    offsets, told = filtered(Pulled(tagged((5, "red"), (9, "red")), 5, 10, passed_over=2))
    assert offsets == [5, 9]
    assert [loss.wanted for loss in told] == [6]
