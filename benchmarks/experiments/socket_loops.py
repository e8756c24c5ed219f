"""Experiment: an event loop of one's own by epoll, and io_uring, against uvloop, for a server that only
acknowledges.

    .venv/bin/python -m benchmarks.experiments.socket_loops [--rounds 5] [--seconds 3]

The load engine publishes with QoS 1 from 100 connections. Three servers on one core in turns:
`socket_loops.c` with epoll (a recv for each readable connection and a send for each that is answered, at
the end of the turn), the same with io_uring (receives that stay, into buffers the kernel chooses; all sends
of a turn and the wait in one call), and the gateway, on uvloop, with a route that does not store. Printed:
microseconds of the server's processor a message, of them the kernel's, and system calls a message where the
program counts them. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import _swarm, machine
from benchmarks.experiments import hot_path
from benchmarks.peers.server import exact_cpu_s

_SOURCE: Final = Path(__file__).with_suffix(".c")


def own(program: Path, mode: str, window: int, seconds: float) -> tuple[float, float, float]:
    """Microseconds, kernel's microseconds and calls, a message, of the C server."""
    server, load = machine.cores()
    with subprocess.Popen(
        [program, mode, str(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        publish(port, window, seconds, load)
        output, _ = process.communicate("")
    messages, calls, user_s, kernel_s = (float(word) for word in output.split())
    return (user_s + kernel_s) / messages * 1e6, kernel_s / messages * 1e6, calls / messages


def gateway(window: int, seconds: float) -> tuple[float, float, float]:
    """The same of the gateway, which counts no calls, for messages that it does not store."""
    with hot_path.gateway(machine.ROOT, [], hot_path.NOT_STORED) as server:
        publish(server.port, window, 0.5, machine.cores()[1])
        before_s, before_kernel_s = exact_cpu_s(server.pid), hot_path.kernel_s(server.pid)
        messages = publish(server.port, window, seconds, machine.cores()[1])
        used_s = exact_cpu_s(server.pid) - before_s
        used_kernel_s = hot_path.kernel_s(server.pid) - before_kernel_s
    return used_s / messages * 1e6, used_kernel_s / messages * 1e6, 0.0


def publish(port: int, window: int, seconds: float, core: int) -> int:
    """Messages acknowledged, those of the warm-up included."""
    report = _swarm.publish(
        port, "--publishers", "100", "--qos", "1", "--window", str(window), "--seconds", str(seconds),
        "--warmup", "0", timeout_s=60, core=core,
    )  # fmt: skip
    return int(report["counters"]["acknowledged"])


def main() -> None:
    """Print a row for each server and window."""
    parser = argparse.ArgumentParser(description="Event loops.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "socket_loops"
        subprocess.run(["cc", "-O2", "-o", program, _SOURCE], check=True)
        for window in (1, 100):
            results: dict[str, list[tuple[float, float, float]]] = {"epoll": [], "uring": [], "gateway": []}
            for _ in range(options.rounds):
                for name, found in results.items():
                    if name == "gateway":
                        found.append(gateway(window, options.seconds))
                    else:
                        found.append(own(program, name, window, options.seconds))
                    time.sleep(0.2)
            for name, found in results.items():
                rows.append(
                    [f"window {window}, {name}", *(f"{median(one):.3f}" for one in zip(*found, strict=True))]
                )
    print(machine.table(["a message", "us", "us in the kernel", "system calls"], rows))


if __name__ == "__main__":
    main()
