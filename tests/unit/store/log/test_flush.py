"""Flushing: when, how many at once, and what a disk that fails means."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from pathlib import Path

import pytest
from eventually import eventually
from manual_clock import ManualClock
from store_model import WAIT_S, bodies_of, open_small, put, wait_flushed

from iotmq.errors import StoreReadOnlyError
from iotmq.store.log import segment as segment_module
from iotmq.store.log.segment import Segment
from iotmq.store.recovery import recovery
from iotmq.store.store import Store


class Disk:
    """A stand-in for fdatasync: counts, and waits or fails when told to."""

    def __init__(self) -> None:
        self.syncs = 0
        self.error: OSError | None = None
        self.started = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        self.started.set()
        assert self.may_go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        os.fdatasync(descriptor)


def signal(store: Store) -> threading.Event:
    """Set after every flush or failure."""
    event = threading.Event()
    store.on_flushed = event.set
    return event


def test_async_append_is_confirmed_at_once(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    appended = put(store, "T", 0, b"x")
    assert store.confirmed_position == appended.end_position == store.appended_position
    assert store.flushed_position == 0
    assert store.check() == []
    store.close()
    assert store.flushed_position == appended.end_position


def test_async_flushes_by_interval_once_enough_waits(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush_interval_ms=5, flush_pages_min=4, segment_bytes=1 << 20)
    flushed = signal(store)
    put(store, "T", 0, *(b"x" * 1900 for _ in range(10)))
    assert flushed.wait(WAIT_S)
    assert store.flushed_position == store.appended_position
    store.close()


def test_async_leaves_a_little_to_the_thorough_interval(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush_interval_ms=1, flush_pages_min=4, flush_thorough_interval_ms=300)
    flushed = signal(store)
    put(store, "T", 0, b"x")
    assert flushed.wait(WAIT_S)
    assert store._flusher.flushes == 1
    store.close()


def test_request_flushes_now(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"x")
    wait_flushed(store)
    assert store.flushed_position == store.appended_position
    store.close()


def test_sync_append_is_confirmed_by_advance_after_the_flush(tmp_path: Path) -> None:
    disk = Disk()
    store = open_small(tmp_path, flush="sync", sync_file=disk.sync)
    flushed = signal(store)
    disk.may_go_on.clear()
    appended = put(store, "T", 0, b"x")
    queue = store.queue("T", 0)
    queue.watched = True
    assert store.advance() == 0
    assert (queue.max_offset, queue.next_offset) == (0, 1)
    assert store.check() == []
    disk.may_go_on.set()
    assert flushed.wait(WAIT_S)
    # Nothing happens on the owner's side until it asks.
    assert store.confirmed_position == 0
    assert store.take_dispatched() == []
    assert store.advance() == appended.end_position
    assert store.take_dispatched() == [queue]
    assert bodies_of(store, "T", 0) == [b"x"]
    assert store.check() == []
    store.close()


def test_one_sync_covers_all_that_wait(tmp_path: Path) -> None:
    disk = Disk()
    store = open_small(tmp_path, flush="sync", sync_file=disk.sync, segment_bytes=1 << 20)
    flushed = signal(store)
    disk.started.clear()
    disk.may_go_on.clear()
    first = put(store, "T", 0, b"x")
    assert disk.started.wait(WAIT_S)
    before = disk.syncs
    # The sync under way began before these and does not count for them.
    for _ in range(200):
        last = put(store, "T", 0, b"y")
    disk.may_go_on.set()
    assert flushed.wait(WAIT_S)
    while store.flushed_position < last.end_position:
        assert store.flushed_position in (first.end_position, last.end_position)
        flushed.clear()
        if store.flushed_position < last.end_position:
            assert flushed.wait(WAIT_S)
    assert disk.syncs - before == 1
    store.close()


def test_flush_covers_every_segment_written(tmp_path: Path) -> None:
    disk = Disk()
    store = open_small(tmp_path, sync_file=disk.sync)
    put(store, "T", 0, *(b"x" * 1900 for _ in range(9)))
    before = disk.syncs
    wait_flushed(store)
    assert disk.syncs - before == 5
    put(store, "T", 0, b"x")
    wait_flushed(store)
    assert disk.syncs - before == 6
    store.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_failed_sync_ends_appending_for_good(
    tmp_path: Path, flush: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    store = open_small(tmp_path, flush=flush, sync_file=disk.sync)
    safe = put(store, "T", 0, b"safe").end_position
    wait_flushed(store)
    flushed = signal(store)
    disk.error = OSError(errno.EIO, "Input/output error")
    put(store, "T", 0, b"lost?")
    store.request_flush()
    assert flushed.wait(WAIT_S)
    # The disk works again; the kernel would report success, and nobody knows about the pages before.
    disk.error = None
    store.request_flush()
    assert store.advance() == (safe if flush == "sync" else store.appended_position)
    assert store.flushed_position == safe
    for _ in range(2):
        with pytest.raises(StoreReadOnlyError, match="takes no more records: a flush failed"):
            put(store, "T", 0, b"refused")
    assert store.failure is not None
    assert "Input/output error" in store.failure
    assert {m.name: m.value for m in store.metrics()}["iotmq_store_read_only"] == 1
    assert any(record.levelname == "CRITICAL" for record in caplog.records)
    assert bodies_of(store, "T", 0)[0] == b"safe"
    assert store.check() == []
    store.close()
    # Not a clean stop: the next start looks at everything.
    store = open_small(tmp_path, flush=flush)
    assert not store.recovery.was_clean
    assert bodies_of(store, "T", 0) == [b"safe", b"lost?"]
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_a_disk_that_gives_no_blocks_for_good_ends_appending(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be met before any flush; waiting does not mend such a disk, and the store says so at once."""
    clock = ManualClock()
    store = open_small(tmp_path, clock=clock)
    safe = put(store, "T", 0, b"safe").end_position
    append = store._append

    def refuse(*_arguments: object, **_more: object) -> object:
        raise OSError(number, os.strerror(number), str(tmp_path))

    monkeypatch.setattr(store, "_append", refuse)
    with pytest.raises(StoreReadOnlyError, match="cannot take disk blocks"):
        put(store, "T", 0, b"refused")
    monkeypatch.setattr(store, "_append", append)
    # Neither time nor a look at how full the disk is takes it back.
    clock.advance(3600)
    store.retain()
    with store.taking_moved(), pytest.raises(StoreReadOnlyError, match="takes no more records"):
        put(store, "T", 0, b"refused")
    assert store.begin_appends() == -1
    assert store.failure is not None
    assert os.strerror(number) in store.failure
    assert {m.name: m.value for m in store.metrics()}["iotmq_store_read_only"] == 1
    assert sum(record.levelname == "CRITICAL" for record in caplog.records) == 1
    # What was taken before is still brought to the disk.
    wait_flushed(store)
    assert store.flushed_position == safe
    assert bodies_of(store, "T", 0) == [b"safe"]
    assert store.check() == []
    store.close()


