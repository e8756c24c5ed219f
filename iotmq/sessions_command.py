"""The words of `iotmq sessions`: kept MQTT sessions, for operators."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from iotmq.admin_command import arguments
from iotmq.admin_command.command import add_connection_options

_ACTIONS: Final = {
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
                help="how many at most (100)",
            )
        elif name != "shared":
            action.add_argument("client_id", metavar="CLIENT_ID")
        add_connection_options(action)
        add_registry_option(action)
        action.set_defaults(command=run, admin_action=f"mqtt_sessions:{function}")
