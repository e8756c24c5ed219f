"""Earliest, latest, offsets and times as offsets per queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.bridge.edges import Resolved, first_at_or_after, resolve_edge
from iotmq.bridge.offsets import QueueBounds, QueueKey
from iotmq.bridge.options.reading import EARLIEST, LATEST, Edge, QueueNumbers
from iotmq.errors import ConfigError

A, B = QueueKey("t", "a", 0), QueueKey("t", "a", 1)
BOUNDS = {A: QueueBounds(10, 20), B: QueueBounds(0, 5)}


def resolved(edge: Edge, **options: str) -> Resolved:
    late = "latest" if options.get("late") == "latest" else "error"
    # The record at offset n was stored at n * 100 ms.
    return resolve_edge(
        edge,
        BOUNDS,
        search=lambda _key, held, wanted_ms: first_at_or_after(wanted_ms, held, lambda offset: offset * 100),
        late_timestamp=late,
    )


def numbers(**queues: int) -> QueueNumbers:
    return QueueNumbers("startingX", {"t": {(None, int(name[1:])): n for name, n in queues.items()}})


def test_words_mean_the_bounds() -> None:
    assert resolved(Edge("o", EARLIEST)).offsets == {A: 10, B: 0}
    assert resolved(Edge("o", LATEST)).offsets == {A: 20, B: 5}


def test_offsets_within_bounds_are_taken_as_they_are() -> None:
    edge = Edge("o", LATEST, offsets=numbers(q0=10, q1=5))
    assert resolved(edge) == ({A: 10, B: 5}, ())


def test_special_numbers_stand_for_the_bounds() -> None:
    edge = Edge("o", LATEST, offsets=numbers(q0=EARLIEST, q1=LATEST))
    assert resolved(edge) == ({A: 10, B: 5}, ())


def test_offsets_outside_of_the_bounds_are_moved_and_reported() -> None:
    found = resolved(Edge("o", LATEST, offsets=numbers(q0=9, q1=6)))
    assert found.offsets == {A: 10, B: 5}
    assert [(loss.key, loss.wanted) for loss in found.losses] == [(A, 9), (B, 6)]


def test_each_queue_needs_a_number_and_nothing_else_may_have_one() -> None:
    with pytest.raises(ConfigError, match="startingX has no number for topic 't' queue a:1"):
        resolved(Edge("o", LATEST, offsets=numbers(q0=12)))
    with pytest.raises(ConfigError, match="startingX names queues that are not read: t 7"):
        resolved(Edge("o", LATEST, offsets=numbers(q0=12, q1=1, q7=1)))


def test_times_find_the_first_record_stored_then_or_later() -> None:
    per_queue = Edge("o", LATEST, timestamps=numbers(q0=1500, q1=301))
    assert resolved(per_queue).offsets == {A: 15, B: 4}


def test_a_time_behind_all_records_is_an_error_or_the_end() -> None:
    edge = Edge("startingTimestamp", LATEST, timestamp_ms=1500)
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy"):
        resolved(edge)
    assert resolved(edge, late="latest").offsets == {A: 15, B: 5}


@given(
    st.lists(st.integers(0, 50), max_size=40).map(sorted),
    st.integers(-1, 51),
    st.integers(0, 40),
)
def test_halving_agrees_with_looking_at_every_record(
    stored_at_ms: list[int], wanted_ms: int, deleted: int
) -> None:
    bounds = QueueBounds(7, 7 + len(stored_at_ms))

    def stored(offset: int) -> int | None:
        return None if offset - 7 < deleted else stored_at_ms[offset - 7]

    naive = [
        offset
        for offset in range(*bounds)
        if stored(offset) is not None and stored_at_ms[offset - 7] >= wanted_ms
    ]
    assert first_at_or_after(wanted_ms, bounds, stored) == (naive[0] if naive else bounds.max_offset)
