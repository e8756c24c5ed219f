"""Reads of what is not in memory: found out beforehand, fetched elsewhere, and given back."""

from __future__ import annotations

import gc
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_model import HOST, batch

from iotmq.message.records.record import iter_records
from iotmq.store.log.segment import Segment
from iotmq.store.queues.cold_pages import AHEAD_WINDOWS, ColdPages
from iotmq.store.queues.residency import WINDOW_BYTES, Window, plan_bytes
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

BODY = b"x" * 1000
HOT_BYTES = 1 << 20
# The log has its pages made in pieces of this size, and the kernel lets go of whole ones alone.
PIECE_BYTES = 32768


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two queues in turn, 32 MiB of log in files of 8 MiB, all of it but the tail out of memory."""
    settings = StoreSettings(
        segment_bytes=8 << 20, hot_bytes=HOT_BYTES, cold_bytes_max=2 << 20, flush_interval_ms=3_600_000
    )
    store = Store.open(tmp_path, settings, store_host=HOST)
    many = batch(*([BODY] * 16))
    while store.appended_position < 32 << 20:
        for queue_id in range(2):
            store.append(store.queue("T", queue_id), many, born_timestamp_ms=1, born_host=HOST)
    log_out(store)
    yield store
    assert store.check() == []
    store.close()


def log_out(store: Store) -> None:
    """Have the log, but its hot end, on the disk and out of memory."""
    for segment in store._log.segment_list():
        segment.sync(os.fdatasync)
        end = min(segment.allocated_bytes, store.confirmed_position - HOT_BYTES - segment.start_position)
        end -= end % PIECE_BYTES
        if end > 0:
            window = Window(segment, 0, end)
            window.drop()
            assert window.absent_pages() == end // mmap.PAGESIZE


def plan(store: Store, offset: int, *, records_max: int = 32, **more: int) -> object:
    return store.plan_read(store.queue("T", 0), offset, records_max=records_max, bytes_max=1 << 20, **more)


def major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def test_what_was_appended_last_is_read_at_once(store: Store) -> None:
    queue = store.queue("T", 0)
    assert plan(store, queue.max_offset - 32) is None
    assert plan(store, queue.max_offset) is None
    assert plan(store, -1) is None
    assert store.plan_read(None, 0, records_max=1, bytes_max=1) is None


def test_a_read_after_its_load_touches_no_page_on_the_disk(store: Store) -> None:
    queue = store.queue("T", 0)
    offset = 0
    while offset < 2000:
        cold = store.plan_read(queue, offset, records_max=64, bytes_max=1 << 20)
        if cold is not None:
            store.load(cold)
            assert plan(store, offset, records_max=64) is None
        before = major_faults()
        read = store.read(queue, offset, records_max=64, bytes_max=1 << 20)
        bodies = [record.body for view in read.views for record in iter_records(view)]
        assert major_faults() == before
        assert bodies == [BODY] * 64
        offset = read.next_offset


def test_a_scan_gives_back_what_it_brought_in_and_nothing_else(store: Store) -> None:
    queue = store.queue("T", 0)
    cold_bytes_max = store.settings.cold_bytes_max
    first = store._log.segment_list()[0]
    # Somebody else's: in memory before the scan comes by, without what the kernel would read around it.
    first.page_singly(0)
    Window(first, 4 << 20, 5 << 20).page_in()
    pages = store._cold_pages
    offset = 0
    while offset < queue.max_offset:
        cold = store.plan_read(queue, offset, records_max=512, bytes_max=1 << 20)
        if cold is not None:
            before = pages.loaded_bytes
            store.load(cold)
            # How many loads it takes is up to the disk: what was asked for ahead is there in time or not.
            assert pages.loaded_bytes - before <= (len(cold.windows) + AHEAD_WINDOWS) * WINDOW_BYTES
        offset = store.read(queue, offset, records_max=512, bytes_max=1 << 20).next_offset
    # All of the log but its hot end and what was there, so nothing came by the kernel's read-ahead, which
    # nobody would give back: one page that was taken away and is touched could have 8 MiB of it read.
    assert pages.loaded_bytes >= (30 << 20) - HOT_BYTES - (2 << 20)
    # One load, with what it asks for ahead, may stand above the bound.
    assert pages.held_bytes <= cold_bytes_max + 32 * WINDOW_BYTES
    resident = sum(
        segment.allocated_bytes - Window(segment, 0, segment.allocated_bytes).absent_pages() * mmap.PAGESIZE
        for segment in store._log.segment_list()
        if segment.allocated_bytes
    )
    assert resident <= pages.held_bytes + (1 << 20) + HOT_BYTES + 2 * store.settings.allocation_step_bytes
    assert plan_bytes(first, 4 << 20, 5 << 20) is None
    tail = store._log.segment_list()[-1]
    used = store.confirmed_position - tail.start_position
    assert used < HOT_BYTES or plan_bytes(tail, used - HOT_BYTES, used) is None


def test_a_page_taken_away_after_its_load_comes_back_alone(store: Store) -> None:
    cold = store.plan_read(store.queue("T", 0), 0, records_max=1, bytes_max=1 << 20)
    assert cold is not None
    store.load(cold)
    first = store._log.segment_list()[0]
    whole = Window(first, 0, first.allocated_bytes)
    whole.drop()
    absent = whole.absent_pages()
    assert bytes(first.view(5000, 5001))
    assert whole.absent_pages() == absent - 1


def test_a_sequential_scan_is_read_ahead_of(store: Store) -> None:
    first = store.plan_read(store.queue("T", 0), 0, records_max=1, bytes_max=1 << 20)
    assert first is not None
    store.load(first)
    assert store._cold_pages.held_bytes == WINDOW_BYTES
    second_offset = next(offset for offset in range(2000) if plan(store, offset, records_max=1))
    second = store.plan_read(store.queue("T", 0), second_offset, records_max=1, bytes_max=1 << 20)
    assert second is not None
    store.load(second)
    assert store._cold_pages.held_bytes == 18 * WINDOW_BYTES
    # A read somewhere else is not part of the scan.
    elsewhere = store.plan_read(store.queue("T", 0), 12_000, records_max=1, bytes_max=1 << 20)
    assert elsewhere is not None
    store.load(elsewhere)
    assert len(elsewhere.windows) == 1
    assert store._cold_pages.loaded_bytes == 19 * WINDOW_BYTES


def test_one_load_is_bounded_and_says_how_far_it_goes(store: Store) -> None:
    queue = store.queue("T", 0)
    cold = store.plan_read(queue, 0, records_max=65_536, bytes_max=1 << 30)
    assert cold is not None
    assert len(cold.windows) * WINDOW_BYTES <= 24 << 20
    assert 0 < cold.records_max <= 65_536


def test_queue_entries_that_are_cold_come_first(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(segment_bytes=64 << 20, hot_bytes=0), store_host=HOST)
    queue = store.queue("T", 0)
    for _ in range(40):
        store.append(queue, batch(*([b""] * 1000)), born_timestamp_ms=1, born_host=HOST)
    (entries,) = next(part for part in gc.get_referents(queue) if isinstance(part, list))
    (log,) = store._log.segments_between(0, 1)
    for file in (entries, log):
        file.sync(os.fdatasync)
        Window(file, 0, file.allocated_bytes).drop()
    first = store.plan_read(queue, 0, records_max=32, bytes_max=1 << 20)
    assert first is not None
    assert first.records_max == 0
    assert [window.segment for window in first.windows] == [entries]
    store.load(first)
    second = store.plan_read(queue, 0, records_max=32, bytes_max=1 << 20)
    assert second is not None
    assert second.records_max == 32
    assert [window.segment for window in second.windows] == [log]
    store.load(second)
    assert store.plan_read(queue, 0, records_max=32, bytes_max=1 << 20) is None
    assert store.check() == []
    store.close()


def test_dropping_keeps_what_is_not_on_the_disk(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path / "0"), 0, 1 << 20)
    segment.allocate(1 << 20)
    with open(tmp_path / "0", "r+b") as file, mmap.mmap(file.fileno(), 1 << 20) as pages:
        pages[5000:5005] = b"hello"
        Window(segment, 0, 1 << 20).drop()
        assert bytes(segment.view(5000, 5005)) == b"hello"


def test_windows_are_inside_their_file(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path / "0"), 0, 1 << 20)
    for start, end in ((-4096, 4096), (0, 0), (1, 4096), (0, (1 << 20) + 1)):
        with pytest.raises(ValueError, match="no window"):
            Window(segment, start, end)
    segment.allocate(WINDOW_BYTES + 4096)
    window = Window(segment, 0, WINDOW_BYTES)
    following = window.neighbour(1)
    assert following is not None
    assert (following.start_bytes, following.end_bytes) == (WINDOW_BYTES, WINDOW_BYTES + 4096)
    assert window.neighbour(2) is None
    assert window.neighbour(-1) is None


def test_pages_that_the_disk_does_not_give_are_an_error(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path / "0"), 0, 1 << 20)
    segment.allocate(1 << 20)
    # Behind the end of the file a touch would be a SIGBUS.
    os.truncate(tmp_path / "0", 0)
    with pytest.raises(OSError, match=str(tmp_path)):
        Window(segment, 0, 1 << 20).page_in()


def test_pages_bound_is_kept_by_several_threads(store: Store) -> None:
    from concurrent.futures import ThreadPoolExecutor

    queue = store.queue("T", 0)
    plans = [
        cold
        for offset in range(0, queue.max_offset - 2000, 400)
        if (cold := store.plan_read(queue, offset, records_max=16, bytes_max=1 << 20))
    ]
    pages = ColdPages(bytes_max=2 << 20)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda cold: pages.load(cold, cold.hot_position), plans))
    assert pages.loads == len(plans)
    assert pages.held_bytes <= (2 << 20) + 32 * WINDOW_BYTES
    assert pages.held_bytes == pages.loaded_bytes - pages.dropped_bytes
