"""Pull answers as Arrow record batches."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import pyarrow
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from iotmq.bridge.gaps import RecordOrderError
from iotmq.bridge.offsets import QueueKey
from iotmq.bridge.plan import Loss
from iotmq.bridge.pull import Pulled
from iotmq.bridge.rows import COLUMNS, RowBuilder, default_schema, properties_as_maps
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import encode_record

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


pieces = st.one_of(
    st.sampled_from(
        [b"", b"a", b"a\x01", b"\x01b", b"a\x011", b"a\x012", b"b\x01c\x01d", b"\xff\x01x", b"x\x01\xc3"]
    ),
    st.binary(max_size=6),
)


@given(st.lists(st.lists(pieces, max_size=5).map(b"\x02".join), max_size=8))
def test_maps_agree_with_decoding_each_record(raw: list[bytes]) -> None:
    maps = properties_as_maps(pyarrow.array(raw, type=pyarrow.binary()))
    assert maps.type == pyarrow.map_(pyarrow.string(), pyarrow.string())
    maps.validate(full=True)
    assert [dict(pairs) for pairs in maps.to_pylist()] == [decode_properties(text) for text in raw]


def test_the_schema_is_exactly_what_spark_expects() -> None:
    everything = StructType()
    for name, column in COLUMNS.items():
        everything.add(name, column.spark_type)
    for schema in (default_schema(with_properties=True), everything, OFFSETS):
        (batch,) = RowBuilder(schema).build(Pulled(records(5, 6), 5, 7), KEY, lambda _loss: None)
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
        batch.validate(full=True)


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
