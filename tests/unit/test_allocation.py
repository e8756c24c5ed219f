"""The thread that allocates ahead: asked, failing, stopped."""

from __future__ import annotations

import errno
import threading

import pytest

from iotmq.store.allocation import AheadAllocator

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
