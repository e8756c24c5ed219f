"""The swarm as benchmarks start it; people have `iotmq loadtest`.

Results are JSON on standard output, one object a line; progress and errors go to standard error.
"""

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin

from loadtest.swarm import Plan, Report, Swarm, SwarmError, driven
from loadtest.swarm.own_speed import calibrate as measure_own_speed
from loadtest.swarm.own_speed import serve_sink

_FIELDS = {field.name: field for field in fields(Plan)}
# Option -> the field of a plan that it sets, which gives type and default, and what argparse is told beside.
_PLAN_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "--host": ("host", {}),
    "--port": ("port", {}),
    "--topic": ("topic", {}),
    "--filter": ("filter", {}),
    "--client-id": ("client_id", {}),
    "--username": ("username", {}),
    "--password": ("password", {}),
    "--mqtt5": ("is_v5", {"help": "MQTT 5 in the place of 3.1.1"}),
    "--websocket": (
        "websocket_path",
        {"nargs": "?", "const": "/mqtt", "metavar": "PATH", "help": "in WebSockets; without PATH at /mqtt"},
    ),
    "--keep-alive": ("keep_alive_s", {"metavar": "SECONDS"}),
    "--qos": ("qos", {"choices": (0, 1, 2)}),
    "--filter-qos": (
        "filter_qos",
        {"choices": (0, 1, 2), "help": "QoS of subscribers; that of --qos by default"},
    ),
    "--window": ("window", {"help": "unacknowledged messages a publisher may have"}),
    "--lead": ("lead_max", {"help": "messages ahead of the subscribers; 0: any"}),
    "--keep-sessions": ("keeps_sessions", {"help": "subscribers have sessions that outlive the connection"}),
    "--topics-per-publisher": ("topics_per_publisher", {"metavar": "COUNT"}),
    "--will-topic": ("will_topic", {"help": "subscribers leave a will there"}),
    "--deliveries-per-message": (
        "deliveries_per_message",
        {"help": "subscribers that get each message, waited for at the end"},
    ),
    "--publishers-tracked": ("publishers_tracked", {"help": "publishers whose sequences subscribers follow"}),
    "--fallback-port": ("fallback_ports", {"help": "port to go to when a connection is lost"}),
    "--payload-bytes": ("payload_bytes", {}),
    "--rate": ("rate_per_s", {"help": "messages/s over all publishers; 0: as fast as possible"}),
    "--messages": ("messages_max", {"help": "messages at most, over all publishers"}),
    "--seconds": ("seconds", {}),
    "--warmup": ("warmup_s", {"metavar": "SECONDS"}),
    "--drain-timeout": ("drain_timeout_s", {"metavar": "SECONDS"}),
    "--connect-rate": ("connect_rate_per_s", {"help": "connections opened per second"}),
    "--return-after": ("return_after_s", {"metavar": "SECONDS", "help": "how long the lost ones stay away"}),
    "--connects-in-progress": ("connects_in_progress_max", {"help": "connections being opened at once"}),
    "--connect-timeout": ("connect_timeout_s", {"metavar": "SECONDS"}),
    "--number-base": ("number_base", {"help": "first connection number"}),
    "--source-address": ("source_addresses", {"help": "local address; may be repeated"}),
    "--measure-acks": ("measures_acks", {"help": "measure the time to PUBACK"}),
}

