"""How long a start takes after kill -9, with gigabytes of log.

    .venv/bin/python -m benchmarks.store_start [--quick] [--gigabytes 10] [--rounds 3] [--cold]

A child process fills a store, waits for a checkpoint, appends on at `--rate` MB/s and is killed; then
another process starts a broker on the directory. "store open" is Store.open: the scan from the
checkpoint on and the queues' catching up; "to serving" ends when the broker has answered a request. The
same directory is used for every round, with more log each time. With --cold the log is out of memory
before the start, as after a power cut. The mark: under 3 s to serving.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine
from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.store.recovery.checkpoint import read_checkpoint
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST: Final = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
PROPERTIES: Final = b"KEYS\x01d123\x02MQTT_TOPIC\x01devices/d123/telemetry\x02MQTT_QOS\x011\x02"
QUEUES: Final = 8
BATCH_RECORDS: Final = 200
BODY_BYTES: Final = 300
MARK_S: Final = 3.0


def fill(directory: Path, size_bytes: int, rate_bytes_per_s: float) -> None:
    """In the child: append so much, then on at a rate until killed; says `filled` in between."""
    store = Store.open(directory, StoreSettings(), store_host=HOST)
    queues = [store.queue("telemetry", number) for number in range(QUEUES)]
    many = encode_batch([(os.urandom(BODY_BYTES), PROPERTIES, 0)] * BATCH_RECORDS)
    end_position = store.appended_position + size_bytes
    number = 0
    while store.appended_position < end_position:
        store.append(queues[number % QUEUES], many, born_timestamp_ms=1, born_host=HOST)
        number += 1
    while True:
        checkpoint = read_checkpoint(directory / "checkpoint")
        if checkpoint is not None and (checkpoint.position or 0) >= end_position:
            break
        time.sleep(0.1)
    print("filled", flush=True)
    began_s, began_position = time.monotonic(), store.appended_position
    while True:
        ahead_bytes = store.appended_position - began_position
        time.sleep(max(0.0, ahead_bytes / rate_bytes_per_s - (time.monotonic() - began_s)))
        store.append(queues[number % QUEUES], many, born_timestamp_ms=1, born_host=HOST)
        number += 1


async def serve(directory: Path, began_s: float) -> None:
    """In the child: start on the directory and say how long it took, imports included."""
    open_began_s = time.monotonic()
    store = Store.open(directory, StoreSettings(), store_host=HOST)
    open_s = time.monotonic() - open_began_s
    broker = Broker(BrokerSettings(listen_port=0, registries=()), store, directory=directory, store_host=HOST)
    await broker.start()
    connection = await ClientConnection.connect("127.0.0.1", broker.port)
    response = await connection.request(
        Command.request(RequestCode.GET_BROKER_RUNTIME_INFO, {}), timeout_s=10
    )
    assert response.code == 0, response
    serving_s = time.monotonic() - began_s
    await connection.close()
    await broker.stop()
    recovery = store.recovery
    result = {
        "open_s": open_s,
        "serving_s": serving_s,
        "checked_bytes": recovery.end_position - recovery.checked_from_position,
        "dispatched_bytes": recovery.end_position - recovery.queues_from_position,
        "log_bytes": recovery.end_position,
        "was_clean": float(recovery.was_clean),
    }
    print(json.dumps(result), flush=True)
    # Killed here, too: a clean stop would be another benchmark.
    os.kill(os.getpid(), signal.SIGKILL)


def child(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.store_start", *words]
    return subprocess.Popen(command, cwd=machine.ROOT, stdout=subprocess.PIPE, text=True)


def drop_cache(directory: Path) -> None:
    """Have all files of the directory on the disk and out of memory."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one_round(
    directory: Path, *, size_bytes: int, rate: float, run_s: float, is_cold: bool
) -> dict[str, float]:
    filling = child("--fill", str(directory), "--bytes", str(size_bytes), "--rate", str(rate))
    assert filling.stdout is not None
    assert filling.stdout.readline().strip() == "filled"
    time.sleep(run_s)
    filling.kill()
    filling.wait()
    if is_cold:
        drop_cache(directory)
    serving = child("--serve", str(directory))
    assert serving.stdout is not None
    result: dict[str, float] = json.loads(serving.stdout.readline())
    serving.wait()
    assert not result["was_clean"]
    return result


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_start", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one gigabyte, one round")
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=50, help="MB/s appended until the kill (default 50)")
    parser.add_argument("--run", type=float, default=7, help="seconds of that before the kill (default 7)")
    parser.add_argument("--cold", action="store_true", help="out of memory before the start")
    parser.add_argument("--directory", type=Path, default=None, help="default: a temporary one")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.fill:
        fill(options.fill, options.bytes, options.rate)
    if options.serve:
        # From the start of the process, as far as it can be told.
        started_s = float(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        asyncio.run(serve(options.serve, started_s / os.sysconf("SC_CLK_TCK")))
    size_bytes, rounds = int(options.gigabytes * (1 << 30)), options.rounds
    if options.quick:
        size_bytes, rounds = 1 << 30, 1
    before = machine.description()
    root = Path(tempfile.mkdtemp(prefix="iotmq-start-", dir=options.directory))
    results: dict[str, list[float]] = {}
    try:
        for number in range(rounds):
            measured = one_round(
                root,
                size_bytes=0 if number else size_bytes,
                rate=options.rate * 1e6,
                run_s=options.run,
                is_cold=options.cold,
            )
            for name, value in measured.items():
                results.setdefault(name, []).append(value)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    middle = {name: median(values) for name, values in results.items()}
    name = "cold" if options.cold else "warm"
    print(f"{middle['log_bytes'] / (1 << 30):.1f} GiB of log, {rounds} rounds, {name}\n")
    rows = [
        [text, *(f"{value / unit:,.2f}" for value in (middle[name], min(results[name]), max(results[name])))]
        for name, text, unit in (
            ("open_s", "store open, s", 1),
            ("serving_s", "process start to serving, s", 1),
            ("checked_bytes", "checked log, MB", 1e6),
            ("dispatched_bytes", "log the queues went through again, MB", 1e6),
        )
    ]
    print(machine.table(["work", "median", "min", "max"], rows))
    is_reached = max(results["serving_s"]) < MARK_S
    print(f"\nmark of {MARK_S:.0f} s to serving: {'reached' if is_reached else 'MISSED'}")
    path = machine.save("store_start", {name: {"machine": before, "median": middle, "rounds": results}})
    print(f"\nkept in {path}")
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
