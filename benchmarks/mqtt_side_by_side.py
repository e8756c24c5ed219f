"""MQTT work on other brokers and on iotmq in turns: the server on one core, the load on the other.

Mosquitto in its fastest setting does all scenarios, the other peers those that tell most, each in its fastest
setting and in its durable one. Beside a durable peer iotmq syncs before it acknowledges. `python -m
benchmarks.peers` fetches the peers; those that are not there are left out.

Each round starts a fresh server, warms it up, measures and stops it; rounds alternate between the sides so
that a machine that is slow for a while is slow for both. Printed: the median of each side, and the ratio of
the medians with the least and the most that any two neighbouring rounds gave.
"""

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import _swarm, machine, peers
from benchmarks._swarm import LoadError
from benchmarks.peers.mqtt import MOSQUITTO, PEERS

OURS: Final = "iotmq"
BASE_CONNECTIONS: Final = 100
FAN_OUT: Final = 1_000
DURABLE_PAIRS: Final = (
    *("--publishers", "100", "--subscribers", "100", "--qos", "1", "--window", "100", "--keep-sessions"),
    *("--filter", "devices/{n}/telemetry", "--deliveries-per-message", "1"),
    # 10,000 messages are on the way, which is nothing but to servers that sync for each.
    *("--drain-timeout", "60"),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often."""

    rounds: int
    seconds: float
    warmup_s: float
    latency_seconds: float
    idle_connections: int
    idle_rounds: int
    warm_gib: float
    """Page cache to warm before iotmq writes its log: about what it writes in a round."""

    def longer(self) -> "Effort":
        """For servers that sync: some take seconds until the first of 10,000 messages is acknowledged."""
        return replace(self, seconds=3 * self.seconds, warmup_s=3 * self.warmup_s)


THOROUGH: Final = Effort(
    rounds=3, seconds=5, warmup_s=1.5, latency_seconds=10, idle_connections=15_000, idle_rounds=2, warm_gib=5
)
QUICK: Final = Effort(
    rounds=1, seconds=1.5, warmup_s=0.5, latency_seconds=3, idle_connections=2_000, idle_rounds=1, warm_gib=2
)

# What one round measured, by the names of the scenario's columns.
Round = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the comparison. ``first`` is the value compared, ``goal`` what the ratio is to reach."""

    title: str
    measure: Callable[[peers.Server, Effort], Round]
    first: str
    is_more_better: bool
    goal: str
    is_idle: bool = False
    is_websocket: bool = False
    is_mqtt5: bool = False
    stores_much: bool = False
    """Fills memory with a log as fast as it can, which wants memory that the machine really has."""


class Pair(NamedTuple):
    """A peer in one setting, beside iotmq."""

    peer: peers.Peer
    setting: str

    @property
    def is_first(self) -> bool:
        """The one that does everything."""
        return self == (MOSQUITTO, peers.FAST)

    @property
    def scenarios(self) -> list[str]:
        """What it does when nothing else is asked for."""
        if self.is_first:
            return list(SCENARIOS)
        return list(FAST_SCENARIOS if self.setting == peers.FAST else DURABLE_SCENARIOS)

    def key(self, scenario: str) -> str:
        """Where the results are kept."""
        return scenario if self.is_first else f"{scenario} beside {self.peer.name}, {self.setting}"

    def refusal(self, scenario: Scenario) -> str:
        """Why it cannot do this."""
        if scenario.is_websocket and not self.peer.has_websocket:
            return "it has no WebSockets"
        return "it has no MQTT 5" if scenario.is_mqtt5 and "5" not in self.peer.versions else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the scenarios asked for; 0 when all of them could be measured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for name in options.scenarios:
        if name not in SCENARIOS:
            parser.error(f"unknown scenario {name}: one of {', '.join(SCENARIOS)}")
    # Unwinds what is running: no server may outlive the comparison.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    effort = QUICK if options.quick else THOROUGH
    if options.warm_gib is not None:
        effort = replace(effort, warm_gib=options.warm_gib)
    results: dict[str, Any] = {}
    tables: dict[Pair, list[list[str]]] = {}
    failures: list[str] = []
    about = machine.description()
    for pair in _pairs(options):
        pair_effort = effort.longer() if pair.setting == peers.DURABLE else effort
        for name in options.scenarios or pair.scenarios:
            try:
                rounds = _play(name, pair, pair_effort, options)
            except (peers.PeerError, LoadError) as error:
                failures.append(f"{pair.key(name)}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
                continue
            summary = _summary(name, rounds)
            results[pair.key(name)] = summary | {
                "machine": about,
                "effort": "quick" if options.quick else "thorough",
                "setting": pair.peer.settings[pair.setting],
            }
            tables.setdefault(pair, []).extend(_rows(name, summary, pair.peer.name))
            machine.save("mqtt_side_by_side", results)
    for pair, rows in tables.items():
        print(f"\n{pair.peer.title}, {pair.setting}: {pair.peer.settings[pair.setting]}\n")
        print(machine.table(["work", pair.peer.name, OURS, "ratio", "of rounds", "goal"], rows))
    print(f"\n{about['processor']}, {about['cores']} cores; {machine.RESULTS / 'mqtt_side_by_side.json'}")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _pairs(options: argparse.Namespace) -> Iterator[Pair]:
    if options.peer:
        wanted = [PEERS[name] for name in options.peer]
    elif options.side == [OURS]:
        wanted = [MOSQUITTO]
    else:
        wanted = list(peers.those_there(PEERS.values()))
    for peer in wanted:
        settings = options.setting or ([peers.FAST] if options.side == [OURS] else peers.SETTINGS)
        yield from (Pair(peer, setting) for setting in settings if setting in peer.settings)


# Scenarios


def acknowledged(window: int, *more: str) -> Callable[[peers.Server, Effort], Round]:
    """QoS 1 from 100 connections, each with this many messages on the way."""

    def measure(server: peers.Server, effort: Effort) -> Round:
        report = _publish(
            server,
            effort.seconds,
            effort.warmup_s,
            "--publishers",
            "100",
            "--window",
            str(window),
            "--qos",
            "1",
            *more,
        )
        return {"messages_per_s": report["acknowledged_per_s"]} | _costs(report, "acknowledged")

    return measure


def delivered(lead_max: int) -> Callable[[peers.Server, Effort], Round]:
    """QoS 0 from 100 publishers to one subscriber: a flood, or each at most so many messages ahead."""

    def measure(server: peers.Server, effort: Effort) -> Round:
        report = _publish(
            server,
            effort.seconds,
            effort.warmup_s,
            *("--publishers", "100", "--subscribers", "1", "--qos", "0", "--lead", str(lead_max)),
        )
        published = report["counters"]["published"]
        return {
            "messages_per_s": report["delivered_per_s"],
            "delivered_share": report["counters"]["delivered"] / published if published else 0.0,
        } | _costs(report, "delivered")

    return measure


def fan_out(lead_max: int, *more: str) -> Callable[[peers.Server, Effort], Round]:
    """QoS 0 from one publisher, so many messages ahead, to 1,000 subscribers of one topic."""

    def measure(server: peers.Server, effort: Effort) -> Round:
        report = _publish(
            server,
            effort.seconds,
            effort.warmup_s,
            *("--publishers", "1", "--subscribers", str(FAN_OUT), "--qos", "0", "--lead", str(lead_max)),
            *("--topic", "news", "--filter", "news", "--deliveries-per-message", str(FAN_OUT)),
            *more,
        )
        due = report["counters"]["published"] * FAN_OUT
        return {
            "deliveries_per_s": report["delivered_per_s"],
            "delivered_share": report["counters"]["delivered"] / due if due else 0.0,
        } | _costs(report, "delivered")

    return measure


V5: Final = ("--mqtt5", "--three-properties")


def durable(server: peers.Server, effort: Effort) -> Round:
    """QoS 1 from 100 publishers to 100 subscribers with sessions that are kept, a topic for each pair.

    A publisher is at most 100 messages ahead of its subscriber, so as much goes out as comes in.
    """
    report = _publish(server, effort.seconds, effort.warmup_s, *DURABLE_PAIRS, "--lead", "100")
    if not report["is_drained"]:
        raise LoadError(f"{server.name} did not deliver everything: {report['counters']}")
    return {
        "in_and_out_per_s": report["acknowledged_per_s"] + report["delivered_per_s"],
        "delivered_per_s": report["delivered_per_s"],
    } | _costs(report, "delivered")


def latency(server: peers.Server, effort: Effort) -> Round:
    """5,000 messages/s QoS 1 from 100 publishers, due at fixed times, to one subscriber."""
    return _latency(server, effort, "--publishers", "100", "--subscribers", "1", "--qos", "1")


def command_latency(server: peers.Server, effort: Effort) -> Round:
    """5,000 commands/s QoS 1 to 1,000 connected devices, whose sessions are kept, from 10 services."""
    return _latency(
        server,
        effort,
        *("--publishers", "10", "--subscribers", "1000", "--qos", "1", "--keep-sessions"),
        *("--topics-per-publisher", "100", "--topic", "dev/{n}/cmd", "--filter", "dev/{n}/cmd"),
        *("--deliveries-per-message", "1"),
    )


def _latency(server: peers.Server, effort: Effort, *who: str) -> Round:
    report = _publish(server, effort.latency_seconds, max(effort.warmup_s, 1.0), *who, "--rate", "5000")
    summary = report["latencies"]["delivery"]
    if not report["is_drained"]:
        raise LoadError(f"{server.name} did not deliver everything: {report['counters']}")
    return {
        "mean_us": summary["mean_ns"] / 1e3,
        "p99_us": summary["p99_ns"] / 1e3,
        "p50_us": summary["p50_ns"] / 1e3,
        "p999_us": summary["p999_ns"] / 1e3,
        "max_us": summary["max_ns"] / 1e3,
        "sender_delay_p99_us": report["latencies"]["send_delay"]["p99_ns"] / 1e3,
        "violations": report["violations"],
    }


def idle(kind: str, *more: str) -> Callable[[peers.Server, Effort], Round]:
    """Connections that do nothing: what each adds to the memory of a server that has some already."""

    def measure(server: peers.Server, effort: Effort) -> Round:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_holding(server, kind, BASE_CONNECTIONS, 0, *more))
            before = server.settled_memory_bytes()
            opened, step = BASE_CONNECTIONS, 5_000
            while opened < effort.idle_connections + BASE_CONNECTIONS:
                count = min(step, effort.idle_connections + BASE_CONNECTIONS - opened)
                stack.enter_context(_holding(server, kind, count, opened, *more))
                opened += count
            after = server.settled_memory_bytes()
        added = opened - BASE_CONNECTIONS
        return {
            "bytes_per_connection": (after["rss"] - before["rss"]) / added,
            "anonymous_bytes_per_connection": (after["anonymous"] - before["anonymous"]) / added,
            "base_rss_mb": before["rss"] / 1e6,
            "connections": added,
        }

    return measure


SCENARIOS: Final[dict[str, Scenario]] = {
    "qos1_window100": Scenario(
        "QoS 1, 100 connections, window 100, 100 bytes: acknowledged/s",
        acknowledged(100),
        "messages_per_s",
        True,
        ">= 5x",
        stores_much=True,
    ),
    "qos1_window1": Scenario("the same with window 1", acknowledged(1), "messages_per_s", True, ">= 1x"),
    "qos1_window100_v5": Scenario(
        "QoS 1, window 100, MQTT 5: acknowledged/s",
        acknowledged(100, "--mqtt5"),
        "messages_per_s",
        True,
        ">= 5x",
        stores_much=True,
        is_mqtt5=True,
    ),
    "qos1_window100_v5_properties": Scenario(
        "the same with three properties",
        acknowledged(100, *V5),
        "messages_per_s",
        True,
        "",
        stores_much=True,
        is_mqtt5=True,
    ),
    "qos1_window100_websocket": Scenario(
        "QoS 1, window 100, in WebSockets, a frame for each message: acknowledged/s",
        acknowledged(100, "--websocket"),
        "messages_per_s",
        True,
        ">= 3x",
        is_websocket=True,
        stores_much=True,
    ),
    "qos1_window1_websocket": Scenario(
        "the same in WebSockets with window 1",
        acknowledged(1, "--websocket"),
        "messages_per_s",
        True,
        "",
        is_websocket=True,
    ),
    "idle_websocket": Scenario(
        "idle WebSocket: bytes of process memory",
        idle("--idle", "--websocket"),
        "bytes_per_connection",
        False,
        "",
        is_idle=True,
        is_websocket=True,
    ),
    "qos0_fan_in": Scenario(
        "QoS 0, 100 publishers flood 1 subscriber: delivered/s",
        delivered(0),
        "messages_per_s",
        True,
        ">= 2x",
        stores_much=True,
    ),
    "qos0_fan_in_paced": Scenario(
        "the same, each at most 200 messages ahead",
        delivered(200),
        "messages_per_s",
        True,
        ">= 2x",
        stores_much=True,
    ),
    "fan_out": Scenario(
        "QoS 0, 1 publisher to 1,000 subscribers, 50 messages under way: deliveries/s",
        fan_out(50),
        "deliveries_per_s",
        True,
        ">= 3x",
    ),
    "fan_out_single": Scenario("the same, 1 message under way", fan_out(1), "deliveries_per_s", True, ""),
    "fan_out_v5": Scenario(
        "the same 50 under way, MQTT 5 with three properties",
        fan_out(50, *V5),
        "deliveries_per_s",
        True,
        ">= 3x",
        is_mqtt5=True,
    ),
    "durable": Scenario(
        "QoS 1, 100 publishers to 100 kept sessions, a topic each: in + out/s",
        durable,
        "in_and_out_per_s",
        True,
        ">= 150,000 and 2x",
        stores_much=True,
    ),
    "command": Scenario(
        "5,000 commands/s QoS 1 to 1,000 kept sessions: mean microseconds (p99 below)",
        command_latency,
        "mean_us",
        False,
        "< 3,000 (p99 < 10,000)",
    ),
    "latency": Scenario("5,000 msg/s QoS 1 end to end: p99 microseconds", latency, "p99_us", False, "<= 2x"),
    "idle": Scenario(
        "idle connection: bytes of process memory",
        idle("--idle"),
        "bytes_per_connection",
        False,
        "<= 3,072 B",
        True,
    ),
    "idle_subscribed": Scenario(
        "idle connection with one filter: bytes",
        idle("--subscribers"),
        "bytes_per_connection",
        False,
        "",
        True,
    ),
}


# What other peers than the first do, and what tells something when they sync.
FAST_SCENARIOS: Final = (
    *("qos1_window100", "qos1_window1", "qos0_fan_in_paced", "fan_out", "durable", "latency"),
    "idle_subscribed",
)
DURABLE_SCENARIOS: Final = ("qos1_window100", "qos1_window1", "durable")


# Playing


def _play(name: str, pair: Pair, effort: Effort, options: argparse.Namespace) -> dict[str, list[Round]]:
    scenario = SCENARIOS[name]
    if refusal := pair.refusal(scenario):
        raise peers.PeerError(f"{pair.peer.title}: {refusal}")
    sides = [{"peer": pair.peer.name}.get(side, side) for side in options.side or ("peer", OURS)]
    rounds: dict[str, list[Round]] = {side: [] for side in sides}
    count = options.rounds or (effort.idle_rounds if scenario.is_idle else effort.rounds)
    for number in range(count):
        for side in sides:
            if side == OURS and scenario.stores_much:
                _warm(effort, options)
            with _started(side, pair, scenario, options) as server:
                warmup_s = max(effort.warmup_s, 0.0 if side == OURS else pair.peer.warmup_s)
                values = scenario.measure(server, replace(effort, warmup_s=warmup_s))
            rounds[side].append(values)
            told = ", ".join(f"{key} {_number(value)}" for key, value in values.items())
            print(f"{pair.key(name)} {number + 1}/{count} {side}: {told}", flush=True)
    return rounds


def _started(
    side: str, pair: Pair, scenario: Scenario, options: argparse.Namespace
) -> contextlib.AbstractContextManager[peers.Server]:
    core = machine.cores()[0]
    if side != OURS:
        return peers.started(
            pair.peer,
            core=core,
            setting=pair.setting,
            is_websocket=scenario.is_websocket,
            is_mqtt5=scenario.is_mqtt5,
            more=options.peer_line,
        )
    settings = {"store.flush": "sync"} if pair.setting == peers.DURABLE else {}
    settings |= dict(one.split("=", 1) for one in options.set)
    return peers.iotmq(
        core=core, settings=settings, data_parent=options.data, is_websocket=scenario.is_websocket
    )


def _warm(effort: Effort, options: argparse.Namespace) -> None:
    directory = options.data or machine.RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    cost_us = machine.warm_page_cache(directory, int(effort.warm_gib * 2**30))
    if cost_us:
        print(f"    (page cache warmed, {cost_us:.1f} us a page)", flush=True)


def _publish(server: peers.Server, seconds: float, warmup_s: float, *arguments: str) -> dict[str, Any]:
    """One run of the swarm on the load core; its report, and what the server's core did meanwhile."""
    cpu_before_s, began = server.cpu_s(), time.monotonic()
    report = _swarm.publish(
        server.port,
        *("--seconds", str(seconds), "--warmup", str(warmup_s), "--payload-bytes", "100", *arguments),
        timeout_s=seconds + warmup_s + 120,
        core=machine.cores()[1],
    )
    server.check()
    report["server_cpu_s"] = server.cpu_s() - cpu_before_s
    report["server_cpu_share"] = report["server_cpu_s"] / (time.monotonic() - began)
    return report


def _costs(report: dict[str, Any], counter: str) -> Round:
    """What it took on both sides. With a full load core the load was measured."""
    messages = report["counters"][counter]
    return {
        "per_server_cpu_s": messages / report["server_cpu_s"] if report["server_cpu_s"] else 0.0,
        "load_core_share": report["engine_cpu_share"],
        "violations": report["violations"],
        "connections_lost": report["counters"]["lost"],
    }


@contextlib.contextmanager
def _holding(server: peers.Server, kind: str, count: int, number_base: int, *more: str) -> Iterator[None]:
    """A process with this many connections, all of them in."""
    with _swarm.holding(
        server.port,
        *(kind, str(count), "--number-base", str(number_base), "--filter", "devices/{n}/commands"),
        *("--connect-rate", "5000", *more),
        core=machine.cores()[1],
    ) as held:
        held.ready()
        yield
        held.end()


# Telling


def _summary(name: str, rounds: dict[str, list[Round]]) -> dict[str, Any]:
    scenario = SCENARIOS[name]
    summary: dict[str, Any] = {"title": scenario.title, "goal": scenario.goal, "rounds": rounds}
    summary["sides"] = {
        side: {key: machine.spread([one[key] for one in values]) for key in values[0]}
        for side, values in rounds.items()
    }
    if OURS in rounds and len(rounds) == 2:
        (theirs,) = (rounds[side] for side in rounds if side != OURS)
        summary["ratios"] = {
            key: _ratio([one[key] for one in theirs], [one[key] for one in rounds[OURS]])
            for key in rounds[OURS][0]
        }
    return summary


def _ratio(theirs: list[float], ours: list[float]) -> dict[str, float] | None:
    """Ours to theirs; None where theirs is nothing."""
    if not all(theirs):
        return None
    pairs = [mine / other for other, mine in zip(theirs, ours, strict=True)]
    return {"of_medians": median(ours) / median(theirs), "min": min(pairs), "max": max(pairs)}


def _rows(name: str, summary: dict[str, Any], peer: str) -> list[list[str]]:
    scenario = SCENARIOS[name]
    sides = summary["sides"]
    keys = list(next(iter(sides.values())))
    rows = []
    for key in [scenario.first, *(key for key in keys if key != scenario.first)]:
        is_first = key == scenario.first
        ratio = summary.get("ratios", {}).get(key)
        rows.append(
            [
                scenario.title if is_first else f"    {key.replace('_', ' ')}",
                *(_number(sides[side][key]["median"]) if side in sides else "-" for side in (peer, OURS)),
                f"{ratio['of_medians']:.2f}x" if ratio else "",
                f"{ratio['min']:.2f}..{ratio['max']:.2f}" if ratio else "",
                scenario.goal if is_first else "",
            ]
        )
    return rows


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mqtt_side_by_side", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="one short round each")
    parser.add_argument("--rounds", type=int, help="rounds of each side")
    parser.add_argument("--peer", action="append", choices=PEERS, help="only beside this one")
    parser.add_argument("--setting", action="append", choices=peers.SETTINGS, help="only in this one")
    parser.add_argument("--side", action="append", choices=("peer", OURS), help="only this server")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="a setting of iotmq"
    )
    parser.add_argument(
        "--data", type=Path, help="where iotmq's data directories are made (default: build/benchmarks)"
    )
    parser.add_argument(
        "--warm-gib", type=float, help="page cache to warm before a round that writes; 0: none"
    )
    parser.add_argument(
        "--peer-line",
        action="append",
        default=[],
        metavar="LINE",
        help='a line of the peer\'s configuration, such as "set_tcp_nodelay true" for Mosquitto',
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
