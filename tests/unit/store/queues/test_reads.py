"""Reading: every status, limits, tags, gathered and shared views, offsets by time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from manual_clock import ManualClock
from store_model import open_small, put, records_of, wait_flushed

from iotmq.message.records.record import iter_records
from iotmq.message.tags import tag_hash
from iotmq.store.log.segment import segment_name
from iotmq.store.queues.reads import Read, ReadStatus
from iotmq.store.store import Store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    store = open_small(tmp_path, clock=clock)
    yield store
    assert store.check() == []
    store.close()


def bodies(read: Read) -> list[bytes]:
    return [record.body for view in read.views for record in iter_records(view)]


def read(
    store: Store, offset: int, *, records_max: int = 100, bytes_max: int = 1 << 20, **more: object
) -> Read:
    return store.read(
        store.find_queue("T", 0),
        offset,
        records_max=records_max,
        bytes_max=bytes_max,
        **more,  # type: ignore[arg-type]
    )


def test_unknown_queue(store: Store) -> None:
    result = read(store, 5)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_empty_queue(store: Store) -> None:
    store.queue("T", 0)
    result = read(store, 5)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
        (0, ReadStatus.FOUND, 3),
        (2, ReadStatus.FOUND, 3),
        (3, ReadStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, ReadStatus.OFFSET_OVERFLOW_BADLY, 3),
        (1 << 62, ReadStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_status_by_offset(store: Store, offset: int, status: ReadStatus, next_offset: int) -> None:
    put(store, "T", 0, b"a", b"b", b"c")
    result = read(store, offset)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 3)
    assert result.count == len(bodies(result)) == (max(0, 3 - offset) if status == ReadStatus.FOUND else 0)


def test_neighbours_share_one_view_of_the_mapping(store: Store) -> None:
    put(store, "T", 0, b"a", b"b")
    put(store, "T", 0, b"c")
    result = read(store, 0)
    assert [bytes(view) for view in result.views] == [bytes(store._log.view(0, store.appended_position))]
    assert result.size_bytes == store.appended_position


def test_scattered_small_records_are_gathered(store: Store) -> None:
    for number in range(10):
        put(store, "T", 0, b"%d" % number)
        put(store, "U", 0, b"between")
    result = read(store, 0)
    assert len(result.views) == 1
    assert bodies(result) == [b"%d" % number for number in range(10)]


def test_large_records_are_not_copied(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 20, record_bytes_max=1 << 16)
    for _ in range(3):
        put(store, "T", 0, bytes(20_000))
        put(store, "U", 0, b"between")
    put(store, "T", 0, b"small")
    result = read(store, 0)
    assert len(result.views) == 4
    assert all(view.obj is store._log.segment_list()[0] for view in result.views)
    store.close()


def test_views_keep_their_bytes_after_close(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"lasting")
    result = read(store, 0)
    store.close()
    assert bodies(result) == [b"lasting"]


@pytest.mark.parametrize(("records_max", "count"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_record_limit(store: Store, records_max: int, count: int) -> None:
    put(store, "T", 0, b"a", b"b", b"c")
    result = read(store, 0, records_max=records_max)
    assert (result.count, result.next_offset) == (count, count)


@pytest.mark.parametrize(("bytes_max", "count"), [(0, 1), (93 * 2 - 1, 1), (93 * 2, 2), (93 * 3, 3)])
def test_byte_limit_but_never_nothing(store: Store, bytes_max: int, count: int) -> None:
    put(store, "T", 0, b"a", b"b", b"c")
    assert read(store, 0, bytes_max=bytes_max).count == count


def test_views_do_not_cross_segments(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=20_000, record_bytes_max=5000)
    put(store, "T", 0, *(b"x" * 4900 for _ in range(10)))
    assert [len(view) // 4900 for view in read(store, 0).views] == [4, 4, 2]
    assert store.check() == []
    store.close()


def test_tags_select(store: Store) -> None:
    for number in range(9):
        put(store, "T", 0, b"%d" % number, properties=(b"", b"TAGS\x01A\x02", b"TAGS\x01B\x02")[number % 3])
    tags = frozenset({tag_hash("A")})
    result = read(store, 0, tags=tags)
    assert (bodies(result), result.next_offset) == ([b"1", b"4", b"7"], 9)
    assert bodies(read(store, 0, tags=tags | {tag_hash("B")})) == [b"1", b"2", b"4", b"5", b"7", b"8"]
    assert bodies(read(store, 0, tags=frozenset({0}))) == [b"0", b"3", b"6"]
    # The limit stops the search right behind the last record taken.
    assert read(store, 0, tags=tags, records_max=2).next_offset == 5


def test_tags_may_be_negative_or_unsigned(store: Store) -> None:
    put(store, "T", 0, b"x", properties=b"TAGS\x01polygenelubricants\x02")
    assert read(store, 0, tags=frozenset({-(1 << 31)})).count == 1
    assert read(store, 0, tags=frozenset({1 << 31})).count == 1


def test_nothing_matched_moves_past_what_was_searched(store: Store) -> None:
    put(store, "T", 0, b"a", b"b")
    for tags in (frozenset({1}), frozenset[int]()):
        result = read(store, 0, tags=tags)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 2)


def test_search_stops_after_eight_hundred_entries(tmp_path: Path) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 20, queue_file_entries=10_000)
    put(store, "T", 0, *(b"x" for _ in range(2000)))
    tags = frozenset({1})
    assert read(store, 0, tags=tags).next_offset == 800
    assert read(store, 0, tags=tags, records_max=1500).next_offset == 1500
    store.close()


def test_entry_that_points_elsewhere_is_mended(tmp_path: Path) -> None:
    """Neither another record nor bytes past the log are served: the log has the right one."""
    store = open_small(tmp_path)
    put(store, "T", 0, *(b"%d" % number for number in range(6)))
    path = tmp_path / "consumequeue" / "T" / "0" / segment_name(0)
    for number, position in ((1, 93 * 2 + 1), (2, 1 << 40), (3, 4090), (4, -5)):
        with path.open("r+b") as file:
            file.seek(number * 20)
            file.write(position.to_bytes(8, "big", signed=True))
    assert store.check() != []
    assert bodies(read(store, 4)) == [b"4", b"5"]
    assert bodies(read(store, 0)) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert store.unreadable_records() == []
    assert store.check() == []
    store.close()


@pytest.mark.damaged_store
def test_entry_of_a_record_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    positions = [put(store, "T", 0, b"%d" % number).start_position for number in range(6)]
    path = tmp_path / "commitlog" / segment_name(0)
    with path.open("r+b") as file:
        # Its own position, and its offset.
        file.seek(positions[2] + 28)
        file.write(b"\xff")
        file.seek(positions[4] + 20)
        file.write(b"\x01")
    for _ in range(2):
        assert bodies(read(store, 0)) == [b"0", b"1", b"3", b"5"]
    assert [offset for _, _, offset, _ in store.unreadable_records()] == [2, 4]
    assert read(store, 2, records_max=1).next_offset == 4
    store.close()


def test_log_trimmed_under_a_queue(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, *(b"x" * 1900 for _ in range(5)))
    store.close()
    (tmp_path / "commitlog" / segment_name(0)).unlink()
    store = open_small(tmp_path)
    assert (store.min_position, store.find_queue("T", 0).min_offset) == (4096, 2)  # type: ignore[union-attr]
    result = read(store, 0)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, 2)
    assert read(store, 2).count == 3
    assert store.check() == []
    store.close()


def test_records_not_confirmed_are_not_read(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    put(store, "T", 0, b"a")
    wait_flushed(store)
    put(store, "T", 0, b"b")
    queue = store.queue("T", 0)
    if store.advance() < store.appended_position:
        assert (queue.max_offset, queue.next_offset) == (1, 2)
        assert read(store, 1).status == ReadStatus.OFFSET_OVERFLOW_ONE
        assert store.read_record(store.confirmed_position) is None
    wait_flushed(store)
    assert bodies(read(store, 0)) == [b"a", b"b"]
    store.close()


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"),
    [
        (0, 0),
        (1000, 0),
        (1004, 0),
        (1005, 0),
        (1006, 2),
        (1010, 2),
        (1020, 3),
        (1029, 4),
        (1030, 4),
        (1031, 4),
        (1 << 50, 4),
    ],
)
def test_offset_at_time(tmp_path: Path, timestamp_ms: int, offset: int) -> None:
    """Exact, else the nearer neighbour (the earlier when both are as near), never past the last."""
    clock = ManualClock(1000)
    store = open_small(tmp_path, clock=clock)
    for step_ms, count in ((0, 2), (10, 1), (10, 1), (10, 1)):
        clock.advance(step_ms / 1000)
        put(store, "T", 0, *(b"x" for _ in range(count)))
    # Of the two records stored at 1000 the first is meant, but the second is the neighbour of 1005.
    wanted = 1 if 1000 < timestamp_ms <= 1005 else offset
    assert store.offset_at_time(store.queue("T", 0), timestamp_ms) == wanted
    assert store.check() == []
    store.close()


def test_offset_at_time_of_an_empty_queue(store: Store) -> None:
    assert store.offset_at_time(store.queue("T", 0), 5) == 0


def test_offset_at_time_agrees_with_a_linear_search(store: Store, clock: ManualClock) -> None:
    for number in range(60):
        clock.advance((number * 7 % 5) / 1000)
        put(store, "T", 0, b"x" * (number * 37 % 300))
    queue = store.queue("T", 0)
    times = [record.store_timestamp_ms for record in records_of(store, "T", 0)]
    for timestamp_ms in range(times[0] - 2, times[-1] + 3):
        found = times[store.offset_at_time(queue, timestamp_ms)]
        assert abs(found - timestamp_ms) == min(abs(time - timestamp_ms) for time in times)
        if timestamp_ms in times:
            assert store.offset_at_time(queue, timestamp_ms) == times.index(timestamp_ms)
