"""Look-ups whose pages are on the disk: steps, and nothing touched that was not asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from manual_clock import ManualClock
from store_model import BORN_HOST, open_small, wait_flushed

from iotmq.message.records.record import decode_record, encode_batch, iter_records
from iotmq.store.log.commit_log import CommitLog
from iotmq.store.queues.cold_steps import Steps, finish
from iotmq.store.queues.residency import ColdRead, Window
from iotmq.store.store import Store

SETTINGS = {
    "segment_bytes": 8 << 20,
    "allocation_step_bytes": 1 << 20,
    "hot_bytes": 0,
    "record_bytes_max": 4 << 20,
    "index_slots": 50_000,
    "index_entries": 40_000,
}
RECORDS = 6000

T = TypeVar("T")


def forget_pages(store: Store) -> None:
    """Have the kernel let go of the log and of the index."""
    assert store._index is not None
    segments = [*store._log.segment_list(), *(file.segment for file in store._index.file_list())]
    for segment in segments:
        with Path(segment.path).open("rb") as file:
            os.fdatasync(file.fileno())
        if segment.allocated_bytes:
            window = Window(segment, 0, segment.allocated_bytes)
            window.drop()
            assert window.absent_pages() > 10


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_small(tmp_path, **SETTINGS)
    queue = store.queue("T", 0)
    for start in range(0, RECORDS, 100):
        elements = [
            (b"%05d" % number + bytes(600), b"KEYS\x01k%d every%d\x02" % (number, number % 1000), 0)
            for number in range(start, start + 100)
        ]
        if start == 3000:
            elements[0] = (b"large" * 60_000, b"KEYS\x01large\x02", 0)
        store.append(queue, encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST)
    wait_flushed(store)
    forget_pages(store)
    yield store
    store.close()


def query(store: Store, key: str) -> Steps[list[memoryview]]:
    return store.query_steps("T", key, begin_ms=0, end_ms=1 << 62, records_max=64)


def numbers(views: list[memoryview]) -> list[int]:
    return [int(decode_record(view).body[:5]) for view in views]


def counted(store: Store, steps: Steps[T]) -> tuple[T, list[ColdRead]]:
    """The answer, and what had to be loaded for it; each was absent when it was asked for."""
    loaded: list[ColdRead] = []

    def load(plan: ColdRead) -> None:
        assert any(window.absent_pages() for window in plan.windows)
        store.load(plan)
        assert not any(window.absent_pages() for window in plan.windows)
        loaded.append(plan)

    return finish(steps, load), loaded


def test_a_query_asks_for_pages_of_index_and_log_and_finds_what_it_would_have(store: Store) -> None:
    views, loaded = counted(store, query(store, "every77"))
    assert numbers(views) == [5077, 4077, 3077, 2077, 1077, 77]
    paths = {Path(window.segment.path).parent.name for plan in loaded for window in plan.windows}
    assert paths == {"commitlog", "index"}
    # Everything is there now.
    again, loaded = counted(store, query(store, "every77"))
    assert (numbers(again), loaded) == (numbers(views), [])
    assert numbers(store.query("T", "every78")) == [5078, 4078, 3078, 2078, 1078, 78]


def test_a_query_nobody_loads_for_goes_no_further(store: Store) -> None:
    steps = query(store, "k17")
    first = next(steps)
    assert first is not None
    second = next(steps)
    assert second is not None
    assert (first.windows[0].key, first.windows[0].absent_pages() > 0) == (second.windows[0].key, True)
    steps.close()


def test_a_record_longer_than_its_first_page_is_asked_for_whole(store: Store) -> None:
    (large,) = store.query("T", "large")
    position = decode_record(large).position
    forget_pages(store)
    views, loaded = counted(store, _as_list(store.record_steps(position)))
    assert decode_record(views[0]).body == b"large" * 60_000
    assert len(loaded) == 2


def _as_list(steps: Steps[memoryview | None]) -> Steps[list[memoryview]]:
    view = yield from steps
    return [] if view is None else [view]


@pytest.mark.parametrize("position", [-1, 1 << 40, 7])
def test_positions_without_a_record_are_none(store: Store, position: int) -> None:
    assert finish(store.record_steps(position), store.load) is None
    assert store.read_record(position) is None


def test_hot_records_are_not_looked_at_twice(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    appended = store.append(
        store.queue("T", 0),
        encode_batch([(b"x", b"KEYS\x01k\x02", 0)]),
        born_timestamp_ms=1,
        born_host=BORN_HOST,
    )
    view, loaded = counted(store, _as_list(store.record_steps(appended.start_position)))
    assert (decode_record(view[0]).body, loaded) == (b"x", [])
    views, loaded = counted(store, query(store, "k"))
    assert (len(views), loaded) == (1, [])
    store.close()


@pytest.mark.slow
def test_long_chains_let_others_go_first(tmp_path: Path) -> None:
    store = open_small(tmp_path, **SETTINGS | {"index_slots": 1})
    queue = store.queue("T", 0)
    elements = [(b"x", b"KEYS\x01%d\x02" % number, 0) for number in range(100)]
    for _ in range(100):
        store.append(queue, encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST)
    steps = query(store, "nothing of that name")
    assert [next(steps), next(steps)] == [None, None]
    assert finish(steps, store.load) == []
    store.close()


def test_raw_reads_are_planned(store: Store) -> None:
    plan = store.plan_raw(0, 100_000)
    assert plan is not None
    store.load(plan)
    assert store.plan_raw(0, 100_000) is None
    assert store.plan_raw(store.appended_position, 100_000) is None
    assert len(store.read_raw(0, 100_000)) <= 100_000


def test_a_search_by_time_touches_no_page_it_did_not_ask_for(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_small(tmp_path, clock=clock, **{**SETTINGS, "queue_file_entries": 10_000})
    queue = store.queue("T", 0)
    times: list[int] = []
    for start in range(0, 30_000, 1000):
        clock.advance(1)
        times.append(clock.now_ms())
        elements = [(b"%05d" % number, b"", 0) for number in range(start, start + 1000)]
        store.append(queue, encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST)
    wait_flushed(store)
    store.write_checkpoint()
    for segment in store._log.segment_list():
        if segment.allocated_bytes:
            Window(segment, 0, segment.allocated_bytes).drop()
    store._queues.forget_pages()
    for path in tmp_path.glob("consumequeue/T/0/*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    offset, loaded = counted(store, store.offset_at_time_steps(queue, times[3]))
    assert offset == 3000
    paths = {Path(window.segment.path).parent.name for plan in loaded for window in plan.windows}
    # The queue's files are in a directory named by its id.
    assert paths == {"commitlog", "0"}
    # Single pages, about one of each kind for every halving.
    assert all(window.size_bytes == 4096 for plan in loaded for window in plan.windows)
    assert 10 < len(loaded) < 40
    assert counted(store, store.offset_at_time_steps(queue, times[3])) == (3000, [])
    assert [store.offset_at_time(queue, time_ms) for time_ms in times] == list(range(0, 30_000, 1000))
    store.close()


@pytest.fixture
def small_files(tmp_path: Path) -> Iterator[Store]:
    """A log over three files on the disk, with a record that is longer than a piece."""
    store = open_small(tmp_path, **SETTINGS | {"segment_bytes": 2 << 20, "record_bytes_max": 1 << 20})
    queue = store.queue("T", 0)
    for start in range(0, RECORDS, 100):
        elements = [(b"%05d" % number + bytes(600), b"", 0) for number in range(start, start + 100)]
        if start == 3000:
            elements[50] = (elements[50][0] + bytes(400_000), b"", 0)
        store.append(queue, encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST)
    wait_flushed(store)
    for segment in store._log.segment_list():
        if segment.allocated_bytes:
            Window(segment, 0, segment.allocated_bytes).drop()
    yield store
    store.close()


def whole_log(store: Store, bytes_max: int) -> tuple[list[int], list[int], int]:
    """All records as `records_steps` gives them, by number and position, and the loads."""
    found_numbers: list[int] = []
    positions: list[int] = []
    position, loads = store.min_position, 0
    while position < store.confirmed_position:
        found, loaded = counted(store, store.records_steps(position, bytes_max))
        assert found is not None
        loads += len(loaded)
        records = list(iter_records(found[1]))
        found_numbers += [int(record.body[:5]) for record in records]
        positions += [record.position for record in records]
        position = found[0]
    return found_numbers, positions, loads


def test_the_log_is_read_whole_from_the_disk_piece_by_piece(small_files: Store) -> None:
    store = small_files
    assert len(store._log.segment_list()) >= 3
    every, positions, loads = whole_log(store, 100_000)
    assert every == list(range(RECORDS))
    assert loads > 3
    assert whole_log(store, 1) == (every, positions, 0), "one record at the least"
    end_position = store.confirmed_position
    assert finish(store.records_steps(end_position, 100_000), store.load) == (end_position, b"")
    for nowhere in (-1, positions[5] + 1, end_position + 1):
        assert finish(store.records_steps(nowhere, 100_000), store.load) is None


class TrimmedLog:
    """A log of which everything is taken away."""

    def __init__(self, log: CommitLog) -> None:
        self.min_position = log.appended_position


@pytest.mark.parametrize("number", [0, 3050])
def test_records_that_retention_takes_while_the_disk_is_waited_for_are_none(
    small_files: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = small_files
    position = 0
    if number:
        # A long one, which is asked for once more when its length is known.
        position = whole_log(store, 1 << 20)[1][number]
        (segment,) = store._log.segments_between(position, position + 1)
        Window(segment, 0, segment.allocated_bytes).drop()
    steps = store.records_steps(position, 1)
    for _ in range(2 if number else 1):
        plan = next(steps)
        assert plan is not None
        store.load(plan)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_log", TrimmedLog(store._log))
        with pytest.raises(StopIteration) as ended:
            next(steps)
    assert ended.value.value is None
