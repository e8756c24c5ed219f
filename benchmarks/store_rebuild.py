"""How fast what is derived from the log is made again: queues and key index.

    .venv/bin/python -m benchmarks.store_rebuild [--gigabytes 3] [--rounds 3] [--quick]

A log of records with 100-byte bodies and the properties of MQTT messages is written once. Then each
projection is deleted and a start fills it from the log, which is what `iotmq store rebuild` does; a start
that has nothing to do is measured beside it and taken off. On one core, threads included; megabytes are
those of the log. "cold" has the log read from the disk: its pages are given back before, and reading the
same files with nothing done to them, in the same way, is the disk's own speed. The directory is removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import machine
from iotmq.message.records.record import encode_batch
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store
from iotmq.store.tools.rebuild import INDEX, QUEUES, rebuild

HOST = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
MARK_BYTES_PER_S = 500e6
BATCH = 200
QUEUE_COUNT = 16


def write_log(directory: Path, settings: StoreSettings, size_bytes: int, mqtt_topics: int) -> int:
    """Fill a store with about so many bytes; returns how many it has."""
    store = Store.open(directory, settings, store_host=HOST)
    number = 0
    batches = [
        encode_batch(
            (
                bytes(100),
                b"KEYS\x01k%d\x02MQTT_TOPIC\x01devices/d%d/telemetry\x02MQTT_QOS\x011\x02"
                % (key, key % mqtt_topics),
                0,
            )
            for key in range(first, first + BATCH)
        )
        for first in range(0, 200_000, BATCH)
    ]
    while store.appended_position < size_bytes:
        queue = store.queue("telemetry", number % QUEUE_COUNT)
        store.append(queue, batches[number % len(batches)], born_timestamp_ms=1, born_host=HOST)
        number += 1
        if number % 20_000 == 0:
            store.request_flush()
    written = store.appended_position
    store.close()
    return written


def drop_pages(directory: Path) -> None:
    """Have the log's pages come from the disk again."""
    for path in (directory / "commitlog").iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def plain_read_s(directory: Path) -> float:
    """Seconds to read the log's files and do nothing with them."""
    began_s = time.perf_counter()
    for path in (directory / "commitlog").iterdir():
        with path.open("rb", buffering=0) as file:
            buffer = bytearray(8 << 20)
            while file.readinto(buffer):
                pass
    return time.perf_counter() - began_s


def start_s(directory: Path, settings: StoreSettings) -> float:
    """Seconds of a start and a stop that find everything in order."""
    began_s = time.perf_counter()
    Store.open(directory, settings, store_host=HOST).close()
    return time.perf_counter() - began_s


def rebuild_s(directory: Path, settings: StoreSettings, names: list[str]) -> float:
    """Seconds from the first deletion to the closed store."""
    began_s = time.perf_counter()
    rebuild(directory, settings, names)
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of rebuilding what is derived from the log.")
    parser.add_argument("--gigabytes", type=float, default=3.0, help="size of the log (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--topics", type=int, default=10_000, help="MQTT topics (default 10,000)")
    parser.add_argument("--quick", action="store_true", help="half a gigabyte, one round")
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to write (default: a temporary one)"
    )
    options = parser.parse_args()
    size_bytes = int((0.5 if options.quick else options.gigabytes) * 1e9)
    rounds = 1 if options.quick else options.rounds
    os.sched_setaffinity(0, {machine.cores()[0]})
    settings = StoreSettings()
    root = Path(tempfile.mkdtemp(prefix="iotmq-rebuild-", dir=options.directory))
    results: dict[str, list[float]] = {}
    try:
        directory = root / "store"
        machine.warm_page_cache(root, 2 * size_bytes)
        written = write_log(directory, settings, size_bytes, options.topics)
        works = [("queues", [QUEUES])]
        if (directory / INDEX).is_dir():
            works += [("index", [INDEX]), ("queues and index", [QUEUES, INDEX])]
        for _ in range(rounds):
            for name, names in works:
                idle_s = start_s(directory, settings)
                seconds = rebuild_s(directory, settings, names)
                results.setdefault(f"start with nothing to do ({name})", []).append(idle_s)
                results.setdefault(name, []).append(written / (seconds - idle_s))
                results.setdefault(f"{name}, the start included", []).append(written / seconds)
            drop_pages(directory)
            results.setdefault("plain read, cold", []).append(written / plain_read_s(directory))
            name, names = works[-1]
            drop_pages(directory)
            results.setdefault(f"{name}, cold, the start included", []).append(
                written / rebuild_s(directory, settings, names)
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    middle = {name: median(values) for name, values in results.items()}
    print(f"{rounds} rounds, a log of {written / 1e9:.2f} GB, {QUEUE_COUNT} queues, "
          f"{options.topics:,} MQTT topics, one core\n")  # fmt: skip
    rows = [
        (name, f"{value * 1000:,.0f} ms" if name.startswith("start") else f"{value / 1e6:,.0f} MB/s")
        for name, value in middle.items()
    ]
    print(machine.table(("rebuilding", "median"), rows))
    print()
    for name, _ in works:
        is_reached = middle[f"{name}, the start included"] >= MARK_BYTES_PER_S
        print(
            f"mark of {MARK_BYTES_PER_S / 1e6:.0f} MB/s for {name}: {'reached' if is_reached else 'MISSED'}"
        )
    saved = {"machine": machine.description(), "median": middle, "rounds": results}
    print(f"\nkept in {machine.save('store_rebuild', {'rebuild': saved})}")


if __name__ == "__main__":
    main()
