"""What 5,000 hostile connections cost 1,000 good devices.

    .venv/bin/python -m benchmarks.mqtt_hostile [--rounds 5] [--quick]

500 devices send 1,000 messages a second (QoS 1) to 500 others. Beside them, in every second measurement, are
5,000 connections from 200 other addresses: half open, guessing passwords, sending a packet byte by byte, and
flooding (`benchmarks._hostile`). The gateway has a users file and the limits of `SETTINGS`. What counts is
the ratio of the medians of the good devices' 99th percentiles, with and without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import _swarm, machine, peers
from benchmarks._hostile import PASSWORD

GOAL_RATIO: Final = 2.0
HOSTILE: Final = 5_000
ADDRESSES: Final = 200
GOOD: Final = 500

SETTINGS: Final = {
    "mqtt.device_limits.client.messages_in_per_s": "20",
    "mqtt.device_limits.client.bytes_in_per_s": "10000",
    "mqtt.device_limits.address.connections_max": "20",
    "mqtt.device_limits.address.connects_per_s": "1",
    "mqtt.device_limits.address.connects_burst": "20",
    "mqtt.device_limits.address.messages_in_per_s": "100",
    "mqtt.device_limits.flapping.address_connects_max": "60",
    "mqtt.authentication.failures_per_minute_max": "10",
}


@contextlib.contextmanager
def hostile(port: int) -> Iterator[None]:
    """The attack, from when all have tried once."""
    command = [sys.executable, "-m", "benchmarks._hostile", str(port), str(HOSTILE), str(ADDRESSES)]
    core = machine.cores()[1]

    def pin() -> None:
        # The load that is measured comes first on their core: at any time, not only on average.
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    process = subprocess.Popen(
        command, cwd=machine.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=pin
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
        process.stdin.close()
        print("   ", json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


def good(port: int, seconds: float) -> dict[str, Any]:
    """Publisher to subscriber."""
    report = _swarm.publish(
        port,
        *("--publishers", str(GOOD), "--subscribers", str(GOOD), "--qos", "1"),
        *("--filter", "devices/good/{n}", "--topic", "devices/good/{n}"),
        *("--username", "good", "--password", "good"),
        *(word for last in range(1, ADDRESSES + 1) for word in ("--source-address", f"127.2.0.{last}")),
        *("--rate", "1000", "--seconds", str(seconds), "--warmup", "1", "--deliveries-per-message", "1"),
        timeout_s=seconds + 90,
        core=machine.cores()[1],
    )
    if not report["is_drained"]:
        raise _swarm.LoadError(f"not everything was delivered: {report['counters']}")
    return report


def add_users(file: Path) -> None:
    for name, password in (("good", "good"), ("hostile", PASSWORD.decode())):
        subprocess.run(
            [
                *(sys.executable, "-m", "iotmq", "users", "add", name),
                *("--set", f"mqtt.authentication.users_file={file}", "--password-file", "-"),
            ],
            input=f"{password}\n",
            text=True,
            check=True,
            cwd=machine.ROOT,
            stdout=subprocess.DEVNULL,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured each time")
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    measured: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as directory:
        users = Path(directory, "users")
        add_users(users)
        settings = SETTINGS | {"mqtt.authentication.users_file": str(users)}
        with peers.iotmq(core=machine.cores()[0], settings=settings) as server:
            good(server.port, 1.0)
            for number in range(rounds):
                for name in measured:
                    with hostile(server.port) if name == "with" else contextlib.nullcontext():
                        cpu_s = server.cpu_s()
                        report = good(server.port, options.seconds)
                        cpu_s = server.cpu_s() - cpu_s
                        connections = server.metric("iotmq_mqtt_connections")
                    delivery = report["latencies"]["delivery"]
                    measured[name].append(float(delivery["p99_ns"]) / 1e3)
                    print(
                        f"{number + 1}/{rounds} {name}: p50 {delivery['p50_ns'] / 1e3:,.0f} us, "
                        f"p99 {delivery['p99_ns'] / 1e3:,.0f} us, {cpu_s:.1f} s of the server's processor, "
                        f"{connections:,.0f} connections",
                        flush=True,
                    )
    ratio = median(measured["with"]) / median(measured["without"])
    print(
        f"p99 {median(measured['with']):,.0f} us with {HOSTILE:,} hostile connections, "
        f"{median(measured['without']):,.0f} us without: {ratio:.2f}x (goal {GOAL_RATIO:.0f}x)"
    )
    machine.save("mqtt_hostile", {"p99_us": measured, "settings": SETTINGS, "machine": machine.description()})


if __name__ == "__main__":
    main()
