"""Compare source trees by the processor time, instructions and system calls of a QoS 1 message, in turns.

    .venv/bin/python -m benchmarks.experiments.hot_path --tree DIR [--window 100] [--rounds 15]

Starts `iotmq serve` of each tree on one core, and has bursts published to them in turns, from 100
connections on another core. Printed: what the server's process used for a message, in microseconds of all
its threads (of them the kernel's), system calls and page faults where they are asked for (`perf stat`), and
the median of the ratios of neighbouring bursts, which other work on the machine changes least. A tree needs
`iotmq` with its compiled modules, and the interpreter of this one.

`--set NAME=VALUE` is a setting of every server. `--per-byte` publishes payloads of 60 to 300 bytes in turns
with the first tree, and prints what a byte of the log costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine
from benchmarks.peers.server import Server, exact_cpu_s, free_ports, running

_ROUTE: Final = '[[mqtt.routes]]\nfilter = "devices/+/telemetry"\ntopic = "telemetry"\nkey = "{1}"\n'
NOT_STORED: Final = _ROUTE + "store = false\n"
_EVENTS: Final = ("raw_syscalls:sys_enter", "page-faults")
_PAYLOADS: Final = (60, 100, 140, 300)
# An asynchronous flush comes every half a second.
_FLUSH_S: Final = 0.7
Round = dict[str, float]


@contextlib.contextmanager
def gateway(tree: Path, settings: list[str], route: str = _ROUTE) -> Iterator[Server]:
    """One server of a tree, its log in build/benchmarks."""
    ports = dict(zip(("registry", "broker", "mqtt", "http"), free_ports(4), strict=True))
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-hot-", dir=machine.RESULTS) as directory:
        file = Path(directory, "iotmq.toml")
        file.write_text(route)
        words = [f"{role}.listen_port={port}" for role, port in ports.items()]
        words += [f"broker.registries=127.0.0.1:{ports['registry']}", "log.level=warning", *settings]
        command = [
            *("env", "-C", str(tree), sys.executable, "-m", "iotmq", "serve", "--config", str(file)),
            *("--data", str(Path(directory, "data"))),
            *(word for setting in words for word in ("--set", setting)),
        ]
        with running("iotmq", command, machine.cores()[0], ports["mqtt"], Path(directory)) as server:
            yield server


def publish(port: int, window: int, messages: int, payload: int) -> float:
    """Messages a second acknowledged."""
    words = (
        *("-m", "loadtest.swarm", "publish", "--port", str(port), "--core", str(machine.cores()[1])),
        *("--publishers", "100", "--qos", "1", "--window", str(window), "--messages", str(messages)),
        *("--payload-bytes", str(payload), "--seconds", "120", "--warmup", "0"),
    )
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, *words], cwd=machine.ROOT, capture_output=True, text=True, timeout=180, check=True
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["counters"]["acknowledged"] == messages, report["counters"]
    return messages / (time.monotonic() - began_s)


def kernel_s(pid: int) -> float:
    """Processor time of a process in the kernel, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) / os.sysconf("SC_CLK_TCK")


class Counting:
    """`perf stat` beside a process; nothing where the machine has no such counters."""

    def __init__(self, pid: int, directory: Path) -> None:
        self._file = directory / "perf"
        with contextlib.suppress(FileNotFoundError):
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                ["perf", "stat", "-x", ";", "-o", str(self._file), "-e", ",".join(_EVENTS), "-p", str(pid)],
                stderr=subprocess.DEVNULL,
            )
            time.sleep(0.3)
            return
        self._process = None

    def end(self, messages: int) -> Round:
        if self._process is None:
            return {}
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)
        counts: Round = {}
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                fields = line.split(";")
                if len(fields) > 2 and fields[0].isdigit():
                    counts[fields[2]] = int(fields[0]) / messages
        return counts


def measure(server: Server, options: argparse.Namespace, payload: int) -> Round:
    """One burst to one server, with the flush that follows it."""
    machine.warm_page_cache(machine.RESULTS, 4 * options.messages * (payload + 200))
    with tempfile.TemporaryDirectory() as directory:
        counting = Counting(server.pid, Path(directory)) if options.count else None
        began_s, began_kernel_s = exact_cpu_s(server.pid), kernel_s(server.pid)
        rate = publish(server.port, options.window, options.messages, payload)
        time.sleep(_FLUSH_S)
        used_s, used_kernel_s = exact_cpu_s(server.pid) - began_s, kernel_s(server.pid) - began_kernel_s
        counts = counting.end(options.messages) if counting else {}
    each = 1e6 / options.messages
    return {"us": used_s * each, "us in the kernel": used_kernel_s * each, "messages/s": rate} | counts


def main() -> None:
    """Print the medians, and the share of the first that each other takes."""
    parser = argparse.ArgumentParser(description="A QoS 1 message in several trees.")
    parser.add_argument("--tree", type=Path, action="append", default=[])
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--messages", type=int, default=300_000, help="of a burst")
    parser.add_argument("--payload", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--count", action="store_true", help="system calls and page faults, which costs time")
    parser.add_argument("--not-stored", action="store_true", help="a route without the log")
    parser.add_argument("--per-byte", action="store_true")
    options = parser.parse_args()
    trees = options.tree or [machine.ROOT]
    sides = [(f"{tree}", tree, options.payload) for tree in trees]
    if options.per_byte:
        sides = [(f"payload {size}", trees[0], size) for size in _PAYLOADS]
    rounds: dict[str, list[Round]] = {name: [] for name, _, _ in sides}
    with contextlib.ExitStack() as stack:
        route = NOT_STORED if options.not_stored else _ROUTE
        servers = [stack.enter_context(gateway(tree, options.set, route)) for _, tree, _ in sides]
        for server in servers:
            publish(server.port, options.window, options.messages, options.payload)
        for number in range(options.rounds):
            pairs = list(zip(sides, servers, strict=True))
            for (name, _, payload), server in pairs[number % len(sides) :] + pairs[: number % len(sides)]:
                rounds[name].append(measure(server, options, payload))
    first = rounds[sides[0][0]]
    rows = []
    for name, found in rounds.items():
        ratio = median(one["us"] / other["us"] for one, other in zip(found, first, strict=True))
        rows.append(
            [name, *(f"{median(one[column] for one in found):,.3f}" for column in first[0]), f"{ratio:.3f}"]
        )
    print(machine.table(["medians, a message", *first[0], "us, by the first's"], rows))
    if options.per_byte:
        least, most = (
            median(one["us"] for one in rounds[f"payload {size}"]) for size in (_PAYLOADS[0], _PAYLOADS[-1])
        )
        print(f"{(most - least) / (_PAYLOADS[-1] - _PAYLOADS[0]) * 1000:.2f} ns a byte")


if __name__ == "__main__":
    main()
