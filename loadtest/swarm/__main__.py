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
from typing import Any

from loadtest.plan_options import PROGRAM_WORDS, WORDS, add_words
from loadtest.swarm import Plan, Report, Swarm, SwarmError, driven

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
    with Swarm(_plan(options, publishers=100)) as swarm:
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


def _plan(options: argparse.Namespace, **defaults: int) -> Plan:
    """Fill a plan with the options that are named like its fields."""
    given = defaults | {
        field.name: getattr(options, field.name) for field in fields(Plan) if field.name in options
    }
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    return Plan(**values)


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
    for words in (*WORDS.values(), PROGRAM_WORDS):
        add_words(load, words)

    one = commands.add_parser("publish", parents=[load], help="publishers and their subscribers")
    one.set_defaults(command=publish)

    one = commands.add_parser("hold", parents=[load], help="connections that stay idle or listen")
    one.add_argument("--until-input-ends", action="store_true", help="also end when standard input is closed")
    one.set_defaults(command=hold)

    one = commands.add_parser(
        "driven", help="a plan on standard input, reports on standard output, for programs"
    )
    one.add_argument("--core", type=int)
    one.set_defaults(command=lambda _options: driven.main())
    return parser


if __name__ == "__main__":
    sys.exit(main())
