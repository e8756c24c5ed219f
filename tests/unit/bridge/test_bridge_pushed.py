"""What filters leave to be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from iotmq.bridge.offsets import QueueBounds, QueueKey
from iotmq.bridge.pushed import Narrowed, narrowed_spans

COUNT = 20
START = datetime(2026, 3, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
KEYS = [QueueKey("t", broker, queue_id) for broker in ("a", "b") for queue_id in (0, 1)]
BOUNDS = {key: QueueBounds(0, COUNT) for key in KEYS}
# Three records of a queue have the same time.
TIMES_MS = [START_MS + n // 3 for n in range(COUNT)]
COMPARED = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


def search(_key: QueueKey, held: QueueBounds, ms: int) -> int:
    return next((n for n in range(held.max_offset) if TIMES_MS[n] >= ms), held.max_offset)


def spans(*filters: Filter) -> dict[QueueKey, tuple[int, int]]:
    narrowed = Narrowed()
    narrowed.take(filters)
    return narrowed_spans(narrowed, BOUNDS, dict.fromkeys(KEYS, (0, COUNT)), search)


def passes(each: Filter, key: QueueKey, offset: int) -> bool:
    values = {
        "topic": key.topic,
        "broker": key.broker,
        "partition": key.queue_id,
        "offset": offset,
        "timestamp": datetime.fromtimestamp(TIMES_MS[offset] / 1000, UTC),
        "value": b"x",
    }
    if isinstance(each, In):
        return values[each.attribute[0]] in each.value
    return bool(COMPARED[type(each)](values[each.attribute[0]], each.value))


microseconds = st.integers(-2000, 9000).map(lambda us: START + timedelta(microseconds=us))
kinds = st.sampled_from(list(COMPARED))
filters = st.one_of(
    st.builds(lambda kind, n: kind(("offset",), n), kinds, st.integers(-3, COUNT + 3)),
    st.builds(lambda kind, time: kind(("timestamp",), time), kinds, microseconds),
    st.builds(lambda n: EqualTo(("partition",), n), st.integers(0, 2)),
    st.builds(lambda some: In(("broker",), tuple(some)), st.sets(st.sampled_from("abc"))),
    st.builds(lambda topic: EqualTo(("topic",), topic), st.sampled_from(["t", "u"])),
    st.just(EqualTo(("value",), b"x")),
)


@given(st.lists(filters, max_size=4))
def test_no_record_that_passes_the_filters_is_left_out(some: list[Filter]) -> None:
    left = spans(*some)
    for key in KEYS:
        low, high = left.get(key, (0, 0))
        for offset in range(COUNT):
            if all(passes(each, key, offset) for each in some):
                assert low <= offset < high


def test_queues_offsets_and_times_are_narrowed_down() -> None:
    a0 = KEYS[0]
    assert spans(EqualTo(("partition",), 0), In(("broker",), ("a", "z"))) == {a0: (0, COUNT)}
    assert spans(EqualTo(("topic",), "other")) == {}
    one = (EqualTo(("broker",), "a"), EqualTo(("partition",), 0))
    assert spans(*one, GreaterThan(("offset",), 3), LessThan(("offset",), 9))[a0] == (3, 10)
    from_ms, to_ms = START + timedelta(milliseconds=2), START + timedelta(milliseconds=4)
    assert spans(*one, GreaterThanOrEqual(("timestamp",), from_ms), LessThan(("timestamp",), to_ms)) == {
        a0: (6, 15)
    }
    assert spans(*one, GreaterThan(("offset",), 12), LessThan(("offset",), 2))[a0] == (12, 12)


def test_filters_that_say_nothing_about_the_place_of_records_leave_everything() -> None:
    everything = dict.fromkeys(KEYS, (0, COUNT))
    assert spans(IsNotNull(("offset",)), Not(EqualTo(("partition",), 0))) == everything
    assert spans(EqualTo(("key",), "k"), GreaterThan(("offset",), None)) == everything
