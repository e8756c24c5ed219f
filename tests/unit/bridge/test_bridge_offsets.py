"""Offsets as Spark's checkpoint keeps them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.bridge.offsets import (
    INITIAL,
    OffsetFormatError,
    QueueKey,
    QueueRange,
    StreamOffset,
    from_json,
    parse_queue,
    ranges_between,
    to_json,
)

A0 = QueueKey("t", "broker-a", 0)
A1 = QueueKey("t", "broker-a", 1)
A10 = QueueKey("t", "broker-a", 10)
B0 = QueueKey("t", "broker-b", 0)

keys = st.builds(
    QueueKey,
    st.text("abcT-_%", min_size=1, max_size=5),
    st.text("xyz-:1", min_size=1, max_size=5),
    st.integers(0, 1000),
)


def test_the_document_has_topics_and_queues_in_order_whatever_the_order_of_the_mapping() -> None:
    document = to_json(StreamOffset({B0: 4, A10: 3, A1: 2, A0: 1, QueueKey("s", "b", 0): 9}))
    assert json.dumps(document) == (
        '{"v": 2, "topics": {"s": {"b:0": 9}, '
        '"t": {"broker-a:0": 1, "broker-a:1": 2, "broker-a:10": 3, "broker-b:0": 4}}}'
    )


counts = st.integers(0, 2**63 - 1)
offset_documents = st.builds(
    StreamOffset,
    st.dictionaries(keys, counts),
    is_initial=st.just(False),
    generations=st.dictionaries(st.tuples(st.text(min_size=1), st.text(min_size=1)), st.text(min_size=1)),
    left=st.dictionaries(keys, counts),
    time_ms=counts,
    since_ms=counts,
    stream_id=st.text(),
)


@given(offset_documents)
def test_offsets_come_back_from_json(offset: StreamOffset) -> None:
    text = json.dumps(to_json(offset))
    assert from_json(json.loads(text)) == offset
    # Spark compares texts.
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


@given(st.dictionaries(keys, counts))
def test_version_1_is_read_as_offsets_of_unknown_generations(offsets: dict[QueueKey, int]) -> None:
    document = {**to_json(StreamOffset(offsets)), "v": 1}
    assert from_json(document) == StreamOffset(offsets)
    assert from_json({"v": 1, "topics": {}, "initial": True}) == INITIAL


def test_the_initial_offset_names_no_queue_and_comes_back() -> None:
    assert to_json(INITIAL) == {"v": 2, "topics": {}, "initial": True}
    assert from_json(to_json(INITIAL)) == INITIAL


def test_numbers_of_numpy_become_plain_ones() -> None:
    numpy = pytest.importorskip("numpy")
    assert json.dumps(to_json(StreamOffset({A0: numpy.int64(5)})))


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"v": 3, "topics": {}},
        {"v": True, "topics": {}},
        {"v": 2},
        {"v": 2, "topics": {}, "left": []},
        {"v": 2, "topics": {}, "left": {"t": {"broker-a:0": -1}}},
        {"v": 2, "topics": {}, "time": "now"},
        {"v": 2, "topics": {}, "since": -1},
        {"v": 2, "topics": {}, "id": 7},
        {"v": 2, "topics": {}, "generations": []},
        {"v": 2, "topics": {}, "generations": {"t": "1-0"}},
        {"v": 2, "topics": {}, "generations": {"t": {"broker-a": 1}}},
        {"v": 1},
        {"v": 1, "topics": []},
        {"v": 1, "topics": {"t": []}},
        {"v": 1, "topics": {"t": {"0": 1}}},
        {"v": 1, "topics": {"t": {"broker-a:x": 1}}},
        {"v": 1, "topics": {"t": {"broker-a:0": -1}}},
        {"v": 1, "topics": {"t": {"broker-a:0": True}}},
        {"v": 1, "topics": {"t": {"broker-a:0": "1"}}},
        {"v": 1, "topics": {"t": {"broker-a:0": 1}}, "initial": True},
        {"v": 1, "topics": {}, "initial": 1},
    ],
)
def test_anything_else_is_refused(document: object) -> None:
    with pytest.raises(OffsetFormatError):
        from_json(document)


@pytest.mark.parametrize(
    ("text", "parts"), [("0", (None, 0)), ("b:12", ("b", 12)), ("host:1:2", ("host:1", 2))]
)
def test_a_queue_may_be_named_with_or_without_its_broker(text: str, parts: object) -> None:
    assert parse_queue(text) == parts


@pytest.mark.parametrize("text", ["", "b", "b:", ":1", "-1", "b:-1", "1.0", "٣"])
def test_what_is_no_queue_is_refused(text: str) -> None:
    with pytest.raises(OffsetFormatError):
        parse_queue(text)


def test_a_batch_reads_what_lies_between_its_offsets() -> None:
    start, end = StreamOffset({A0: 5, A1: 7, B0: 3}), StreamOffset({B0: 9, A0: 5, A1: 8})
    assert ranges_between(start, end) == [QueueRange(A1, 7, 8), QueueRange(B0, 3, 9)]
    assert sum(part.rows for part in ranges_between(start, end)) == 7


def test_a_queue_that_only_the_end_has_is_introduced_and_not_read() -> None:
    assert ranges_between(INITIAL, StreamOffset({A0: 100})) == []
    assert ranges_between(StreamOffset({A0: 1}), StreamOffset({A0: 1, A1: 50})) == []


def test_a_queue_that_had_left_goes_on_where_it_was_in_the_generation_of_the_end() -> None:
    start = StreamOffset({A0: 1}, left={A1: 7})
    end = StreamOffset({A0: 1, A1: 9}, generations={("t", "broker-a"): "5-0"})
    assert ranges_between(start, end) == [QueueRange(A1, 7, 9, "5-0")]


def test_an_end_below_the_start_reads_nothing() -> None:
    assert ranges_between(StreamOffset({A0: 10}), StreamOffset({A0: 4})) == []