def test_sync_store_takes_no_time_to_close(tmp_path: Path) -> None:
    """Whatever was appended and not confirmed is on the disk afterwards."""
    store = open_small(tmp_path, flush="sync")
    put(store, "T", 0, b"x")
    store.close()
    assert store.confirmed_position == store.flushed_position == store.appended_position
    store = open_small(tmp_path, flush="sync")
    assert store.recovery.was_clean
    assert bodies_of(store, "T", 0) == [b"x"]
    store.close()


def test_owner_that_cannot_be_told_does_not_stop_the_flushing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_small(tmp_path, flush="sync")
    told = threading.Event()

    def gone() -> None:
        told.set()
        raise RuntimeError("Event loop is closed")

    store.on_flushed = gone
    put(store, "T", 0, b"x")
    assert told.wait(WAIT_S)
    put(store, "T", 0, b"y")
    wait_flushed(store)
    assert bodies_of(store, "T", 0) == [b"x", b"y"]
    eventually(lambda: "could not be told" in caplog.text, "the flushing thread says so")
    assert store.check() == []
    store.close()


def test_start_after_a_failed_flush_writes_again_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the pages of a failed sync for written: a later one would bring nothing to disk."""
    disk = Disk()
    store = open_small(tmp_path, flush="sync", sync_file=disk.sync)
    flushed_position = put(store, "T", 0, b"safe").end_position
    wait_flushed(store)
    store.write_checkpoint()
    flushed = signal(store)
    disk.error = OSError(errno.EIO, "Input/output error")
    put(store, "T", 0, *(b"x" * 1500 for _ in range(4)))
    assert flushed.wait(WAIT_S)
    end_position = store.appended_position
    store.close()
    written: list[tuple[int, int]] = []

    def write_again(segment: Segment, start_bytes: int, end_bytes: int) -> None:
        written.append((segment.start_position + start_bytes, segment.start_position + end_bytes))
        segment_module.write_again(segment, start_bytes, end_bytes)

    monkeypatch.setattr(recovery, "write_again", write_again)
    store = open_small(tmp_path, flush="sync")
    assert written[0][0] == flushed_position
    assert written[-1][1] == end_position == store.flushed_position
    assert all(before[1] == after[0] for before, after in itertools.pairwise(written))
    assert len(bodies_of(store, "T", 0)) == 5
    store.close()
    written.clear()
    store = open_small(tmp_path, flush="sync")
    assert written == []
    store.close()
