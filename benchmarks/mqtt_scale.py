"""What connections, messages and workers cost: a broker, N front-end workers and up to 120,000 connections.

    .venv/bin/python -m benchmarks.mqtt_scale [--quick] [WORKERSxCONNECTIONS[xBROKERS] ...]

Without names it measures 8 workers with 1,000, 10,000, 50,000 and 120,000 connections; with 10,000 also 1, 2
and 4 workers, and 3 brokers.

Half of the connections subscribe, each to a filter of its own. The others publish: a quarter to topics that
nobody subscribes (telemetry), a quarter to those of the subscribers (commands), 20,000 messages a second (QoS
1) over all of them, so that each device sends now and then, as devices do.

Everybody connects, in stages, and memory is measured after each. Then nobody publishes for a while, and
PINGREQs are all there is. Then there is telemetry, then 400 commands a second, which reach front ends and
broker one by one, then 20,000 of them. No connection may be lost, and every message has to arrive once. The
broker stores all of them.

Load and servers share the machine, so rates and latencies are theirs together. Processor time by role and
bytes a connection are not touched by that. `python -m benchmarks --report` writes docs/explanation/scaling.md
with them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import _room, machine, peers
from benchmarks._crowd import Crowd, processes_for
from loadtest.swarm.plan import Plan


class Point(NamedTuple):
    """Say what is measured."""

    workers: int
    connections: int
    brokers: int = 1

    def __str__(self) -> str:
        brokers = "" if self.brokers == 1 else f", {self.brokers} brokers"
        return f"{self.workers} workers, {self.connections} connections{brokers}"


BY_CONNECTIONS: Final = tuple(Point(8, count) for count in (1_000, 10_000, 50_000, 120_000))
BY_WORKERS: Final = tuple(Point(count, 10_000) for count in (1, 2, 4, 8))
SEVERAL_BROKERS: Final = Point(8, 10_000, 3)
POINTS: Final = (*BY_CONNECTIONS, *BY_WORKERS[:-1], SEVERAL_BROKERS)
QUICK: Final = (Point(2, 1_000),)
RATE_PER_S: Final = 20_000
RATE_ALONE_PER_S: Final = 400
WARM_CONNECTIONS: Final = 100
"""Of each worker, before anything is measured: what is made once is there then."""
KEEP_ALIVE_S: Final = 40
IN_PROGRESS: Final = 64
TOPICS_EACH: Final = 2
P99_MARK_MS: Final = 20.0
BARE_MARK_BYTES: Final = 2.2 * 1024
SUBSCRIBED_MARK_BYTES: Final = 3.2 * 1024


class Effort(NamedTuple):
    """Say how long is measured."""

    quiet_s: float
    warmup_s: float
    seconds: float


class Servers(NamedTuple):
    """Hold the processes of the gateway."""

    broker: peers.Server
    front_ends: peers.Server
    """The workers with their supervisor."""
    registry_pid: int

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far, by role."""
        return {
            "front ends": sum(map(peers.exact_cpu_s, _family(self.front_ends.pid))),
            "broker": self.broker.exact_cpu_s(),
            "registry": peers.exact_cpu_s(self.registry_pid),
        }


class Memory(NamedTuple):
    """Hold bytes by who has them."""

    front_ends: int
    broker: int
    kernel: int

    def __sub__(self, other: Memory) -> Memory:
        return Memory(*(ours - theirs for ours, theirs in zip(self, other, strict=True)))

    def each(self, connections: int) -> dict[str, float]:
        """Bytes a connection; of the kernel its server's end, which is half where both are on one machine."""
        return {
            "front_end_bytes": self.front_ends / connections,
            "broker_bytes": self.broker / connections,
            "kernel_bytes": self.kernel / connections / 2,
        }


