"""The words of `iotmq bans`: devices that may not connect, for operators."""

from __future__ import annotations

import argparse
from typing import Final

from iotmq.commands.admin import arguments
from iotmq.commands.admin.command import AddOption, Run, add_actions, arg, word
from iotmq.mqtt.bans import KINDS

_KIND: Final = arg("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
_VALUE: Final = arg(
    "value",
    metavar="VALUE",
    help="a client id, user name, IP address, network such as 192.0.2.0/24, or regular expression (RE2)",
)

_WORDS: Final = (
    word("list", "bans:list_bans", "who is banned, until when, and why"),
    word(
        "add",
        "bans:add",
        "ban devices, and end their connections; a ban that is there already is changed",
        _KIND,
        _VALUE,
        arg(
            "--for",
            dest="duration_ms",
            type=arguments.duration_ms,
            metavar="TIME",
            help="how long, such as 30m, 12h or 7d (until it is removed)",
        ),
        arg("--reason", default="", metavar="TEXT", help="shown in the list, in logs and to MQTT 5 devices"),
    ),
    word("remove", "bans:remove", "end a ban", _KIND, _VALUE),
)


def add_bans_actions(bans: argparse.ArgumentParser, *, add_registry_option: AddOption, run: Run) -> None:
    """Add the actions of `bans`; `run` is what the parsed options get as their command."""
    add_actions(bans, _WORDS, add_registry_option=add_registry_option, run=run)
