"""A backlog on the disk and a hundred groups that read it at different places, with a restart in between.

    .venv/bin/python -m benchmarks.broker_backlog [--quick] [--gigabytes 10] [--groups 100] [--group-kb 500]

A broker gets so much log, of records of 1,000 bytes in four queues, which is then put out of memory. Each
group reads from a place of its own, at most so many KB a second (0: as fast as it goes), and commits how
far it came. Live traffic in another topic, 5,000 messages a second from a producer to a consumer that
waits, is measured without the readers, beside them, and beside them once more after the broker was stopped
and started again; the groups then go on from what they have committed. Every record read must have the
offset that was asked for.

The marks: at most 150 MB of anonymous memory at any time, and a p99 of the live traffic within twice that
without readers. The data is in a temporary directory of build/benchmarks, or of --directory, and goes with
the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import broker_latency, machine
from benchmarks._broker_process import BrokerProcess, broker
from benchmarks._wire_load import (
    ANSWER_TIMEOUT_S,
    call,
    create_topic,
    frame,
    in_turn,
    pipeline,
    pull_fields,
    send_fields,
    stored_records,
)  # fmt: skip
from benchmarks.store_start import drop_cache
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.remoting.codes import RequestCode

TOPIC: Final = "Backlog"
QUEUES: Final = 4
BATCH_RECORDS: Final = 128
BODY_BYTES: Final = 1_000
RECORD_BYTES: Final = 91 + len(TOPIC) + BODY_BYTES
PULL_RECORDS: Final = 32
RATE: Final = 5_000
ANONYMOUS_MB: Final = 150.0
RATIO: Final = 2.0
_COMMIT_AND_SUBSCRIPTION: Final = "5"
_RECEIVED_BYTES: Final = 1 << 20


def main(words: Sequence[str] | None = None) -> int:
    """0 when the marks are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_backlog", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a gigabyte, five seconds each")
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--group-kb", type=float, default=500.0, help="read by a group in a second (500)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement (30)")
    parser.add_argument("--directory", type=Path, default=machine.RESULTS)
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--each", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--committed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.read:
        print(json.dumps(read(options)), flush=True)
        return 0
    if options.quick:
        options.gigabytes, options.seconds = 0.5, 5.0
    options.directory.mkdir(parents=True, exist_ok=True)
    needed_bytes = options.gigabytes * (1 << 30) * 1.1 + (1 << 30)
    if shutil.disk_usage(options.directory).free < needed_bytes:
        print(
            f"{options.directory} has less than {needed_bytes / 1e9:.1f} GB free: --gigabytes",
            file=sys.stderr,
        )
        return 1
    about = machine.description()
    with tempfile.TemporaryDirectory(prefix="data-backlog-", dir=options.directory) as directory:
        results = measure(Path(directory), options)
    rows = [
        [name, *(f"{found[column]:,.2f}" for column in results["alone"])] for name, found in results.items()
    ]
    print(machine.table([f"{options.gigabytes:g} GiB, {options.groups} groups", *results["alone"]], rows))
    machine.save("broker_backlog", {f"{options.gigabytes:g} GiB": {"machine": about, **results}})
    most_mb = max(found["anonymous, MB"] for found in results.values())
    ratio = max(found["p99, ms"] for found in results.values()) / results["alone"]["p99, ms"]
    is_reached = most_mb <= ANONYMOUS_MB and ratio <= RATIO
    print(f"most anonymous memory {most_mb:.0f} MB (mark {ANONYMOUS_MB:.0f}), p99 {ratio:.1f}x (mark {RATIO})")
    print("reached" if is_reached else "MISSED")
    return 0 if is_reached or options.quick else 1


