"""Experiment: records into locked anonymous memory and from there to the file by pwrite, against the mapping.

    .venv/bin/python -m benchmarks.experiments.transient_pool [--megabytes 256] [--rounds 5]

The idea (RocketMQ calls it transientStorePool): the appending thread writes only to memory that is always
there, so it meets no page fault and no disk; a second step copies it to the file. What the log does
instead: write into the file's mapping, whose pages a thread has touched ahead where a core is free.

All write pieces, by default of the size of a batch of 100 records. "append" is what the appending thread
pays, "in all" includes the second step (in the same thread: on one core somebody has to do it). A third
variant writes each piece to the file at once. "warm" has pages that were in use a moment ago. "cold" ones
were not: anonymous memory, kept to the end, takes the warm ones away first, so that a hypervisor has to
give new ones, as under a log that grows into memory nobody used lately. Look at the numbers whether that
came about: equal ones say that there was enough warm memory for everybody. The pool is 64 MiB of locked
memory, committed 1 MiB at a time.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine

STEP_BYTES: Final = 8 << 20
POOL_BYTES: Final = 64 << 20
COMMIT_BYTES: Final = 1 << 20
_MADV_POPULATE_WRITE: Final = 23


def mapped(path: Path, size_bytes: int, piece: bytes) -> tuple[float, float]:
    """(seconds of appending, of everything) into a mapping, blocks allocated in steps."""
    with path.open("w+b") as file:
        file.truncate(size_bytes)
        with mmap.mmap(file.fileno(), size_bytes) as mapping:
            at = allocated = 0
            began_s = time.thread_time()
            while at + len(piece) <= size_bytes:
                if at + len(piece) > allocated:
                    os.posix_fallocate(file.fileno(), allocated, STEP_BYTES)
                    allocated += STEP_BYTES
                mapping[at : at + len(piece)] = piece
                at += len(piece)
            took_s = time.thread_time() - began_s
    return took_s, took_s


def pooled(path: Path, size_bytes: int, piece: bytes, pool: mmap.mmap) -> tuple[float, float]:
    """The same through the pool. Readers would have to look into it for what is not committed yet."""
    commit_s = 0.0
    view = memoryview(pool)
    with path.open("w+b") as file:
        descriptor = file.fileno()
        file.truncate(size_bytes)
        at = committed = allocated = 0
        began_s = time.thread_time()
        while at + len(piece) <= size_bytes:
            start = at % POOL_BYTES
            first = min(len(piece), POOL_BYTES - start)
            pool[start : start + first] = piece[:first]
            if first < len(piece):
                pool[: len(piece) - first] = piece[first:]
            at += len(piece)
            if at - committed >= COMMIT_BYTES:
                commit_began_s = time.thread_time()
                while committed < at:
                    if at > allocated:
                        os.posix_fallocate(descriptor, allocated, STEP_BYTES)
                        allocated += STEP_BYTES
                    start = committed % POOL_BYTES
                    end = min(POOL_BYTES, start + at - committed)
                    committed += os.pwrite(descriptor, view[start:end], committed)
                commit_s += time.thread_time() - commit_began_s
        took_s = time.thread_time() - began_s
    return took_s - commit_s, took_s


def written(path: Path, size_bytes: int, piece: bytes) -> tuple[float, float]:
    """Each piece by a pwrite of its own."""
    with path.open("w+b") as file:
        descriptor = file.fileno()
        file.truncate(size_bytes)
        at = allocated = 0
        began_s = time.thread_time()
        while at + len(piece) <= size_bytes:
            if at + len(piece) > allocated:
                os.posix_fallocate(descriptor, allocated, STEP_BYTES)
                allocated += STEP_BYTES
            at += os.pwrite(descriptor, piece, at)
        took_s = time.thread_time() - began_s
    return took_s, took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--piece", type=int, default=25_600, help="bytes (default 25,600)")
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    os.sched_setaffinity(0, {machine.cores()[0]})
    size_bytes = options.megabytes << 20
    piece = os.urandom(options.piece)
    pool = mmap.mmap(-1, POOL_BYTES)
    library = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pool))
    is_locked = library.mlock(ctypes.c_void_p(address), ctypes.c_size_t(POOL_BYTES)) == 0
    results: dict[str, list[float]] = {}
    ballast: list[mmap.mmap] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="iotmq-pool-", dir=options.directory) as directory:
        for number in range(options.rounds):
            names = ["mapping", "pool", "pwrite"]
            for is_warm in (False, True):
                for name in names[number % 3 :] + names[: number % 3]:
                    path = Path(directory) / name
                    page_us = 0.0
                    if is_warm:
                        page_us = machine.warm_page_cache(Path(directory), 2 * size_bytes)
                    else:
                        ballast.append(mmap.mmap(-1, 2 * size_bytes))
                        ballast[-1].madvise(_MADV_POPULATE_WRITE)
                    if name == "mapping":
                        append_s, all_s = mapped(path, size_bytes, piece)
                    elif name == "pool":
                        append_s, all_s = pooled(path, size_bytes, piece, pool)
                    else:
                        append_s, all_s = written(path, size_bytes, piece)
                    path.unlink()
                    state = "warm" if is_warm else "cold"
                    results.setdefault(f"{name}, {state}: append MB/s", []).append(
                        size_bytes / append_s / 1e6
                    )
                    results.setdefault(f"{name}, {state}: in all MB/s", []).append(size_bytes / all_s / 1e6)
                    if is_warm:
                        results.setdefault("(a warm page, us)", []).append(page_us)
    print(
        f"{options.megabytes} MB a round, pieces of {options.piece} bytes, "
        f"pool locked: {is_locked}, load {load:.1f}"
    )
    rows = [
        [name, *(f"{value:,.1f}" for value in (median(values), min(values), max(values)))]
        for name, values in sorted(results.items())
    ]
    print(machine.table(["processor time", "median", "min", "max"], rows))


if __name__ == "__main__":
    main()