def measure(point: Point, effort: Effort) -> dict[str, Any]:
    """One point of the curves. With several brokers, of the first of them."""
    workers, quarter = point.workers, point.connections // 4
    with gateway(workers, brokers=point.brokers) as servers, ExitStack() as stack:
        empty_bytes = servers.front_ends.settled_memory_bytes()["anonymous"]
        broker_empty_bytes = servers.broker.settled_memory_bytes()["anonymous"]
        addresses = iter(range(0, 1_000_000, 100))

        def come(**kinds: Any) -> tuple[Crowd, dict[str, float]]:
            plan = Plan(
                port=servers.front_ends.port,
                **kinds,
                keep_alive_s=KEEP_ALIVE_S,
                connect_rate_per_s=1e6,
                connects_in_progress_max=IN_PROGRESS,
                connect_timeout_s=300,
                topics_per_publisher=TOPICS_EACH,
                window=16,
                shares_cores=True,
            )
            memory, cpu_s = memory_of(servers), servers.cpu_s()
            crowd = stack.enter_context(Crowd(plan, first_address=next(addresses)))
            seconds = crowd.connect()
            costs = spent(servers, cpu_s, crowd.connections)
            cost = (memory_of(servers) - memory).each(crowd.connections)
            return crowd, cost | {"connects_per_s": crowd.connections / seconds} | costs

        warm, _ = come(idle=WARM_CONNECTIONS * workers, client_id="warm-{n}")
        telemetry, bare = come(
            publishers=quarter, topic="tele/{n}/data", client_id="t-{n}", rate_per_s=RATE_PER_S
        )
        commands, _ = come(publishers=quarter, topic="dev/{n}/cmd", client_id="c-{n}", rate_per_s=RATE_PER_S)
        subscribers, subscribed = come(
            subscribers=TOPICS_EACH * quarter, filter="dev/{n}/cmd", client_id="dev-{n}"
        )
        alone, _ = come(
            publishers=200,
            subscribers=200 * TOPICS_EACH,
            topic="one/{n}/cmd",
            filter="one/{n}/cmd",
            client_id="one-{kind}-{n}",
            rate_per_s=RATE_ALONE_PER_S,
        )
        crowds = [warm, telemetry, commands, subscribers, alone]
        quiet = hold(servers, crowds, effort.quiet_s)
        idle = {role: quiet[f"{role.replace(' ', '_')}_cores"] for role in servers.cpu_s()}
        stored = publish(servers, telemetry, crowds, effort, idle)
        delivered_alone = publish(servers, alone, crowds, effort, idle)
        # Last, because the times of everybody are those since it was measured last.
        delivered = publish(servers, commands, crowds, effort, idle)
        at_end = memory_of(servers)
        held = sum(crowd.connections for crowd in crowds)
        wrong = faults(crowds, {commands: subscribers, alone: alone})
        times = {"delivery": subscribers.end()["delivery"], "puback": commands.end()["acknowledgement"]}
        log = servers.broker.metric("iotmq_store_appended_position_bytes")
        records = servers.broker.metric("iotmq_store_records_total")
    return {
        "workers": workers,
        "brokers": point.brokers,
        "connections": held,
        "worker_bytes": empty_bytes / workers,
        "broker_empty_bytes": broker_empty_bytes,
        "payload_bytes": telemetry.plan.payload_bytes,
        "bare": bare,
        "subscribed": subscribed,
        "quiet": quiet,
        "stored": stored,
        "delivered": delivered,
        "delivered_alone": delivered_alone,
        "latency_ms": {
            f"{name} {shown}": histogram.percentile(fraction) / 1e6
            for name, histogram in times.items()
            for shown, fraction in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
        },
        "log_bytes_a_message": log / max(1.0, records),
        "memory_at_end": {"front_ends": at_end.front_ends, "broker": at_end.broker},
        "wrong": wrong,
        "machine": machine.description(),
    }


@contextmanager
def gateway(workers: int, *, brokers: int = 1, data: Path | None = None) -> Iterator[Servers]:
    """Registry, broker and front-end workers behind one port."""
    settings = {"mqtt.workers": str(workers)}
    with peers.front_ends(1, brokers=brokers, settings=settings, data=data) as (broker, (front_ends,)):
        yield Servers(broker, front_ends, _registry_pid())


def memory_of(servers: Servers) -> Memory:
    """What everybody has once it has settled."""
    front_ends = servers.front_ends.settled_memory_bytes()["rss"]
    broker = servers.broker.settled_memory_bytes()["anonymous"]
    return Memory(front_ends, broker, kernel_bytes())


