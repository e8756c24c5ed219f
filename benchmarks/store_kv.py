"""What the key-value database costs: a write-ahead log, memory.

    .venv/bin/python -m benchmarks.store_kv [--rounds 5] [--quick]

1. Writes of 100 and of 4,096 keys with and without RocksDB's own write-ahead log, alternating: the store
   does without, because the CommitLog is one.
   In processor time, RocksDB's threads included: what one core has to do.
2. Memory of a process with an open, empty store, without the database and with it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import machine
from iotmq.store.kv.kv import KeyValueStore

HOST = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
KEYS = 50 * 4096

MEMORY = """
import sys
from pathlib import Path
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store
import os
store = Store.open(Path(sys.argv[1]), StoreSettings(), store_host=bytes(8))
if sys.argv[2] == "on":
    store.key_values()
fields = dict(line.split(":", 1) for line in open("/proc/self/smaps_rollup") if ":" in line)
print(int(fields["Anonymous"].split()[0]), int(fields["Rss"].split()[0]))
"""


def write_ns(directory: Path, *, has_log: bool, batch: int) -> float:
    """Nanoseconds a key of batches in random order."""
    key_values = KeyValueStore(directory, cache_bytes=16 << 20, write_buffer_bytes=16 << 20)
    space = key_values.space("bench")
    space._write_options.disable_wal = not has_log  # type: ignore[method-assign, assignment]
    source = random.Random(1)
    keys = [b"\x01devices/d%d/telemetry" % source.randrange(1_000_000) for _ in range(KEYS)]
    values = [bytes(24)] * batch
    began_s = time.process_time()
    for at in range(0, KEYS - batch + 1, batch):
        space.write(keys[at : at + batch], values)
    seconds = time.process_time() - began_s
    key_values.close()
    return seconds / len(keys) * 1e9


def memory_kb(directory: Path, *, is_on: bool) -> tuple[int, int]:
    """Anonymous memory and all resident memory of a process, in KiB."""
    output = subprocess.run(
        [sys.executable, "-c", MEMORY, str(directory), "on" if is_on else "off"],
        capture_output=True,
        check=True,
        cwd=machine.ROOT,
        text=True,
    ).stdout
    anonymous, resident = output.split()
    return int(anonymous), int(resident)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the key-value database.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    results: dict[str, list[float]] = {}
    root = Path(tempfile.mkdtemp(prefix="iotmq-kv-"))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {machine.cores()[0]})
    try:
        for number in range(rounds):
            for batch, has_log in ((100, False), (100, True), (4096, False), (4096, True)):
                name = f"a key of {batch:,} written, {'with' if has_log else 'without'} a log, ns"
                value = write_ns(root / f"wal{number}{batch}{has_log}", has_log=has_log, batch=batch)
                results.setdefault(name, []).append(value)
        os.sched_setaffinity(0, allowed)
        for is_on in (False, True):
            anonymous, resident = memory_kb(root / f"memory{is_on}", is_on=is_on)
            what = f"{'with' if is_on else 'without'} the database"
            results[f"own memory {what}, MB"] = [anonymous / 1024]
            results[f"resident {what}, MB"] = [resident / 1024]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    middle = {name: median(values) for name, values in results.items()}
    print(machine.table(("what", "median"), [(name, f"{value:,.2f}") for name, value in middle.items()]))
    saved = {"machine": machine.description(), "median": middle, "rounds": results}
    print(f"\nkept in {machine.save('store_kv', {'kv': saved})}")


if __name__ == "__main__":
    main()
