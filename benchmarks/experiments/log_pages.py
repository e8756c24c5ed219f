"""Experiment: ways in which the pages of a growing log can come into being, and go.

    .venv/bin/python -m benchmarks.experiments.log_pages [--megabytes 512] [--piece 27500] [--rounds 5]

Each way writes pieces (a batch of 100 records) behind each other into a file with blocks allocated in the
store's steps, reads a byte of every page through the mapping, as queues and projections do, and syncs after
every 64 MiB, as a flush after some 200 ms does. Printed: processor time of a page of 4 KiB, of the writer
and of the syncs, each the median of the rounds, which alternate; after that the time of the kernel's own
threads in the same seconds, of the whole machine, so only on a quiet one that says something.

`mapping` ways store into the mapping: of pages that faults bring, that zeros have made (`write_zeros` of a
segment), or that MADV_POPULATE_WRITE has. `pwrite` ways copy to the file: a piece at a time; in parts that
end at multiples of 64 KiB (what the log does with large batches); into a file that was full once, as one
that is used again would be, in whole pages, because others would be read first. `given back`: synced pages
leave the page cache.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine

PAGE: Final = 4096
STEP_BYTES: Final = 8 << 20
SYNC_BYTES: Final = 64 << 20
READY_BYTES: Final = 32 << 10
PART_BYTES: Final = 64 << 10
_MADV_POPULATE_WRITE: Final = 23
_ZEROS: Final = memoryview(bytes(1 << 20))
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Log:
    """One file of a log, mapped, with what was written of it."""

    def __init__(self, path: Path, size_bytes: int, *, is_random: bool = True, is_used: bool = False) -> None:
        self.file = path.open("r+b" if is_used else "w+b")
        self.descriptor = self.file.fileno()
        self.file.truncate(size_bytes)
        self.mapping = mmap.mmap(self.descriptor, size_bytes)
        if is_random:
            self.mapping.madvise(mmap.MADV_RANDOM)
        self.at = self.ready = self.synced = self.dropped = 0
        self.allocated = size_bytes if is_used else 0

    def allocate(self, end: int) -> None:
        while self.allocated < end:
            os.posix_fallocate(self.descriptor, self.allocated, STEP_BYTES)
            self.allocated += STEP_BYTES

    def store(self, piece: bytes) -> None:
        self.mapping[self.at : self.at + len(piece)] = piece

    def close(self) -> None:
        self.mapping.close()
        self.file.close()


Way = Callable[[Log, bytes], None]


def faults(log: Log, piece: bytes) -> None:
    log.store(piece)


def zeros(log: Log, piece: bytes, step: int = READY_BYTES) -> None:
    while log.ready < log.at + len(piece):
        log.ready += os.pwrite(log.descriptor, _ZEROS[:step], log.ready)
    log.store(piece)


def populated(log: Log, piece: bytes) -> None:
    while log.ready < log.at + len(piece):
        log.mapping.madvise(_MADV_POPULATE_WRITE, log.ready, PART_BYTES)
        log.ready += PART_BYTES
    log.store(piece)


def written(log: Log, piece: bytes) -> None:
    os.pwrite(log.descriptor, piece, log.at)


def in_parts(log: Log, piece: bytes) -> None:
    start = 0
    view = memoryview(piece)
    while start < len(piece):
        end = min(len(piece), start + PART_BYTES - (log.at + start) % PART_BYTES)
        os.pwrite(log.descriptor, view[start:end], log.at + start)
        start = end


def whole_pages(log: Log, piece: bytes) -> None:
    padding = -(log.at + len(piece)) % PAGE
    os.pwritev(log.descriptor, [piece, _ZEROS[:padding]], log.at)


# Name: (how it writes, the mapping is MADV_RANDOM, into a used file, synced pages are given back).
WAYS: Final[dict[str, tuple[Way, bool, bool, bool]]] = {
    "mapping, page faults one by one": (faults, True, False, False),
    "mapping, page faults with read-ahead": (faults, False, False, False),
    "mapping, MADV_POPULATE_WRITE": (populated, True, False, False),
    "mapping, zeros first": (zeros, True, False, False),
    "mapping, zeros first, 128 KiB at a time": (partial(zeros, step=128 << 10), True, False, False),
    "mapping, zeros first, 512 KiB at a time": (partial(zeros, step=512 << 10), True, False, False),
    "mapping, zeros first, given back": (zeros, True, False, True),
    "pwrite": (written, True, False, False),
    "pwrite in parts of 64 KiB": (in_parts, True, False, False),
    "pwrite in parts, given back": (in_parts, True, False, True),
    "pwrite, a new file": (whole_pages, True, False, False),
    "pwrite, a used file": (whole_pages, True, True, False),
}


def run(path: Path, size_bytes: int, piece: bytes, name: str) -> tuple[float, float]:
    """Microseconds of a page: writing, syncing."""
    way, is_random, is_used, is_given_back = WAYS[name]
    if is_used:
        with path.open("wb") as file:
            for _ in range(size_bytes >> 20):
                file.write(os.urandom(4096) * 256)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, size_bytes, os.POSIX_FADV_DONTNEED)
    log = Log(path, size_bytes, is_random=is_random, is_used=is_used)
    sync_s = 0.0
    began_s = time.thread_time()
    while log.at + 2 * len(piece) + STEP_BYTES <= size_bytes:
        log.allocate(log.at + len(piece) + PART_BYTES)
        way(log, piece)
        for page in range(log.at, log.at + len(piece), PAGE):
            log.mapping[page]
        log.at += len(piece)
        if log.at - log.synced >= SYNC_BYTES:
            sync_began_s = time.thread_time()
            os.fdatasync(log.descriptor)
            if is_given_back:
                end = log.at - log.at % PART_BYTES
                log.mapping.madvise(mmap.MADV_DONTNEED, log.dropped, end - log.dropped)
                os.posix_fadvise(log.descriptor, log.dropped, end - log.dropped, os.POSIX_FADV_DONTNEED)
                log.dropped = end
            log.synced = log.at
            sync_s += time.thread_time() - sync_began_s
    took_s = time.thread_time() - began_s
    pages = log.at / PAGE
    log.close()
    path.unlink()
    return (took_s - sync_s) / pages * 1e6, sync_s / pages * 1e6


def kernel_threads_s() -> float:
    """Processor time of all kernel threads so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == "2":
            ticks += int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description="Ways to make the pages of a log.")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--piece", type=int, default=27_500, help="bytes (default 27,500)")
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--only", default="", help="ways with this in their names")
    options = parser.parse_args()
    os.sched_setaffinity(0, {machine.cores()[0]})
    size_bytes = options.megabytes << 20
    piece = os.urandom(options.piece)
    results: dict[str, list[tuple[float, float, float]]] = {}
    names = [name for name in WAYS if options.only in name]
    with tempfile.TemporaryDirectory(prefix="iotmq-pages-", dir=options.directory) as directory:
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                machine.warm_page_cache(Path(directory), size_bytes + (64 << 20))
                before_s = kernel_threads_s()
                write_us, sync_us = run(Path(directory) / "log", size_bytes, piece, name)
                kernel_us = (kernel_threads_s() - before_s) / (size_bytes / PAGE) * 1e6
                results.setdefault(name, []).append((write_us, sync_us, kernel_us))
    print(
        f"{options.megabytes} MiB a round, pieces of {options.piece} bytes, {options.rounds} rounds, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    rows = []
    for name in names:
        columns = [median(values) for values in zip(*results[name], strict=True)]
        rows.append([name, *(f"{value:.2f}" for value in columns), f"{columns[0] + columns[1]:.2f}"])
    print(
        machine.table(
            ["us a page of 4 KiB", "writing", "syncing", "kernel's threads", "writing + syncing"], rows
        )
    )


if __name__ == "__main__":
    main()
