"""What replication costs: one broker alone beside three members, in alternating rounds on one machine.

    .venv/bin/python -m benchmarks.replication [--rounds 5] [--quick]

Each side has a registry, a front end and, as processes of their own, one broker or three members with an
etcd. The load generator shares the cores with all of them, so three members have a third of the processor
that one has: the number by the processor second of the master is what a machine per member would see.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks import _swarm, machine

sys.path.insert(0, str(machine.ROOT / "deploy" / "cluster"))
from replicated_cluster import Part, ReplicatedCluster

PORT: Final = 22_000
SIDES: Final = {"one broker": 1, "three members": 3}
Work: TypeAlias = Callable[[ReplicatedCluster, Part, float], dict[str, float]]

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(part: Part) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{part.process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def throughput(cluster: ReplicatedCluster, master: Part, seconds: float) -> dict[str, float]:
    """QoS 1 from 100 devices with window 100."""
    before_s = cpu_s(master)
    report = publish(cluster, seconds, "--window", "100")
    count = report["counters"]["acknowledged"]
    return {
        "acknowledged/s": report["acknowledged_per_s"],
        "acknowledged per processor second of the master": count / (cpu_s(master) - before_s),
    }


def latency(cluster: ReplicatedCluster, master: Part, seconds: float) -> dict[str, float]:
    """PUBACK at 5,000 messages/s from 100 devices."""
    report = publish(cluster, seconds, "--rate", "5000", "--shares-cores")
    summary = report["latencies"]["acknowledgement"]
    return {"PUBACK p50 us": summary["p50_ns"] / 1e3, "PUBACK p99 us": summary["p99_ns"] / 1e3}


WORKS: Final[tuple[Work, ...]] = (latency, throughput)


def publish(cluster: ReplicatedCluster, seconds: float, *more: str) -> dict[str, Any]:
    """One run of 100 devices."""
    words = ("--publishers", "100", "--qos", "1", "--seconds", str(seconds), "--warmup", "1.0", *more)
    return _swarm.publish(cluster.mqtt_ports[0], *words, timeout_s=seconds + 60)


def one_round(members: int, seconds: float, number: int) -> dict[str, float]:
    """Start a cluster, measure, and end it."""
    directory = machine.ROOT / "build" / "benchmarks" / f"replication-{os.getpid()}-{number}"
    try:
        with ReplicatedCluster(directory, port=PORT, members=members, front_ends=1) as cluster:
            if members > 1:
                cluster.wait_in_sync()
            master = cluster.members[(cluster.master() or 1) if members > 1 else 1]
            found: dict[str, float] = {}
            for work in WORKS:
                found |= work(cluster, master, seconds)
                time.sleep(1.0)
            return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser(description="What replication costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    rounds, seconds = (1, 2.0) if options.quick else (options.rounds, options.seconds)
    results: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side, members in SIDES.items():
            results[side].append(one_round(members, seconds, number))
            print(f"round {number + 1}, {side}: {results[side][-1]}", flush=True)
    medians = {
        side: {name: median(found[name] for found in each) for name in each[0]}
        for side, each in results.items()
    }
    one, three = medians.values()
    for name in one:
        print(f"{name}: {one[name]:,.0f} -> {three[name]:,.0f}, ratio {three[name] / one[name]:.2f}")
    machine.save("replication", {"rounds": rounds, "results": results, "medians": medians})
    return 0


if __name__ == "__main__":
    sys.exit(main())
