"""How fast batches go into the log and their queue, against a plain memcpy of the same bytes, on one core.

    .venv/bin/python -m benchmarks.store_append [--bodies 100] [--batch 100] [--megabytes 128] [--rounds 9]

Both write fresh files with blocks allocated in the store's steps, alternating in one process that is held
to one core; what counts is the processor time of all its threads, because on a machine with other work the
clock on the wall counts that, too. The median of the rounds. "append" is everything Store.append does:
checks, CRC, offsets, the records, their queue entries, and the key of each in the key index; then the same
without the index. Page faults are most of the memcpy: the mapping's pages are new. A second table has
appends of single records, to one queue and to a thousand in turn.
"""

from __future__ import annotations

import argparse
import mmap
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

HOST = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
PROPERTIES = b"KEYS\x01d123\x02MQTT_TOPIC\x01devices/d123/telemetry\x02MQTT_QOS\x011\x02"
SEGMENT_BYTES = 1 << 30
MARK_RECORDS_PER_S = 1_500_000
MARK_OF_MEMCPY = 0.5
MARK_APPEND_US = 5.0


def append_s(
    directory: Path, *, batch: bytes, batches: int, queues: int, is_indexed: bool = True
) -> tuple[float, int]:
    """Processor seconds for so many appends, over the queues in turn, and the bytes they made."""
    settings = StoreSettings(segment_bytes=SEGMENT_BYTES, index_enabled=is_indexed)
    store = Store.open(directory, settings, store_host=HOST)
    handles = [store.queue(f"telemetry{number // 8}", number % 8) for number in range(queues)]
    for queue in handles:
        store.append(queue, batch, born_timestamp_ms=1, born_host=HOST)
    start_position = store.appended_position
    append = store.append
    began_s = time.process_time()
    for number in range(batches):
        append(handles[number % queues], batch, born_timestamp_ms=1, born_host=HOST)
    seconds = time.process_time() - began_s
    size_bytes = store.appended_position - start_position
    store.close()
    return seconds, size_bytes


def memcpy_s(directory: Path, *, piece: bytes, pieces: int) -> float:
    """Processor seconds to copy so many pieces, one after another, into a mapping like the log's."""
    step_bytes = StoreSettings().allocation_step_bytes
    with (directory / "memcpy").open("w+b") as file:
        file.truncate(SEGMENT_BYTES)
        with mmap.mmap(file.fileno(), SEGMENT_BYTES) as mapping:
            at = allocated = 0
            size = len(piece)
            began_s = time.process_time()
            for _ in range(pieces):
                if at + size > allocated:
                    os.posix_fallocate(file.fileno(), allocated, step_bytes)
                    allocated += step_bytes
                mapping[at : at + size] = piece
                at += size
            return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of appending to the store.")
    parser.add_argument("--bodies", type=int, default=100, help="bytes of a body (default 100)")
    parser.add_argument("--batch", type=int, default=100, help="records of a batch (default 100)")
    parser.add_argument("--megabytes", type=int, default=128, help="log written in a round (default 128)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (default 9)")
    parser.add_argument("--plain", action="store_true", help="no properties: bodies and nothing else")
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to write (default: a temporary one)"
    )
    options = parser.parse_args()
    core = machine.cores()[0]
    os.sched_setaffinity(0, {core})
    properties = b"" if options.plain else PROPERTIES
    batch = encode_batch([(bytes(options.bodies), properties, 0)] * options.batch)
    single = encode_batch([(bytes(options.bodies), properties, 0)])
    record_bytes = 91 + len("telemetry0") + options.bodies + len(properties)
    batches = min(options.megabytes << 20, SEGMENT_BYTES // 2) // (record_bytes * options.batch)
    results: dict[str, list[float]] = {}
    root = Path(tempfile.mkdtemp(prefix="iotmq-append-", dir=options.directory))
    try:
        for number in range(options.rounds + 1):
            directory = root / str(number)
            directory.mkdir()
            machine.warm_page_cache(root, 3 * batches * options.batch * record_bytes)
            seconds, size_bytes = append_s(directory / "store", batch=batch, batches=batches, queues=1)
            plain_s, _ = append_s(
                directory / "plain", batch=batch, batches=batches, queues=1, is_indexed=False
            )
            copied_s = memcpy_s(directory, piece=bytes(size_bytes // batches), pieces=batches)
            round_results = {
                "append": batches * options.batch / seconds,
                "append_without_index": batches * options.batch / plain_s,
                "memcpy": batches * options.batch / copied_s,
                "append_bytes": size_bytes / seconds,
                "share": copied_s / seconds,
                "share_without_index": copied_s / plain_s,
            }
            for queues in (1, 1000):
                calls = 20_000
                seconds, _ = append_s(
                    directory / f"singles{queues}", batch=single, batches=calls, queues=queues
                )
                round_results[f"single_us_{queues}"] = seconds / calls * 1e6
            shutil.rmtree(directory)
            # The first round warms caches and the disk's idea of free blocks.
            if number:
                for name, value in round_results.items():
                    results.setdefault(name, []).append(value)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    middle = {name: median(values) for name, values in results.items()}
    print(f"{options.rounds} rounds of {batches} batches of {options.batch} x {options.bodies} bytes "
          f"(records of {record_bytes} bytes), one core\n")  # fmt: skip
    print(f"{'work':48} {'median':>12}")
    print(f"{'append, records/s':48} {middle['append']:12,.0f}")
    print(f"{'append, MB/s':48} {middle['append_bytes'] / 1e6:12,.0f}")
    print(f"{'append without the key index, records/s':48} {middle['append_without_index']:12,.0f}")
    print(f"{'memcpy of the same bytes, records/s':48} {middle['memcpy']:12,.0f}")
    print(f"{'append / memcpy':48} {middle['share']:12.2f}")
    print(f"{'append without the key index / memcpy':48} {middle['share_without_index']:12.2f}")
    print(f"{'append of one record, one queue, us':48} {middle['single_us_1']:12.2f}")
    print(f"{'append of one record, 1,000 queues in turn, us':48} {middle['single_us_1000']:12.2f}")
    marks = (
        (f"{MARK_RECORDS_PER_S / 1e6} M records/s", middle["append"] >= MARK_RECORDS_PER_S),
        (f"{MARK_OF_MEMCPY:.0%} of memcpy", middle["share"] >= MARK_OF_MEMCPY),
        (f"{MARK_APPEND_US:.0f} us an append", middle["single_us_1000"] <= MARK_APPEND_US),
    )
    print()
    for mark, is_reached in marks:
        print(f"mark of {mark}: {'reached' if is_reached else 'MISSED'}")
    saved = {"machine": machine.description(), "median": middle, "rounds": results}
    print(f"\nkept in {machine.save('store_append', {'append': saved})}")


if __name__ == "__main__":
    main()