def measure(directory: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The live traffic alone, beside the readers, and beside them after a restart."""
    records_each = int(options.gigabytes * (1 << 30) / RECORD_BYTES / QUEUES / BATCH_RECORDS) * BATCH_RECORDS
    results = {}
    with broker(directory=directory) as server:
        fill(server.port, records_each)
        create_topic(server.port, "T", broker_latency.QUEUES)
        drop_cache(directory)
        results["alone"] = live(server, options.seconds) | {"read, MB/s": 0.0}
        with readers(server.port, records_each, options, is_committed=False) as reading:
            results["beside readers"] = live(server, options.seconds)
            results["beside readers"]["read, MB/s"] = ended(reading)
    drop_cache(directory)
    with (
        broker(directory=directory) as server,
        readers(server.port, records_each, options, is_committed=True) as reading,
    ):
        results["after a restart"] = live(server, options.seconds)
        results["after a restart"]["read, MB/s"] = ended(reading)
    return results


def fill(port: int, records_each: int) -> None:
    """Store the backlog, the queues in turn."""
    create_topic(port, TOPIC, QUEUES)
    elements = encode_batch([(b"x" * BODY_BYTES, b"", 0)] * BATCH_RECORDS)
    frames = [
        frame(RequestCode.SEND_BATCH_MESSAGE, {**send_fields(TOPIC, number), "m": "true"}, elements)
        for number in range(QUEUES)
    ]
    count = records_each * QUEUES // BATCH_RECORDS
    pipeline(port, in_turn(frames), connections=1, in_flight=16, count=count)
    stored = stored_records(port, TOPIC, QUEUES)
    assert stored == records_each * QUEUES, f"{stored} of {records_each * QUEUES} records are stored"


class _Memory(threading.Thread):
    """Looks at the broker's anonymous memory while the measurement runs."""

    def __init__(self, server: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._is_over = threading.Event()
        self.most_bytes = 0

    def run(self) -> None:
        while not self._is_over.wait(0.5):
            self.most_bytes = max(self.most_bytes, self._server.memory_bytes()["anonymous"])

    def end(self) -> float:
        self._is_over.set()
        self.join()
        return self.most_bytes / 1e6


def live(server: BrokerProcess, seconds: float) -> dict[str, float]:
    """Milliseconds of the live traffic, and the most memory meanwhile."""
    broker_latency.run(server, RATE, 1.0)
    memory = _Memory(server)
    memory.start()
    used_s = server.cpu_s()
    waits_ms = sorted(broker_latency.run(server, RATE, seconds))
    return {
        "median, ms": waits_ms[len(waits_ms) // 2],
        "p99, ms": waits_ms[int(len(waits_ms) * 0.99)],
        "longest, ms": waits_ms[-1],
        "share of a core": (server.cpu_s() - used_s) / seconds,
        "anonymous, MB": memory.end(),
    }


@contextlib.contextmanager
def readers(
    port: int, records_each: int, options: argparse.Namespace, *, is_committed: bool
) -> Iterator[subprocess.Popen[str]]:
    """A process with all groups; it ends with its standard input."""
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "benchmarks.broker_backlog",
                "--read",
                str(port),
                "--each",
                str(records_each),
            ),
            *("--groups", str(options.groups), "--group-kb", str(options.group_kb)),
            *(["--committed"] * is_committed),
        ],
        cwd=machine.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ended(reading: subprocess.Popen[str]) -> float:
    """End the readers; the MB they read in a second."""
    output, _ = reading.communicate("", timeout=ANSWER_TIMEOUT_S)
    report = json.loads(output)
    assert report["least_records"] > 0, f"a group got nothing: {report}"
    rate: float = report["bytes"] / report["seconds"] / 1e6
    return rate


# The readers' process


class _Group:
    """A group that reads one queue from somewhere on, round and round, one pull at a time."""

    def __init__(self, port: int, number: int, options: argparse.Namespace) -> None:
        self.name = f"group-{number}"
        self.queue_id = number % QUEUES
        self.records_each: int = options.each
        self.offset = start = self.records_each * number // options.groups
        if options.committed:
            fields = {"consumerGroup": self.name, "topic": TOPIC, "queueId": str(self.queue_id)}
            self.offset = int(call(port, RequestCode.QUERY_CONSUMER_OFFSET, fields).ext["offset"])
            if self.offset == start:
                raise AssertionError(f"{self.name} is at {start}, where it began before the restart")
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due_s = 0.0
        self.records = self.bytes = 0
        self._data = bytearray()

    def ask(self) -> None:
        fields = pull_fields(TOPIC, self.queue_id, self.offset, PULL_RECORDS, 0)
        fields |= {
            "consumerGroup": self.name,
            "sysFlag": _COMMIT_AND_SUBSCRIPTION,
            "commitOffset": str(self.offset),
        }
        self.socket.sendall(frame(RequestCode.PULL_MESSAGE, fields))

    def receive(self) -> bool:
        """Whether the answer is whole now."""
        data = self.socket.recv(_RECEIVED_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._data += data
        if len(self._data) < 8:
            return False
        size, word = struct.unpack_from(">II", self._data)
        if len(self._data) < 4 + size:
            return False
        body = memoryview(self._data)[8 + (word & 0xFFFFFF) : 4 + size]
        at = 0
        while at < len(body):
            record = decode_record(body, at)
            assert record.queue_offset == self.offset, (
                f"offset {record.queue_offset} in place of {self.offset}"
            )
            at += record.size
            self.offset += 1
            self.records += 1
        self.bytes += len(body)
        body.release()
        self._data.clear()
        if self.offset >= self.records_each:
            self.offset = 0
        return True


def read(options: argparse.Namespace) -> dict[str, float]:
    """All groups read until the standard input ends."""
    groups = [_Group(options.read, number, options) for number in range(options.groups)]
    by_descriptor = {group.socket.fileno(): group for group in groups}
    poll = select.epoll()
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    for descriptor, group in by_descriptor.items():
        poll.register(descriptor, select.EPOLLIN)
        group.ask()
    pause_s = PULL_RECORDS * RECORD_BYTES / (options.group_kb * 1e3) if options.group_kb else 0.0
    waiting: list[_Group] = []
    began_s = time.monotonic()
    while True:
        timeout_s = max(0.0, min(group.due_s for group in waiting) - time.monotonic()) if waiting else 1.0
        for descriptor, _ in poll.poll(timeout_s):
            if descriptor == sys.stdin.fileno():
                return {
                    "seconds": time.monotonic() - began_s,
                    "bytes": sum(group.bytes for group in groups),
                    "least_records": min(group.records for group in groups),
                }
            group = by_descriptor[descriptor]
            if group.receive():
                group.due_s = max(group.due_s + pause_s, time.monotonic())
                waiting.append(group)
        now_s = time.monotonic()
        for group in [group for group in waiting if group.due_s <= now_s]:
            waiting.remove(group)
            group.ask()


if __name__ == "__main__":
    sys.exit(main())
