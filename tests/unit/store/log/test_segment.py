"""Mapped files: blocks before bytes, views that outlive their owner."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest
from file_size_limit import files_end_at

from iotmq.errors import StoreCorruptError
from iotmq.store.log.segment import Segment, open_segments, segment_name


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / segment_name(0))


def test_names_have_twenty_digits() -> None:
    assert segment_name(1 << 30) == "00000000001073741824"


def test_new_segment_has_its_size_and_no_blocks(path: str) -> None:
    segment = Segment(path, 0, 1 << 30)
    assert os.stat(path).st_size == segment.size_bytes == 1 << 30
    assert os.stat(path).st_blocks == segment.allocated_bytes == 0


def test_allocation_grows_and_never_shrinks(path: str) -> None:
    segment = Segment(path, 0, 1 << 20)
    segment.allocate(8192)
    segment.allocate(4096)
    assert segment.allocated_bytes == 8192
    assert os.stat(path).st_blocks * 512 >= 8192


def test_allocation_past_the_end_is_refused(path: str) -> None:
    segment = Segment(path, 0, 8192)
    segment.allocate(8192)
    with pytest.raises(ValueError, match="8193 bytes of a segment of 8192"):
        segment.allocate(8193)


def test_full_disk_is_an_error_and_changes_nothing(path: str) -> None:
    with files_end_at(16384), pytest.raises(OSError, match="File too large") as raised:
        Segment(path, 0, 1 << 20)
    assert raised.value.errno == errno.EFBIG


def test_views_end_where_the_blocks_end(path: str) -> None:
    segment = Segment(path, 100, 1 << 20)
    segment.allocate(4096)
    assert bytes(segment.view(100, 100 + 4096)) == bytes(4096)
    for start, end in ((99, 200), (100, 4197), (300, 200), (5000, 5000)):
        with pytest.raises(ValueError, match="no bytes"):
            segment.view(start, end)


def test_view_is_read_only_and_outlives_the_segment_and_the_file(path: str) -> None:
    Path(path).write_bytes(b"hello" + bytes(4091))
    view = Segment(path, 0, 4096).view(0, 5)
    os.unlink(path)
    gc.collect()
    assert bytes(view) == b"hello"
    assert view.readonly


def test_data_found_in_a_file_counts_as_allocated(path: str) -> None:
    Path(path).write_bytes(b"x" * 5000)
    segment = Segment(path, 0, 1 << 20)
    assert 5000 <= segment.allocated_bytes <= 8192
    assert bytes(segment.view(4999, 5001)) == b"x\0"


def test_holes_before_data_are_filled(path: str) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 18)
        file.write(b"x")
    segment = Segment(path, 0, 1 << 20)
    assert segment.allocated_bytes > 1 << 18
    assert os.stat(path).st_blocks * 512 > 1 << 18


def test_truncate_zeroes_and_gives_blocks_back(path: str) -> None:
    Path(path).write_bytes(b"x" * 65536)
    segment = Segment(path, 1000, 65536)
    segment.truncate(1000 + 10)
    assert segment.allocated_bytes == 10
    assert os.stat(path).st_size == 65536
    assert os.stat(path).st_blocks * 512 < 65536
    segment.allocate(65536)
    assert bytes(segment.view(1000, 1000 + 65536)) == b"x" * 10 + bytes(65526)


@pytest.mark.parametrize("keep", [True, False])
def test_sync_gets_a_descriptor_of_the_file(path: str, keep: bool) -> None:
    segment = Segment(path, 0, 4096, keep_descriptor=keep)
    synced: list[tuple[int, int]] = []
    segment.sync(lambda descriptor: synced.append((os.fstat(descriptor).st_ino, descriptor)))
    assert synced[0][0] == os.stat(path).st_ino
    segment.release_descriptor()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(synced[0][1])
    segment.allocate(4096)


@pytest.mark.parametrize(("start", "size"), [(-1, 4096), (0, 0), (0, -1)])
def test_impossible_sizes_are_refused(path: str, start: int, size: int) -> None:
    with pytest.raises(ValueError, match="segment of"):
        Segment(path, start, size)


def test_directory_is_read_in_order_and_foreign_files_ignored(tmp_path: Path) -> None:
    for name, size in ((segment_name(8192), 4096), (segment_name(0), 8192), ("notes.txt", 3)):
        (tmp_path / name).write_bytes(b"x" * size)
    segments = open_segments(str(tmp_path), 8192)
    assert [(s.start_position, s.size_bytes) for s in segments] == [(0, 8192), (8192, 8192)]


def test_short_file_is_grown_up_to_the_next(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(b"x")
    (tmp_path / segment_name(4096)).write_bytes(b"")
    segments = open_segments(str(tmp_path), 8192)
    assert [(s.start_position, s.size_bytes) for s in segments] == [(0, 4096), (4096, 8192)]


def test_larger_file_keeps_its_size(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(b"x" * 16384)
    assert open_segments(str(tmp_path), 8192)[0].size_bytes == 16384


def test_overlapping_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(b"x" * 5000)
    (tmp_path / segment_name(4096)).write_bytes(b"x")
    with pytest.raises(StoreCorruptError, match=f"{segment_name(0)} reaches into the next file"):
        open_segments(str(tmp_path), 4096)
