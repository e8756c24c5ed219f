"""What an empty gateway takes of memory, and what processes cost to start.

    .venv/bin/python -m benchmarks.gateway_empty [--rounds 5] [--quick]

The gateway has all roles in one process and an empty data directory. Its memory is read once it has
settled: *resident* is all of it, *anonymous* is without the pages of program files and libraries, which
other processes share. A start's processor time is what the process has used when its MQTT port accepts
connections.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks import machine, peers

GOAL_BYTES = 60_000_000
COMMANDS: tuple[tuple[str, ...], ...] = (("--help",), ("pub", "--help"), ("config", "check"))


def gateway() -> dict[str, float]:
    """Memory in bytes, and the processor time of the start."""
    core, _ = machine.cores()
    with peers.iotmq(core=core) as server:
        start_s = server.exact_cpu_s()
        memory = server.settled_memory_bytes()
    return {"resident_bytes": memory["rss"], "anonymous_bytes": memory["anonymous"], "start_s": start_s}


def roles() -> dict[str, float]:
    """The same of the broker and a front end as processes of their own."""
    with peers.front_ends(1) as (broker, (front_end,)):
        found: dict[str, float] = {}
        for name, server in (("broker", broker), ("front end", front_end)):
            found[f"{name}: start_s"] = server.exact_cpu_s()
            found[f"{name}: resident_bytes"] = server.settled_memory_bytes()["rss"]
        return found


def commands() -> dict[str, float]:
    """Processor time of short commands."""
    return {" ".join(words): _command_s(words) for words in COMMANDS}


def _command_s(words: Sequence[str]) -> float:
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "iotmq", *words], cwd=machine.ROOT, stdout=subprocess.DEVNULL, check=True
    )
    after = os.times()
    return sum(getattr(after, name) - getattr(before, name) for name in ("children_user", "children_system"))


def medians(measure: Callable[[], dict[str, float]], rounds: int) -> dict[str, float]:
    found = [measure() for _ in range(rounds)]
    return {name: median(one[name] for one in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    # What the first start compiles is there for the others, as it is after an installation.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    gateway()
    about = machine.description()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    results = {name: medians(measure, rounds) for name, measure in MEASURES.items()}
    for name, numbers in results.items():
        for what, number in numbers.items():
            text = f"{number / 1e6:.1f} MB" if what.endswith("_bytes") else f"{number * 1000:.0f} ms"
            goal = (
                f" (goal {GOAL_BYTES / 1e6:.0f} MB)" if (name, what) == ("gateway", "resident_bytes") else ""
            )
            print(f"{name}: {what.rpartition('_')[0] or what} {text}{goal}")
    machine.save("gateway_empty", results | {"machine": about})


MEASURES: dict[str, Callable[[], dict[str, float]]] = {
    "gateway": gateway,
    "roles": roles,
    "commands": commands,
}


if __name__ == "__main__":
    main()