# Content type, message expiry of an hour, and a user property [MQTT 5, 3.3.2.3].
THREE_PROPERTIES = b"\x03\x00\x10application/json\x02\x00\x00\x0e\x10\x26\x00\x04site\x00\x08north-12"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when it ended well, 1 when the server failed the swarm, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    try:
        return int(options.command(options))
    except (SwarmError, ValueError) as error:
        print(f"swarm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def publish(options: argparse.Namespace) -> int:
    """Publishers, and subscribers that listen to them; prints one report."""
    with Swarm(_plan(options)) as swarm:
        swarm.connect()
        report = swarm.publish()
    _show(report)
    _print(report.as_dict())
    return 0 if report.counters["acknowledged"] + report.counters["delivered"] or options.qos == 0 else 1


def hold(options: argparse.Namespace) -> int:
    """Connections that stay: prints ``ready`` when all are in; ends with the time or with standard input.

    With ``--until-input-ends`` every line of standard input is answered with the counters so far.
    """
    plan = _plan(options)
    with Swarm(plan) as swarm:
        began_ns = time.monotonic_ns()
        seconds = swarm.connect()
        _print(
            {
                "state": "ready",
                "connections": plan.idle + plan.subscribers,
                "connect_s": seconds,
                "began_ns": began_ns,
                "ready_ns": time.monotonic_ns(),
            }
        )
        deadline = time.monotonic() + options.seconds
        while time.monotonic() < deadline:
            swarm.hold(min(0.1, max(0.0, deadline - time.monotonic())))
            if options.until_input_ends and select.select([sys.stdin], [], [], 0)[0]:
                if not sys.stdin.readline():
                    break
                _print({"state": "holding"} | _held(swarm))
        _print({"state": "over"} | _held(swarm))
    return 0


def _held(swarm: Swarm) -> dict[str, Any]:
    engine = swarm.engine
    return {
        "counters": engine.counters_now(),
        "latencies": engine.latencies(),
        "oldest_repeat_at_ns": engine.oldest_repeat_at_ns,
        "now_ns": time.monotonic_ns(),
    }


def sink(options: argparse.Namespace) -> int:
    """A server that acknowledges and discards; prints its port and ends with SIGTERM, SIGINT or the time."""
    return serve_sink(port=options.port, has_relay=options.relay, seconds=options.seconds, core=options.core)


def calibrate(options: argparse.Namespace) -> int:
    """How fast the engine is by itself: full load against the sink in a process of its own."""
    return measure_own_speed(
        payload_bytes=options.payload_bytes,
        seconds=options.seconds,
        core=options.core,
        sink_core=options.sink_core,
    )


def _plan(options: argparse.Namespace) -> Plan:
    """Fill a plan with the options that are named like its fields."""
    given = {name: value for name, value in vars(options).items() if name in _FIELDS}
    return Plan(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _show(report: Report) -> None:
    print(
        f"published {report.published_per_s:,.0f}/s, acknowledged {report.acknowledged_per_s:,.0f}/s, "
        f"delivered {report.delivered_per_s:,.0f}/s in {report.seconds:.1f} s; "
        f"engine {report.engine_cpu_share:.0%} of a core; "
        f"{report.violations} violations; {'drained' if report.is_drained else 'NOT drained'}",
        file=sys.stderr,
    )
    for name, summary in report.latencies.items():
        if summary["count"]:
            print(
                f"{name}: p50 {summary['p50_ns'] / 1e6:.3f} ms, p99 {summary['p99_ns'] / 1e6:.3f} ms, "
                f"max {summary['max_ns'] / 1e6:.3f} ms ({summary['count']:,.0f} messages)",
                file=sys.stderr,
            )


def _print(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.swarm", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    load = argparse.ArgumentParser(add_help=False)
    load.add_argument("--core", type=int, help="pin to this processor core")
    load.add_argument(
        "--three-properties",
        action="store_const",
        dest="publish_properties",
        default=b"",
        const=THREE_PROPERTIES,
        help="messages with a content type, a message expiry and a user property (MQTT 5)",
    )
    for option, (name, details) in _PLAN_OPTIONS.items():
        kind: Any = _FIELDS[name].type
        if kind is bool:
            how: dict[str, Any] = {"action": "store_true"}
        elif get_origin(kind) is tuple:
            how = {"action": "append", "default": [], "type": get_args(kind)[0]}
        else:
            how = {"default": _FIELDS[name].default, "type": (*get_args(kind), kind)[0]}
        load.add_argument(option, dest=name, **how, **details)

    one = commands.add_parser("publish", parents=[load], help="publishers and their subscribers")
    one.add_argument("--publishers", type=int, default=100)
    one.add_argument("--subscribers", type=int, default=0)
    one.set_defaults(command=publish)

    one = commands.add_parser("hold", parents=[load], help="connections that stay idle or listen")
    one.add_argument("--idle", type=int, default=0)
    one.add_argument("--subscribers", type=int, default=0)
    one.add_argument("--until-input-ends", action="store_true", help="also end when standard input is closed")
    one.set_defaults(command=hold)

    one = commands.add_parser(
        "driven", help="a plan on standard input, reports on standard output, for programs"
    )
    one.add_argument("--core", type=int)
    one.set_defaults(command=lambda _options: driven.main())

    one = commands.add_parser("sink", help="a server that acknowledges and discards")
    one.add_argument("--core", type=int)
    one.add_argument("--port", type=int, default=0)
    one.add_argument("--relay", action="store_true", help="hand every message to every subscriber")
    one.add_argument("--seconds", type=float, default=3_600.0)
    one.set_defaults(command=sink)

    one = commands.add_parser("calibrate", help="the engine's own speed, against the sink")
    one.add_argument("--core", type=int)
    one.add_argument("--sink-core", type=int)
    one.add_argument("--payload-bytes", type=int, default=100)
    one.add_argument("--seconds", type=float, default=2.0)
    one.set_defaults(command=calibrate)
    return parser


if __name__ == "__main__":
    sys.exit(main())
