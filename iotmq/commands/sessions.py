"""The words of `iotmq sessions`: kept MQTT sessions, for operators."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from iotmq.commands.admin import arguments
from iotmq.commands.connection_options import add_connection_options

_ACTIONS: Final = {
    "front-ends": ("list_front_ends", "the MQTT front ends that brokers know, and how many clients each has"),
    "drain": ("drain", "have front ends take no devices and let go of those they have, some a second"),
    "list": ("list_sessions", "the sessions that brokers keep, by client id"),
    "show": ("show", "one client's filters, and how far behind it is"),
    "kick": ("kick", "disconnect a client; its session is kept, and it may come back"),
    "shared": ("shared", "shared subscriptions: members, what they hold, how far behind each group is"),
    "purge": ("purge", "end a client's session, and disconnect it"),
}


def add_sessions_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    *,
    add_registry_option: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
) -> None:
    """Add `sessions` with its actions; `run` is what the parsed options get as their command."""
    sessions = commands.add_parser(
        "sessions",
        help="look at and end kept MQTT sessions",
        description="Look at and end kept MQTT sessions.",
    )
    actions = sessions.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, (function, what) in _ACTIONS.items():
        action = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        if name == "list":
            action.add_argument("--prefix", default="", metavar="TEXT", help="client ids that begin so")
            action.add_argument(
                "--count",
                dest="count_max",
                type=arguments.positive,
                default=100,
                metavar="N",
                help="maximum number (100)",
            )
        elif name == "drain":
            _add_drain_options(action)
        elif name not in ("shared", "front-ends"):
            action.add_argument("client_id", metavar="CLIENT_ID")
        action.add_argument("--json", dest="is_json", action="store_true", help="one JSON document")
        add_connection_options(action)
        add_registry_option(action)
        module = "front_ends" if name in ("drain", "front-ends") else "mqtt_sessions"
        action.set_defaults(command=run, admin_action=f"{module}:{function}")


def _add_drain_options(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "front_ends", nargs="+", metavar="FRONT_END", help="names, as `iotmq sessions front-ends` has them"
    )
    action.add_argument(
        "--per-second",
        type=arguments.positive,
        default=100,
        metavar="N",
        help="devices told to go in a second, at each front end (100)",
    )
    action.add_argument(
        "--reference",
        default="",
        metavar="TEXT",
        help="the server reference devices of MQTT 5 are told (mqtt.server_reference)",
    )
    action.add_argument(
        "--moved",
        action="store_true",
        help="for good: 0x9D, server moved, instead of 0x9C, use another server",
    )
    action.add_argument("--undo", action="store_true", help="take devices again")
    action.add_argument("--no-wait", action="store_true", help="return at once")
