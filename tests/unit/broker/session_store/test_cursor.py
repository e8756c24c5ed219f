"""How far a session has come with a filter: ranges it skips, what waits, and the bytes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.broker.session_store.cursor import SKIPS_MAX, Cursor, decode_cursor
from iotmq.errors import StoreCorruptError

RANGE = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda pair: (pair[0], sum(pair)))


def test_where_nothing_is_in_flight_the_cursor_moves() -> None:
    assert Cursor(10, 10).skipping(10, 30) == Cursor(30, 30)
    assert Cursor(10, 10).skipping(5, 30) == Cursor(30, 30)


def test_what_was_sent_and_is_not_done_stays() -> None:
    place = Cursor(10, 20).skipping(20, 30)
    assert place == Cursor(10, 20, ((20, 30),))
    assert place.waiting() == [(30, None)]
    assert place.moved(15, 40) == Cursor(15, 40, ((20, 30),))
    assert place.moved(30, 40) == Cursor(30, 40)


def test_what_is_refused_leaves_what_waits_before_it() -> None:
    place = Cursor(10, 15).skipping(20, 30)
    assert place.waiting() == [(15, 20), (30, None)]
    assert [place.next_skip(at) for at in (0, 20, 29, 30)] == [(20, 30), (20, 30), (20, 30), None]


def test_ranges_that_touch_are_one() -> None:
    place = Cursor(10, 15).skipping(20, 30).skipping(40, 50).skipping(30, 35)
    assert place.skips == ((20, 35), (40, 50))
    assert place.skipping(33, 41).skips == ((20, 50),)


def test_ranges_at_their_limit_and_past_it() -> None:
    place = Cursor(0, 5)
    for number in range(SKIPS_MAX):
        place = place.skipping(10 + 10 * number, 15 + 10 * number)
    assert len(place.skips) == SKIPS_MAX
    last = place.skips[-1]
    place = place.skipping(1_000, 1_010)
    assert len(place.skips) == SKIPS_MAX
    assert place.skips[-1] == (last[0], 1_010)


@given(st.integers(0, 20), st.integers(0, 20), st.lists(RANGE, max_size=10))
def test_what_waits_is_what_is_behind_and_not_skipped(
    cursor: int, more: int, ranges: list[tuple[int, int]]
) -> None:
    place = Cursor(cursor, cursor + more)
    expected = set(range(cursor + more, 100))
    for start, end in ranges:
        # As limits do: nothing that was sent is skipped.
        place = place.skipping(max(start, place.sent), max(end, place.sent))
        expected -= set(range(start, end))
    waiting = {
        position for start, end in place.waiting() for position in range(start, 100 if end is None else end)
    }
    assert waiting == expected
    assert decode_cursor(place.encode()) == place


@pytest.mark.parametrize("size", [0, 8, 15, 17, 24, 31, 33])
def test_bytes_that_are_none_are_refused(size: int) -> None:
    with pytest.raises(StoreCorruptError, match=str(size)):
        decode_cursor(bytes(size))
