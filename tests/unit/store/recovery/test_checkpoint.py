"""The checkpoint file, and what has to be on the disk before it is written."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from manual_clock import ManualClock
from store_model import open_small, put, wait_flushed

from iotmq.store.recovery.checkpoint import CHECKPOINT_BYTES, Checkpoint, read_checkpoint, write_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_written_is_read(path: Path) -> None:
    for position in (0, 1 << 40):
        checkpoint = Checkpoint(1, 1 << 41, 3, position)
        write_checkpoint(path, checkpoint)
        assert read_checkpoint(path) == checkpoint


def test_first_fields_are_the_formats_own(path: Path) -> None:
    write_checkpoint(path, Checkpoint(1, 2, 3, 4))
    data = path.read_bytes()
    assert len(data) == CHECKPOINT_BYTES
    assert struct.unpack(">qqq", data[:24]) == (1, 2, 3)


def test_times_of_another_broker_count_without_the_position(path: Path) -> None:
    path.write_bytes(struct.pack(">qqq", 1, 2, 3) + bytes(4072))
    assert read_checkpoint(path) == Checkpoint(1, 2, 3, None)
    write_checkpoint(path, Checkpoint(1, 2, 3, 4))
    with path.open("r+b") as file:
        file.write(struct.pack(">qqq", 5, 6, 7))
    assert read_checkpoint(path) == Checkpoint(5, 6, 7, None)


def test_missing_or_short_is_none(path: Path) -> None:
    assert read_checkpoint(path) is None
    path.write_bytes(b"short")
    assert read_checkpoint(path) is None


def test_checkpoint_says_only_what_is_on_the_disk(tmp_path: Path) -> None:
    """Under async flush the queues may be ahead of the flushed log."""
    clock = ManualClock(5000)
    store = open_small(tmp_path, clock=clock)
    flushed = put(store, "T", 0, b"x").end_position
    wait_flushed(store)
    clock.advance(1)
    put(store, "T", 0, b"y")
    store.write_checkpoint()
    assert read_checkpoint(tmp_path / "checkpoint") == Checkpoint(5000, 5000, 5000, flushed)
    assert store._queues.read_state() == (store.appended_position, 1, 2)
    store.close()
    assert read_checkpoint(tmp_path / "checkpoint") == Checkpoint(6000, 6000, 6000, store.appended_position)


def test_thread_writes_by_interval(tmp_path: Path) -> None:
    store = open_small(tmp_path, checkpoint_interval_ms=5, flush_interval_ms=1, flush_pages_min=0)
    put(store, "T", 0, b"x")
    for _ in range(2000):
        checkpoint = read_checkpoint(tmp_path / "checkpoint")
        if checkpoint is not None and checkpoint.position == store.appended_position:
            break
        store._checkpointer._stopping.wait(0.005)
    else:
        pytest.fail("no checkpoint came")
    store.close()


def test_after_a_failure_no_more_checkpoints_are_written(tmp_path: Path) -> None:
    failing = False

    def sync_file(descriptor: int) -> None:
        if failing and "consumequeue" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(descriptor)

    store = open_small(tmp_path, sync_file=sync_file)
    put(store, "T", 0, b"x")
    wait_flushed(store)
    store.write_checkpoint()
    before = read_checkpoint(tmp_path / "checkpoint")
    put(store, "T", 0, b"y")
    failing = True
    with pytest.raises(OSError, match="Input/output"):
        store.write_checkpoint()
    failing = False
    # Appends go on: only the next start pays.
    put(store, "T", 0, b"z")
    wait_flushed(store)
    store.close()
    assert read_checkpoint(tmp_path / "checkpoint") == before
    store = open_small(tmp_path)
    assert not store.recovery.was_clean
    assert store.queue("T", 0).max_offset == 3
    assert store.check() == []
    store.close()
