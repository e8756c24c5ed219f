"""What a connected device with a kept session and one subscription costs the memory of its front end.

    .venv/bin/python -m benchmarks.mqtt_idle_session [--connections 10000] [--quick]

The front end is a process of its own. A hundred connections are there before; counted is what the others add,
once memory has settled, in the front end and at the broker.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from benchmarks import _swarm, machine, peers

GOAL_BYTES = 3 * 1024
BASE_CONNECTIONS = 100


def added_bytes(connections: int, *, is_kept: bool) -> tuple[float, float]:
    """Bytes of each connection in the front end (resident), and at the broker (not files)."""
    kind = ["--keep-sessions"] if is_kept else []

    def arguments(first: int, count: int) -> list[str]:
        return [
            *("--subscribers", str(count), "--number-base", str(first), "--filter", "dev/{n}/cmd/#"),
            *("--qos", "1", "--connect-rate", "5000", "--connect-timeout", "120", *kind),
        ]

    with peers.front_ends(1) as (broker, (front_end,)), ExitStack() as stack:
        stack.enter_context(_swarm.holding(front_end.port, *arguments(0, BASE_CONNECTIONS))).ready()
        before, broker_before = front_end.settled_memory_bytes(), broker.settled_memory_bytes()
        stack.enter_context(_swarm.holding(front_end.port, *arguments(BASE_CONNECTIONS, connections))).ready()
        after, broker_after = front_end.settled_memory_bytes(), broker.settled_memory_bytes()
    return (
        (after["rss"] - before["rss"]) / connections,
        (broker_after["anonymous"] - broker_before["anonymous"]) / connections,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="3,000 connections, for a look")
    options = parser.parse_args()
    connections = 3_000 if options.quick else options.connections
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    results = {}
    for name, is_kept in (("kept session", True), ("session of the connection", False)):
        front_end, broker = added_bytes(connections, is_kept=is_kept)
        goal = f" (goal {GOAL_BYTES:,})" if is_kept else ""
        print(
            f"{name}, one subscription, {connections:,} idle connections: {front_end:,.0f} bytes each in the "
            f"front end{goal}, {broker:,.0f} at the broker"
        )
        results[name] = {"front_end_bytes": front_end, "broker_bytes": broker}
    machine.save("mqtt_idle_session", results | {"machine": machine.description()})


if __name__ == "__main__":
    main()
