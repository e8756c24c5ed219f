"""Group commit: 200 senders that each wait for their record to be on the disk and then send the next.

    .venv/bin/python -m benchmarks.store_sync_flush [--quick] [--senders 200] [--body 100] [--seconds 3]

The senders run on one event loop, through Store.append and, as the broker's writer does it, a flush
thread that wakes the loop, `advance`, and the answers in log order. Beside it, in the same run and file
system, before and after each round: the disk alone, where one thread copies as many bytes as the store's
flushes had on average into a mapping like the log's and calls fdatasync, over and over. The marks: at
least 50 records a flush, and at least 80 % of the disk's own rate of flushes. --python-flush has the
flush thread get the GIL back between two syncs, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from benchmarks import machine
from iotmq.message.records.record import encode_batch
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST: Final = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
PROPERTIES: Final = b"KEYS\x01d123\x02MQTT_TOPIC\x01devices/d123/telemetry\x02MQTT_QOS\x011\x02"
SEGMENT_BYTES: Final = 1 << 30
MARK_RECORDS_PER_FLUSH: Final = 50
MARK_OF_DISK: Final = 0.8


class Senders:
    """A closed loop: each sends again as soon as its record is confirmed."""

    def __init__(self, store: Store, *, senders: int, body_bytes: int) -> None:
        self._store = store
        self._element = encode_batch([(bytes(body_bytes), PROPERTIES, 0)])
        self._queues = [store.queue("telemetry", number % 8) for number in range(senders)]
        self._loop = asyncio.get_running_loop()
        self._is_advance_scheduled = False
        self._is_over = False
        # (end position, sender, time sent), in log order.
        self._waiting: deque[tuple[int, int, float]] = deque()
        self._finished = asyncio.Event()
        self.latencies_s: list[float] = []
        store.on_flushed = self._on_flushed

    async def run(self, seconds: float) -> None:
        """Send for so long, and wait for what is under way."""
        for number in range(len(self._queues)):
            self._send(number)
        await asyncio.sleep(seconds)
        self._is_over = True
        await self._finished.wait()

    def _send(self, number: int) -> None:
        appended = self._store.append(
            self._queues[number], self._element, born_timestamp_ms=1, born_host=HOST
        )
        self._waiting.append((appended.end_position, number, time.perf_counter()))

    def _on_flushed(self) -> None:
        """In the store's thread."""
        if not self._is_advance_scheduled:
            self._is_advance_scheduled = True
            self._loop.call_soon_threadsafe(self._advance)

    def _advance(self) -> None:
        self._is_advance_scheduled = False
        confirmed_position = self._store.advance()
        waiting = self._waiting
        now_s = time.perf_counter()
        while waiting and waiting[0][0] <= confirmed_position:
            _, number, sent_s = waiting.popleft()
            self.latencies_s.append(now_s - sent_s)
            if not self._is_over:
                self._send(number)
        if not waiting:
            self._finished.set()


