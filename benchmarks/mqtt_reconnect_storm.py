"""A reconnect storm: all devices with kept sessions come back at once, to the other one of two front ends.

    .venv/bin/python -m benchmarks.mqtt_reconnect_storm [--sessions 20000] [--workers 1] [--quick]

A registry, a broker and two front ends in processes of their own, each with so many workers, and processes
of devices for each. Each device has one filter of its own and goes; then it is sent one message (QoS 1); then
all of them connect as fast as they are let in, each to the front end it was not at before. Counted is from
the first CONNECT to the last CONNACK. Every device has to find its session and get its message once, and no
other.

`--sessions 100000 --workers 4` is the storm of docs/explanation/scaling.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import Any

from benchmarks import _room, _swarm, machine, peers
from benchmarks._crowd import address, processes_for

GOAL_PER_S = 10_000
IN_PROGRESS = 256
"""Of a process of devices."""
TOPICS_PER_PUBLISHER = 1_000
DELIVERY_TIMEOUT_S = 60.0
LEAVING_TIMEOUT_S = 120.0


def parts_of(sessions: int) -> int:
    """How many processes of devices there are: as many for each of the two front ends."""
    return 2 * processes_for(sessions // 2)


def devices(sessions: int, part: int) -> list[str]:
    """What one of the processes of devices is told."""
    first, end = (sessions * number // parts_of(sessions) for number in (part, part + 1))
    return [
        *("--subscribers", str(end - first), "--number-base", str(first), "--filter", "dev/{n}/cmd"),
        *("--keep-sessions", "--qos", "1", "--topics-per-publisher", str(TOPICS_PER_PUBLISHER)),
        *(
            "--connect-rate",
            "1000000",
            "--connects-in-progress",
            str(IN_PROGRESS),
            "--connect-timeout",
            "300",
        ),
        *("--source-address", address(part)),
    ]


def holdings(stack: ExitStack, front_ends: list[peers.Server], sessions: int) -> list[_swarm.Holding]:
    """All processes of devices, in turn at one front end and at the other."""
    return [
        stack.enter_context(_swarm.holding(front_ends[part % 2].port, *devices(sessions, part)))
        for part in range(parts_of(sessions))
    ]


def make_sessions(broker: peers.Server, front_ends: list[peers.Server], sessions: int) -> None:
    """Connect, subscribe, go; and wait until the broker knows that everybody has gone."""
    with ExitStack() as stack:
        held = holdings(stack, front_ends, sessions)
        for one in held:
            one.ready()
        for one in held:
            one.end()
    deadline = time.monotonic() + LEAVING_TIMEOUT_S
    changes = -1.0
    while (now := broker.metric("iotmq_broker_session_records_total")) != changes:
        if time.monotonic() > deadline:
            raise _swarm.LoadError(f"sessions still change {LEAVING_TIMEOUT_S:.0f} s after all have gone")
        changes = now
        time.sleep(1.0)


def send_one_each(front_end: peers.Server, sessions: int) -> None:
    report = _swarm.publish(
        front_end.port,
        *("--publishers", str(sessions // TOPICS_PER_PUBLISHER), "--topic", "dev/{n}/cmd", "--qos", "1"),
        *("--topics-per-publisher", str(TOPICS_PER_PUBLISHER), "--messages", str(sessions)),
        *("--rate", str(sessions), "--seconds", "60", "--warmup", "0"),
        timeout_s=120,
    )
    if report["counters"]["acknowledged"] != sessions:
        raise _swarm.LoadError(f"not all messages were taken: {report['counters']}")


def storm(front_ends: list[peers.Server], sessions: int) -> tuple[float, dict[str, int]]:
    """Seconds until all are back, and the counters of all once everything is delivered, or time is up."""
    with ExitStack() as stack:
        held = holdings(stack, front_ends[::-1], sessions)
        ready = [one.ready() for one in held]
        seconds = (max(one["ready_ns"] for one in ready) - min(one["began_ns"] for one in ready)) / 1e9
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        while True:
            counters = added([one.report() for one in held])
            if counters["delivered"] >= sessions or time.monotonic() > deadline:
                break
        # What comes twice would come now.
        time.sleep(1.0)
        return seconds, added([one.end() for one in held])


def added(reports: list[dict[str, Any]]) -> dict[str, int]:
    """The counters of several processes as one's."""
    return {name: sum(one["counters"][name] for one in reports) for name in reports[0]["counters"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=20_000, help="a multiple of 2,000")
    parser.add_argument("--workers", type=int, default=1, help="of each of the two front ends (1)")
    parser.add_argument("--quick", action="store_true", help="4,000 sessions, for a look")
    options = parser.parse_args()
    sessions, workers = 4_000 if options.quick else options.sessions, options.workers
    needs = _room.Needs(sessions, 2 * workers, IN_PROGRESS * parts_of(sessions))
    if wrong_here := _room.why_not(needs, _room.this_machine()):
        print(f"a storm of {sessions:,} sessions cannot be had here:", *wrong_here, sep="\n  ")
        return 2
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    with peers.front_ends(2, settings={"mqtt.workers": str(workers)}) as (broker, front_ends):
        make_sessions(broker, front_ends, sessions)
        send_one_each(front_ends[0], sessions)
        servers = [broker, *front_ends]
        before = [server.cpu_s() for server in servers]
        seconds, counters = storm(front_ends, sessions)
        costs = [
            f"{server.name} {(server.cpu_s() - cpu_s) / sessions * 1e6:.0f} us"
            for server, cpu_s in zip(servers, before, strict=True)
        ]
    wrong = {
        "without their session": sessions - counters["resumed"],
        "messages lost": sessions - counters["delivered"] + counters["sequence_repeats"],
        "messages repeated": counters["sequence_repeats"],
        "messages for somebody else": counters["misdelivered"],
        "connections lost": counters["lost"],
    }
    rate = sessions / seconds
    print(
        f"{sessions:,} sessions back in {seconds:.2f} s: {rate:,.0f} a second (goal {GOAL_PER_S:,}); "
        f"processor time a session, its message included: {', '.join(costs)}"
    )
    print(", ".join(f"{name} {count}" for name, count in wrong.items()))
    results = {"sessions": sessions, "per_s": rate, "wrong": wrong, "machine": machine.description()}
    name = "storm" if workers == 1 else f"storm, {2 * workers} workers"
    machine.save("mqtt_reconnect_storm", {name: results})
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
