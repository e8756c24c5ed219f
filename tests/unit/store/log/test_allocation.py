"""The thread that allocates ahead: asked, failing, stopped. And how much of a disk is the log's."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from manual_clock import ManualClock
from store_model import open_small, put

from iotmq.errors import StoreFullError
from iotmq.store.log.allocation import AheadAllocator

WAIT_S = 20.0


def test_request_runs_the_work_in_another_thread() -> None:
    done = threading.Event()
    threads: list[threading.Thread] = []

    def work() -> None:
        threads.append(threading.current_thread())
        done.set()

    allocator = AheadAllocator(work)
    allocator.start()
    allocator.request()
    assert done.wait(WAIT_S)
    allocator.stop()
    assert threads[0] is not threading.current_thread()


def test_failure_is_logged_once_and_stop_does_not_wait_for_the_retry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = threading.Event()

    def work() -> None:
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    allocator = AheadAllocator(work)
    allocator.start()
    for _ in range(100):
        allocator.request()
    assert failed.wait(WAIT_S)
    allocator.stop()
    assert allocator.is_failing
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_stop_without_start() -> None:
    AheadAllocator(lambda: None).stop()


@pytest.mark.parametrize("total_bytes", [100 << 20, 1 << 40])
def test_the_log_leaves_the_last_bit_of_its_disk_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total_bytes: int
) -> None:
    """Two in a hundred, 64 MiB at most: what has to be written before log files can be deleted needs room."""
    clock = ManualClock()
    store = open_small(
        tmp_path, clock=clock, segment_bytes=1 << 20, allocation_step_bytes=4096, record_bytes_max=1 << 19
    )
    put(store, "T", 0, b"first")
    left_bytes = min(total_bytes * 2 // 100, 64 << 20)
    free_bytes = left_bytes + 90_000

    def statvfs(_path: str) -> object:
        return SimpleNamespace(f_frsize=1, f_blocks=total_bytes, f_bavail=free_bytes)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(StoreFullError, match="No space left"):
        put(store, "T", 0, bytes(100_000))
    clock.advance(1)
    free_bytes = left_bytes + 110_000
    put(store, "T", 0, bytes(100_000))
    assert store.failure is None
    assert store.check() == []
    store.close()
