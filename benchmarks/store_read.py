"""Stored records into Arrow columns: Store.read, decode_columns, a record batch.

    .venv/bin/python -m benchmarks.store_read [--quick] [--records 2000000] [--queues 4] [--rounds 5]

Records of 100-byte bodies with three properties, read queue after queue in pulls of at most `--pull`
bytes, each decoded into columns (offset, position, times, body) and made an
Arrow record batch. "one queue": its records stand together in the log, so that a pull is one view.
"scattered": records of the queues in turn, which a pull gathers. Everything is in memory and on one core.
Records a second are given of the clock and of the thread's processor time: beside other work on the
core only the latter is about this code. The mark: 3 M records/s of the latter.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine
from iotmq.message.records.columns import decode_columns
from iotmq.message.records.record import encode_batch
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST: Final = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
PROPERTIES: Final = b"KEYS\x01d123\x02MQTT_TOPIC\x01devices/d123/telemetry\x02MQTT_QOS\x011\x02"
COLUMNS: Final = ("queue_offset", "position", "born_timestamp", "store_timestamp", "body")
MARK_RECORDS_PER_S: Final = 3_000_000


def fill(store: Store, *, records: int, queues: int, batch: int, topic: str) -> None:
    many = encode_batch([(os.urandom(100), PROPERTIES, 0)] * batch)
    handles = [store.queue(topic, number) for number in range(queues)]
    for number in range(records // batch):
        store.append(handles[number % queues], many, born_timestamp_ms=1, born_host=HOST)


def read_all(store: Store, *, topic: str, queues: int, pull_bytes: int, columns: Sequence[str]) -> int:
    """Every record of a topic as Arrow record batches; returns how many rows they had."""
    rows = 0
    for number in range(queues):
        queue = store.find_queue(topic, number)
        assert queue is not None
        offset = queue.min_offset
        while offset < queue.max_offset:
            read = store.read(queue, offset, records_max=65_536, bytes_max=pull_bytes)
            for view in read.views:
                rows += decode_columns(view, columns=columns).to_arrow().num_rows
            offset = read.next_offset
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_read", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--pull", type=int, default=1 << 20, help="bytes of a pull (default 1 MiB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="default: a temporary one")
    options = parser.parse_args(words)
    records, rounds = (400_000, 3) if options.quick else (options.records, options.rounds)
    os.sched_setaffinity(0, {machine.cores()[0]})
    before = machine.description()
    cases = {
        "one queue": ("together", 1, 100),
        "scattered, batches of 10": ("tens", options.queues, 10),
        "scattered, one by one": ("ones", options.queues, 1),
    }
    results: dict[str, list[float]] = {}
    root = Path(tempfile.mkdtemp(prefix="iotmq-read-", dir=options.directory))
    try:
        store = Store.open(root, StoreSettings(), store_host=HOST)
        for topic, queues, batch in cases.values():
            fill(store, records=records, queues=queues, batch=batch, topic=topic)
        for number in range(rounds + 1):
            for name, (topic, queues, _) in cases.items():
                began_s, began_cpu_s = time.perf_counter(), time.thread_time()
                rows = read_all(store, topic=topic, queues=queues, pull_bytes=options.pull, columns=COLUMNS)
                took_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - began_cpu_s
                assert rows == records, (rows, records)
                # The first round maps the pages.
                if number:
                    results.setdefault(name, []).append(rows / cpu_s)
                    results.setdefault(f"{name}, by the clock", []).append(rows / took_s)
        store.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{records:,} records a case, pulls of {options.pull:,} bytes, columns {', '.join(COLUMNS)}\n")
    rows_of_table = [
        [name, *(f"{value:,.0f}" for value in (median(values), min(values), max(values)))]
        for name, values in results.items()
    ]
    print(machine.table(["records/s", "median", "min", "max"], rows_of_table))
    is_reached = median(results["one queue"]) >= MARK_RECORDS_PER_S
    print(f"\nmark of {MARK_RECORDS_PER_S / 1e6:.0f} M records/s: {'reached' if is_reached else 'MISSED'}")
    path = machine.save("store_read", {"read": {"machine": before, "rounds": results}})
    print(f"\nkept in {path}")
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
