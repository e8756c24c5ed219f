"""A store in which time, the disk's fullness and the deleting of old files are the test's to decide."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from manual_clock import ManualClock
from store_model import open_small, put, wait_allocated, wait_flushed

from iotmq.store.retention.decide import DiskUsage
from iotmq.store.store import Store

WAIT_S = 20.0
QUIET = {"retention_delay_ms": 0, "retention_hours": 1, "delete_pause_ms": 0, "delete_files_max": 1000}


class FakeDisk:
    """A disk as full as a test wants it; its files are real."""

    def __init__(self, percent: float = 10.0) -> None:
        self.percent = percent
        self.total_bytes = 1_000_000
        self.error: OSError | None = None

    def __call__(self, path: Path) -> DiskUsage:
        if self.error is not None:
            raise self.error
        return DiskUsage(str(path), round(self.total_bytes * self.percent / 100), self.total_bytes)


class Keeper:
    """A store whose time and disk the test decides."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.disk = FakeDisk()
        self.settings = {**QUIET, **settings}
        self.store = self.open_store()

    def open_store(self) -> Store:
        return open_small(self.directory, clock=self.clock, read_usage=self.disk, **self.settings)

    def restart(self) -> None:
        self.store.close()
        self.store = self.open_store()

    def fill(self, count: int, *, topic: str = "T", queue_id: int = 0, size: int = 1000, **more: Any) -> None:
        """Records of `size` bytes and a bit: three fill a segment of 4 KiB."""
        for _ in range(count):
            number = self.store.queue(topic, queue_id).next_offset
            put(self.store, topic, queue_id, b"%08d" % number + b"x" * (size - 8), **more)
        wait_allocated(self.store)

    def delete_expired(self) -> None:
        """All that is past its age, down to the files."""
        wait_flushed(self.store)
        wait_allocated(self.store)
        self.store.delete_expired()
        self.settle()

    def settle(self) -> None:
        """Let the deleting thread finish, and what follows from it."""
        remover = self.store._trimmer.remover
        for _ in range(3):
            assert remover.wait_idle(WAIT_S)
            self.store.retain()

    def log_files(self) -> list[str]:
        return sorted(os.listdir(self.directory / "commitlog"))

    def queue_files(self, topic: str, queue_id: int = 0) -> list[str]:
        return sorted(os.listdir(self.directory / "consumequeue" / topic / str(queue_id)))

    def metric(self, name: str) -> float:
        (value,) = (m.value for m in self.store.metrics() if m.name == f"iotmq_store_{name}")
        return value