def kernel_bytes() -> int:
    """The kernel's own memory: sockets, files and what belongs to them."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Slab"].split()[0]) * 1024


def spent(servers: Servers, before: dict[str, float], count: float) -> dict[str, float]:
    """Microseconds of processor time by role for each of so many things."""
    after = servers.cpu_s()
    return {
        f"{role.replace(' ', '_')}_us": (after[role] - before[role]) / max(1.0, count) * 1e6 for role in after
    }


def hold(servers: Servers, crowds: list[Crowd], seconds: float) -> dict[str, float]:
    """Let nobody publish; what a PINGREQ costs, and how much of a core all of them take."""
    pings = -sum(crowd.say("measure")["pings"] for crowd in crowds)
    before, began_s = servers.cpu_s(), time.monotonic()
    for crowd in crowds:
        crowd.stay(seconds / len(crowds))
    after, passed_s = servers.cpu_s(), time.monotonic() - began_s
    pings += sum(crowd.say("measure")["pings"] for crowd in crowds)
    return {
        "pings_per_s": pings / passed_s,
        "front_ends_us_a_ping": (after["front ends"] - before["front ends"]) / max(1, pings) * 1e6,
    } | {f"{role.replace(' ', '_')}_cores": (after[role] - before[role]) / passed_s for role in after}


def publish(
    servers: Servers, crowd: Crowd, crowds: list[Crowd], effort: Effort, idle: dict[str, float]
) -> dict[str, float]:
    """Have a crowd publish; what a message costs beside what is spent anyway, and how many there were."""
    crowd.say("begin")
    crowd.stay(effort.warmup_s)
    for each in crowds:
        begun = each.say("measure")
    begun = crowd.say("measure")
    before, load_s, began_s = servers.cpu_s(), sum(each.cpu_s for each in crowds), time.monotonic()
    crowd.stay(effort.seconds)
    ended, seconds = crowd.say("measure"), time.monotonic() - began_s
    count = ended["acknowledged"] - begun["acknowledged"]
    before = {role: cpu_s + idle[role] * seconds for role, cpu_s in before.items()}
    costs = spent(servers, before, count)
    for each in crowds:
        each.say("stop")
    crowd.stay(10, until=partial(is_settled, crowd))
    load_cores = (sum(each.cpu_s for each in crowds) - load_s) / seconds
    return {"messages_per_s": count / seconds, "load_cores": load_cores} | costs


def faults(crowds: list[Crowd], streams: dict[Crowd, Crowd]) -> dict[str, int]:
    """What went wrong from the first connection to the last message; all 0 when nothing did.

    `streams` are those who publish, with those who get it.
    """
    wrong: Counter[str] = Counter()
    for publishers, subscribers in streams.items():
        sent = publishers.say("stop")["acknowledged"]
        subscribers.stay(10, until=partial(has_got, subscribers, sent))
        got = subscribers.counters
        wrong["messages lost"] += max(0, sent - (got["delivered"] - got["sequence_repeats"]))
    for crowd in crowds:
        counters = crowd.say("stop")
        wrong["connections lost"] += counters["lost"] + counters["failed"] + counters["refused"]
        if crowd.ends:
            print(f"  {crowd.plan.client_id}: {crowd.ends}")
        wrong["messages not acknowledged"] += counters["outstanding"]
        wrong["messages missed"] += counters["sequence_gaps"]
        wrong["messages repeated"] += counters["sequence_repeats"]
        wrong["messages for somebody else"] += counters["misdelivered"]
    return dict(wrong)


def is_settled(publishers: Crowd) -> bool:
    """Whether all that they have published is acknowledged."""
    return not publishers.say("stop")["outstanding"]


def has_got(subscribers: Crowd, count: int) -> bool:
    """Whether subscribers have so many messages now."""
    return subscribers.say("stop")["delivered"] >= count


def _registry_pid() -> int:
    """The registry that `peers.front_ends` has started: a child of this process."""
    for pid in _family(os.getpid())[1:]:
        if b"registry" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    raise peers.PeerError("the registry is not running")


def _family(pid: int) -> list[int]:
    """A process and its children."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [pid, *(int(child) for task in tasks for child in (task / "children").read_text().split())]


def told(result: dict[str, Any]) -> str:
    """The main numbers of a point, for people."""
    bare, subscribed, latency = result["bare"], result["subscribed"], result["latency_ms"]
    messages = result["delivered"]
    kernel = subscribed["kernel_bytes"]
    return (
        f"{result['workers']} workers, {result['brokers']} brokers, {result['connections']:,} connections: "
        f"{bare['front_end_bytes']:,.0f} bytes each bare (mark {BARE_MARK_BYTES:,.0f}), "
        f"{subscribed['front_end_bytes']:,.0f} with a subscription (mark {SUBSCRIBED_MARK_BYTES:,.0f}), "
        f"{subscribed['broker_bytes']:,.0f} at the broker, {kernel:,.0f} in the kernel; "
        f"{subscribed['connects_per_s']:,.0f} connections/s; "
        f"{messages['messages_per_s']:,.0f} commands/s, p99 {latency['delivery p99']:.1f} ms "
        f"(mark {P99_MARK_MS:.0f}), processor time of each: front ends {messages['front_ends_us']:.1f} us, "
        f"broker {messages['broker_us']:.1f} us; load {messages['load_cores']:.2f} cores"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "points", nargs="*", metavar="WORKERSxCONNECTIONS[xBROKERS]", type=_point, help="e.g. 8x120000"
    )
    parser.add_argument("--quick", action="store_true", help="1,000 connections at 2 workers, for a look")
    options = parser.parse_args()
    points = options.points or (QUICK if options.quick else POINTS)
    effort = Effort(3, 1, 3) if options.quick else Effort(KEEP_ALIVE_S / 2, 2, 10)
    for point in points:
        in_progress = IN_PROGRESS * processes_for(point.connections)
        wrong = _room.why_not(
            _room.Needs(point.connections, point.workers, in_progress), _room.this_machine()
        )
        if wrong:
            print(f"{point} cannot be had here:", *wrong, sep="\n  ")
            return 2
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()), flush=True)
    is_wrong = False
    for point in points:
        result = measure(point, effort)
        print(told(result), flush=True)
        print("  " + ", ".join(f"{name} {count}" for name, count in result["wrong"].items()), flush=True)
        is_wrong = is_wrong or any(result["wrong"].values())
        machine.save("mqtt_scale", {str(point): result})
    return 1 if is_wrong else 0


def _point(text: str) -> Point:
    return Point(*map(int, text.split("x")))


if __name__ == "__main__":
    sys.exit(main())
