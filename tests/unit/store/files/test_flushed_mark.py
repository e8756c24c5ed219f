"""The position up to which the log was on the disk when the process ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotmq.store.files.flushed_position import (
    MARK_AT_BYTES,
    FlushedPosition,
    read_flushed_mark,
    write_flushed_mark,
)
from iotmq.store.recovery.checkpoint import CHECKPOINT_BYTES, Checkpoint, read_checkpoint, write_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "checkpoint", Checkpoint(1, 2, 3, 4))
    return tmp_path / "checkpoint"


def test_it_moves_forward_only_and_survives_the_process(path: Path) -> None:
    mark = FlushedPosition(path)
    assert read_flushed_mark(path) is None
    for position, wanted in ((0, 0), (100, 100), (50, 100), (1 << 40, 1 << 40)):
        mark.move(position)
        assert read_flushed_mark(path) == wanted


def test_a_new_run_may_begin_lower(path: Path) -> None:
    FlushedPosition(path).move(100)
    FlushedPosition(path).move(7)
    assert read_flushed_mark(path) == 7


def test_it_and_the_checkpoint_leave_each_other_alone(path: Path) -> None:
    mark = FlushedPosition(path)
    mark.move(100)
    assert read_checkpoint(path) == Checkpoint(1, 2, 3, 4)
    write_checkpoint(path, Checkpoint(5, 6, 7, 8))
    assert read_flushed_mark(path) == 100
    write_flushed_mark(path, 9)
    assert read_flushed_mark(path) == 9
    assert read_checkpoint(path) == Checkpoint(5, 6, 7, 8)
    assert path.stat().st_size == CHECKPOINT_BYTES


@pytest.mark.parametrize("at", range(20))
def test_a_damaged_one_says_nothing(path: Path, at: int) -> None:
    FlushedPosition(path).move(100)
    data = bytearray(path.read_bytes())
    data[MARK_AT_BYTES + at] ^= 1
    path.write_bytes(data)
    assert read_flushed_mark(path) is None


def test_without_the_file_there_is_none(tmp_path: Path) -> None:
    mark = FlushedPosition(tmp_path / "checkpoint")
    mark.move(100)
    assert list(tmp_path.iterdir()) == []
    assert read_flushed_mark(tmp_path / "checkpoint") is None
    (tmp_path / "checkpoint").write_bytes(b"short")
    assert read_flushed_mark(tmp_path / "checkpoint") is None
