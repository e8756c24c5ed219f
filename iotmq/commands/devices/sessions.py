"""The words of `iotmq sessions`: kept MQTT sessions, for operators."""

from __future__ import annotations

import argparse
from typing import Final

from iotmq.commands.admin import arguments
from iotmq.commands.admin.command import AddOption, Run, add_actions, arg, flag, word

_CLIENT_ID: Final = arg("client_id", metavar="CLIENT_ID")

_WORDS: Final = (
    word(
        "front-ends",
        "front_ends:list_front_ends",
        "the MQTT front ends that brokers know, and how many clients each has",
    ),
    word(
        "drain",
        "front_ends:drain",
        "have front ends take no devices and let go of those they have, some a second",
        arg(
            "front_ends",
            nargs="+",
            metavar="FRONT_END",
            help="names, as `iotmq sessions front-ends` has them",
        ),
        arg(
            "--per-second",
            type=arguments.positive,
            default=100,
            metavar="N",
            help="devices told to go in a second, at each front end (100)",
        ),
        arg(
            "--reference",
            default="",
            metavar="TEXT",
            help="the server reference devices of MQTT 5 are told (mqtt.server_reference)",
        ),
        flag("--moved", "moved", "for good: 0x9D, server moved, instead of 0x9C, use another server"),
        flag("--undo", "undo", "take devices again"),
        flag("--no-wait", "no_wait", "return at once"),
    ),
    word(
        "list",
        "mqtt_sessions:list_sessions",
        "the sessions that brokers keep, by client id",
        arg("--prefix", default="", metavar="TEXT", help="client ids that begin so"),
        arg(
            "--count",
            dest="count_max",
            type=arguments.positive,
            default=100,
            metavar="N",
            help="maximum number (100)",
        ),
    ),
    word("show", "mqtt_sessions:show", "one client's filters, and how far behind it is", _CLIENT_ID),
    word(
        "kick",
        "mqtt_sessions:kick",
        "disconnect a client; its session is kept, and it may come back",
        _CLIENT_ID,
    ),
    word(
        "shared",
        "mqtt_sessions:shared",
        "shared subscriptions: members, what they hold, how far behind each group is",
    ),
    word("purge", "mqtt_sessions:purge", "end a client's session, and disconnect it", _CLIENT_ID),
)


def add_sessions_actions(
    sessions: argparse.ArgumentParser, *, add_registry_option: AddOption, run: Run
) -> None:
    """Add the actions of `sessions`; `run` is what the parsed options get as their command."""
    add_actions(sessions, _WORDS, add_registry_option=add_registry_option, run=run)
