"""A million kept sessions of which 100,000 are connected: what each costs, and messages for them.

    .venv/bin/python -m benchmarks.mqtt_sessions_connected [--sessions 1000000] [--connected 100000]
        [--workers 8] [--quick]

The sessions are made in the log beforehand, as `mqtt_sessions` makes them (a filter `dev/ID/cmd/#` each). The
broker starts with them. Then devices come back to some of them, over several front-end workers, and have to
find their session. Then 20,000 messages a second (QoS 1) go to those, and some to devices that are away.
Every message for a connected device has to arrive once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import _room, machine
from benchmarks._crowd import Crowd, processes_for
from benchmarks.mqtt_scale import (
    IN_PROGRESS,
    Servers,
    gateway,
    has_got,
    is_settled,
    memory_of,
    spent,
)
from benchmarks.mqtt_sessions import make_sessions, open_store
from loadtest.swarm.plan import Plan

FIRST: Final = 1_000_000
"""Number of the first session: all have seven digits, in client ids as in topics."""
TOPICS_EACH: Final = 100
RATE_PER_S: Final = 20_000
AWAY_RATE_PER_S: Final = 1_000
WARMUP_S: Final = 2.0
SECONDS: Final = 10.0


def measure(directory: Path, sessions: int, connected: int, workers: int) -> dict[str, Any]:
    """Start with the sessions, have devices return, send to them."""
    began_s = time.monotonic()
    with gateway(workers, data=directory) as servers:
        start_s = time.monotonic() - began_s
        empty = memory_of(servers)
        before = servers.cpu_s()
        with Crowd(_plan(servers, subscribers=connected), first_address=0) as devices:
            back_s = devices.connect()
            costs = spent(servers, before, connected)
            grown = (memory_of(servers) - empty).each(connected)
            resumed = devices.counters["resumed"]
            messages, times, wrong = _send(servers, devices, sessions, connected)
        at_end = memory_of(servers)
    return {
        "sessions": sessions,
        "connected": connected,
        "workers": workers,
        "start_s": start_s,
        "broker_bytes_a_session": empty.broker / sessions,
        "back_per_s": connected / back_s,
        "back": grown | costs,
        "messages": messages,
        "latency_ms": times,
        "memory_at_end": {"front_ends": at_end.front_ends, "broker": at_end.broker},
        "wrong": {"without their session": connected - resumed} | wrong,
        "machine": machine.description(),
    }


def _plan(servers: Servers, **kinds: Any) -> Plan:
    return Plan(
        port=servers.front_ends.port,
        **{"number_base": FIRST} | kinds,
        client_id="device-{n}" if "subscribers" in kinds else "service-{n}",
        filter="dev/{n}/cmd/#",
        topic="dev/{n}/cmd/run",
        keeps_sessions=True,
        topics_per_publisher=TOPICS_EACH,
        window=100,
        shares_cores=True,
        connect_rate_per_s=1e6,
        connects_in_progress_max=IN_PROGRESS,
        connect_timeout_s=300,
    )


def _send(
    servers: Servers, devices: Crowd, sessions: int, connected: int
) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
    """Messages to all that are connected, and some to others."""
    first = FIRST // TOPICS_EACH
    to_here = _plan(servers, publishers=connected // TOPICS_EACH, number_base=first, rate_per_s=RATE_PER_S)
    to_away = _plan(
        servers,
        publishers=(sessions - connected) // TOPICS_EACH,
        number_base=first + connected // TOPICS_EACH,
        rate_per_s=AWAY_RATE_PER_S,
    )
    with Crowd(to_here, first_address=200) as here, Crowd(to_away, first_address=300) as away:
        crowds = [here, away]
        for crowd in crowds:
            crowd.connect()
        for crowd in crowds:
            crowd.say("begin")
        here.stay(WARMUP_S)
        devices.say("measure")
        begun = {crowd: crowd.say("measure")["acknowledged"] for crowd in crowds}
        before, began_s = servers.cpu_s(), time.monotonic()
        here.stay(SECONDS)
        count = sum(crowd.say("measure")["acknowledged"] - begun[crowd] for crowd in crowds)
        seconds, costs = time.monotonic() - began_s, spent(servers, before, count)
        for crowd in crowds:
            crowd.say("stop")
            crowd.stay(10, until=partial(is_settled, crowd))
        sent = here.say("stop")["acknowledged"]
        devices.stay(10, until=partial(has_got, devices, sent))
        lost = sum(crowd.counters["lost"] for crowd in crowds)
        unacknowledged = sum(crowd.counters["outstanding"] for crowd in crowds)
    got = devices.counters
    times = devices.end()["delivery"]
    wrong = {
        "messages not acknowledged": unacknowledged,
        "messages lost": max(0, sent - (got["delivered"] - got["sequence_repeats"])),
        "messages repeated": got["sequence_repeats"],
        "messages for somebody else": got["misdelivered"],
        "connections lost": got["lost"] + lost,
    }
    shown = {"p50": times.percentile(0.5) / 1e6, "p99": times.percentile(0.99) / 1e6}
    return {"messages_per_s": count / seconds} | costs, shown, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--connected", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="20,000 sessions, 2,000 connected, 2 workers")
    options = parser.parse_args()
    sessions, connected, workers = options.sessions, options.connected, options.workers
    if options.quick:
        sessions, connected, workers = 20_000, 2_000, 2
    needs = _room.Needs(connected, workers, IN_PROGRESS * processes_for(connected))
    if wrong_here := _room.why_not(needs, _room.this_machine()):
        print(f"{connected:,} connections cannot be had here:", *wrong_here, sep="\n  ")
        return 2
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()), flush=True)
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-sessions-", dir=machine.RESULTS) as directory:
        began_s = time.monotonic()
        store, _ = open_store(Path(directory))
        make_sessions(store, sessions, first=FIRST)
        store.close()
        print(f"{sessions:,} sessions made in {time.monotonic() - began_s:.0f} s", flush=True)
        result = measure(Path(directory), sessions, connected, workers)
    back, messages, latency = result["back"], result["messages"], result["latency_ms"]
    print(
        f"start with them {result['start_s']:.1f} s, {result['broker_bytes_a_session']:.0f} bytes of the "
        f"broker a session; {connected:,} come back at {result['back_per_s']:,.0f}/s to {workers} workers: "
        f"{back['front_end_bytes']:,.0f} bytes each in the front end, {back['broker_bytes']:,.0f} more at "
        f"the broker, {back['kernel_bytes']:,.0f} in the kernel; processor time: front ends "
        f"{back['front_ends_us']:.0f} us, broker {back['broker_us']:.0f} us"
    )
    print(
        f"{messages['messages_per_s']:,.0f} messages/s: p50 {latency['p50']:.1f} ms, "
        f"p99 {latency['p99']:.1f} ms; processor time of each: front ends "
        f"{messages['front_ends_us']:.1f} us, broker {messages['broker_us']:.1f} us"
    )
    print(", ".join(f"{name} {count}" for name, count in result["wrong"].items()))
    machine.save("mqtt_sessions_connected", {f"{sessions} sessions, {connected} connected": result})
    return 1 if any(result["wrong"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