async def store_round(
    directory: Path, *, senders: int, body_bytes: int, seconds: float, is_python: bool
) -> dict[str, float]:
    store = Store.open(
        directory,
        StoreSettings(flush="sync", segment_bytes=SEGMENT_BYTES),
        store_host=HOST,
        sync_file=(lambda descriptor: os.fdatasync(descriptor)) if is_python else os.fdatasync,
    )
    closed_loop = Senders(store, senders=senders, body_bytes=body_bytes)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await closed_loop.run(seconds)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    metrics = {metric.name: metric.value for metric in store.metrics()}
    flushes = metrics["iotmq_store_flushes_total"]
    records = len(closed_loop.latencies_s)
    written = store.appended_position
    store.close()
    latencies_s = sorted(closed_loop.latencies_s)
    return {
        "records_per_s": records / took_s,
        "flushes_per_s": flushes / took_s,
        "records_per_flush": records / flushes,
        "bytes_per_flush": written / flushes,
        "flushing": metrics["iotmq_store_flush_seconds_total"] / took_s,
        "p50_ms": latencies_s[records // 2] * 1000,
        "p99_ms": latencies_s[records * 99 // 100] * 1000,
        "cpu_us_per_record": cpu_s / records * 1e6,
    }


def disk_round(directory: Path, *, piece_bytes: int, seconds: float) -> float:
    """Flushes a second of a thread that does nothing else, `piece_bytes` each."""
    step_bytes = StoreSettings().allocation_step_bytes
    piece = os.urandom(piece_bytes)
    with (directory / "disk").open("w+b") as file:
        file.truncate(SEGMENT_BYTES)
        descriptor = file.fileno()
        with mmap.mmap(descriptor, SEGMENT_BYTES) as mapping:
            at = allocated = flushes = 0
            began_s = time.perf_counter()
            while time.perf_counter() - began_s < seconds and at + piece_bytes < SEGMENT_BYTES:
                if at + piece_bytes > allocated:
                    os.posix_fallocate(descriptor, allocated, step_bytes)
                    allocated += step_bytes
                mapping[at : at + piece_bytes] = piece
                at += piece_bytes
                os.fdatasync(descriptor)
                flushes += 1
            return flushes / (time.perf_counter() - began_s)


def main(words: Sequence[str] | None = None) -> int:
    """0 when both marks are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_sync_flush", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter and fewer rounds")
    parser.add_argument("--senders", type=int, default=200)
    parser.add_argument("--body", type=int, default=100, help="bytes of a body (default 100)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round (default 3)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python-flush", action="store_true", help="group commit without its compiled part")
    parser.add_argument("--directory", type=Path, default=None, help="default: a temporary one")
    options = parser.parse_args(words)
    seconds, rounds = (0.7, 3) if options.quick else (options.seconds, options.rounds)
    before = machine.description()
    results: dict[str, list[float]] = {}
    root = Path(tempfile.mkdtemp(prefix="iotmq-sync-flush-", dir=options.directory))
    try:
        machine.warm_page_cache(root, 1 << 30)
        piece_bytes = 0
        for number in range(rounds + 1):
            disk = [disk_round(root, piece_bytes=piece_bytes, seconds=seconds / 2)] if number else []
            measured = uvloop.run(
                store_round(
                    root / str(number),
                    senders=options.senders,
                    body_bytes=options.body,
                    seconds=seconds if number else seconds / 2,
                    is_python=options.python_flush,
                )
            )
            piece_bytes = round(measured["bytes_per_flush"])
            # Nothing is deleted before the end: giving blocks back keeps the disk busy, in another's time.
            if not number:
                # It only says how much a flush has.
                continue
            disk.append(disk_round(root, piece_bytes=piece_bytes, seconds=seconds / 2))
            measured["disk_flushes_per_s"] = sum(disk) / 2
            measured["of_disk"] = measured["flushes_per_s"] / measured["disk_flushes_per_s"]
            for name, value in measured.items():
                results.setdefault(name, []).append(value)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    middle = {name: median(values) for name, values in results.items()}
    texts = {
        "records_per_s": ("records confirmed a second", ",.0f"),
        "flushes_per_s": ("flushes a second", ",.0f"),
        "disk_flushes_per_s": ("the disk alone, flushes of as many bytes a second", ",.0f"),
        "of_disk": ("share of the disk's own rate", ".2f"),
        "records_per_flush": ("records a flush", ",.1f"),
        "flushing": ("share of the time with a flush under way", ".2f"),
        "p50_ms": ("from send to confirmation, median ms", ".2f"),
        "p99_ms": ("from send to confirmation, p99 ms", ".2f"),
        "cpu_us_per_record": ("processor time per record, us", ".1f"),
    }
    rows = [
        [text, *(format(value, shape) for value in (middle[name], min(results[name]), max(results[name])))]
        for name, (text, shape) in texts.items()
    ]
    print(f"{options.senders} senders, bodies of {options.body} bytes, {rounds} rounds of {seconds} s\n")
    print(machine.table(["work", "median", "min", "max"], rows))
    marks = (
        (f"{MARK_RECORDS_PER_FLUSH} records a flush", middle["records_per_flush"] >= MARK_RECORDS_PER_FLUSH),
        (f"{MARK_OF_DISK:.0%} of the disk's own rate", middle["of_disk"] >= MARK_OF_DISK),
    )
    print()
    for mark, is_reached in marks:
        print(f"mark of {mark}: {'reached' if is_reached else 'MISSED'}")
    name = "python_flush" if options.python_flush else "sync_flush"
    path = machine.save("store_sync_flush", {name: {"machine": before, "median": middle, "rounds": results}})
    print(f"\nkept in {path}")
    return 0 if all(is_reached for _, is_reached in marks) else 1


if __name__ == "__main__":
    sys.exit(main())
