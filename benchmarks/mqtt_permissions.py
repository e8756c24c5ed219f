"""What permissions cost, alone and with limits and routes: messages a second with and without, in turns.

    .venv/bin/python -m benchmarks.mqtt_permissions [--rounds 7] [--quick]

QoS 1 from 100 connections with a window of 100, on one core; the load is on the other. Each round starts a
fresh server of each kind, so that a machine that is slow for a while is slow for all. `without` has none of
it; `with` has a hundred rules with placeholders, of which the last one allows what is published; `all` has
these rules, limits of every kind that nobody reaches, and three routes, of which the second gives messages a
key. `ten topics` is the same with ten topics for each connection. Then the time of one decision, in this
process: of a topic that is new to a connection, and of a filter.

On a machine that others use, messages for each second of the server's processor time say more than messages a
second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks import _swarm, machine, peers
from benchmarks.mqtt_routes import THREE_ROUTES
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.policies import Policies
from iotmq.mqtt_front.permissions.rule import SUBSCRIBE, Use
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.mqtt_front.settings.permissions import PermissionSettings

GOAL_SHARE: Final = 0.85
RULES: Final = 100
# Every device, address and listener has buckets, from which each message takes tokens; none is ever empty.
LIMITS: Final = {
    f"mqtt.device_limits.{scope}.{kind}_{way}_per_s": str(1 << 31)
    for scope in ("client", "address", "listener")
    for kind in ("messages", "bytes")
    for way in ("in", "out")
}
TOLD: Final = {"with": f"with {RULES} rules", "all": f"with {RULES} rules, limits and three routes"}
LOADS: Final = {
    "one topic": ("--topic", "devices/{n}/telemetry"),
    "ten topics": ("--topic", "devices/{n}/telemetry", "--topics-per-publisher", "10"),
}


def rules() -> str:
    """Rules as a fleet may have them; the client ids of the load are its topics' second levels."""
    text = ""
    for number in range(RULES - 2):
        permission = "deny" if number % 3 == 0 else "allow"
        text += (
            f'[[rules]]\npermission = "{permission}"\nwho = "all"\naction = "all"\n'
            f'topics = ["devices/%c/part-{number}/#", "sites/{number}/%c/+"]\n'
        )
    text += '[[rules]]\npermission = "deny"\nwho = "all"\naction = "publish"\ntopics = ["+/%c/config"]\n'
    return text + '[[rules]]\npermission = "allow"\nwho = "all"\naction = "all"\ntopics = ["devices/#"]\n'


class Kind(NamedTuple):
    """A server: its settings, and its routes as TOML."""

    settings: dict[str, str]
    routes: str = ""


class Rate(NamedTuple):
    """Acknowledged messages a second, and for each second of processor time of the server."""

    per_s: float
    per_cpu_s: float


def rate(server: peers.Server, load: tuple[str, ...], seconds: float) -> Rate:
    """What one server does; connecting and warming up count as processor time, too."""
    began_s = server.exact_cpu_s()
    report = _swarm.publish(
        server.port,
        *("--publishers", "100", "--window", "100", "--qos", "1", "--client-id", "{n}"),
        *("--seconds", str(seconds), "--warmup", "1.0", *load),
        timeout_s=seconds + 60,
        core=machine.cores()[1],
    )
    taken_s = server.exact_cpu_s() - began_s
    return Rate(report["acknowledged_per_s"], report["counters"]["acknowledged"] / taken_s)


def microseconds(decide: Callable[[], object]) -> float:
    """The processor time of one of many calls, in the best of five hundreds."""
    taken = []
    for _ in range(5):
        begin_ns = time.thread_time_ns()
        for _ in range(100):
            decide()
        taken.append(time.thread_time_ns() - begin_ns)
    return min(taken) / 100 / 1e3


def decisions(file: Path) -> dict[str, float]:
    """Microseconds of one decision of each kind."""
    policies = Policies(PermissionSettings(permissions_file=str(file)))
    subject = Subject("pump-7", Identity(user="pump-7"))
    policy = policies.policy_of(subject)
    use = Use(SUBSCRIBE, qos=1)
    return {
        "connection": microseconds(lambda: policies.policy_of(subject)),
        "topic": microseconds(lambda: policy.rooms("devices/pump-7/telemetry", is_delayed=False)),
        "filter": microseconds(lambda: policy.may_subscribe("devices/pump-7/commands/+", use)),
        "wide filter": microseconds(lambda: policy.may_subscribe("devices/pump-7/#", use)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured of each server in a round")
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    options = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "permissions.toml"
        file.write_text(rules())
        permitted = {"mqtt.permissions.permissions_file": str(file)}
        kinds = {
            "without": Kind({}),
            "with": Kind(permitted),
            "all": Kind(permitted | LIMITS, THREE_ROUTES % ""),
        }
        measured: dict[str, dict[str, list[Rate]]] = {load: {kind: [] for kind in kinds} for load in LOADS}
        for number in range(1 if options.quick else options.rounds):
            # Which one comes first changes.
            for kind, (settings, routes) in list(kinds.items())[:: 1 if number % 2 else -1]:
                for load, words in LOADS.items():
                    with peers.iotmq(core=machine.cores()[0], settings=settings, routes=routes) as server:
                        measured[load][kind].append(rate(server, words, options.seconds))
            shown = "; ".join(
                f"{load}: "
                + ", ".join(
                    f"{kind} {values[-1].per_s:,.0f}/s ({values[-1].per_cpu_s:,.0f} a cpu second)"
                    for kind, values in rates.items()
                )
                for load, rates in measured.items()
            )
            print(f"{number + 1}: {shown}", flush=True)
        taken = decisions(file)
    for (load, rates), kind in product(measured.items(), ("with", "all")):
        told = []
        for name, unit in (("per_s", "a second"), ("per_cpu_s", "a second of the server's processor")):
            some, all_of_it = (
                median(getattr(one, name) for one in rates[which]) for which in (kind, "without")
            )
            told.append(f"{some:,.0f} of {all_of_it:,.0f} {unit} ({some / all_of_it:.3f})")
        print(f"{load}, {TOLD[kind]}, of without: {', '.join(told)}; goal {GOAL_SHARE}")
    print("a decision: " + ", ".join(f"{name} {value:.1f} us" for name, value in taken.items()))
    machine.save(
        "mqtt_permissions",
        {"messages_per_s": measured, "decision_us": taken, "machine": machine.description()},
    )


if __name__ == "__main__":
    main()
