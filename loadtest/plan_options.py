"""The options that set the fields of a plan: of `iotmq loadtest run`, and of swarms that programs start.

Imports nothing compiled, since `iotmq --help` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Word(NamedTuple):
    """Describe an option that sets a field of a plan."""

    name: str
    help: str
    metavar: str = "N"
    kind: type = int
    """`bool` for a switch, `list` for an option that may be repeated."""
    item: type = str
    """What each value of such an option is."""
    without_value: str | None = None
    """What the option means when no value follows; None where one has to."""


# The options by what they are about.
WORDS: Final[dict[str, dict[str, Word]]] = {
    "server": {
        "--host": Word("host", "name or IPv4 address (127.0.0.1)", "HOST", kind=str),
        "--port": Word("port", "port (1883)", "PORT"),
        "--mqtt5": Word("is_v5", "MQTT 5 in the place of 3.1.1", kind=bool),
        "--websocket": Word(
            "websocket_path", "in WebSockets, at this path (/mqtt)", "PATH", kind=str, without_value="/mqtt"
        ),
        "--tls": Word("tls", "TLS; with --websocket this is wss", kind=bool),
        "--ca": Word(
            "tls_ca", "certificates that the server's is signed by (the system's)", "FILE", kind=str
        ),
        "--server-name": Word(
            "tls_server_name", "name in the server's certificate (the host)", "NAME", kind=str
        ),
        "--insecure": Word("tls_insecure", "take any certificate", kind=bool),
        "--certificate": Word(
            "tls_certificates",
            "client certificate with its key; connections use several in turn",
            "FILE[,KEYFILE]",
            kind=list,
        ),
        "--source-address": Word(
            "source_addresses",
            "local address to connect from, or FIRST-LAST; each has about 28,000 ports",
            "ADDRESS",
            kind=list,
        ),
    },
    "devices": {
        "--publishers": Word("publishers", "connections that publish (0)"),
        "--subscribers": Word("subscribers", "connections that subscribe (0)"),
        "--idle": Word("idle", "connections that only stay (0)"),
        "--client-id": Word("client_id", "client ids (swarm-{kind}-{n})", "TEMPLATE", kind=str),
        "--username": Word("username", "user names", "TEMPLATE", kind=str),
        "--password": Word(
            "password", "password; better in the variable IOTMQ_LOADTEST_PASSWORD", "TEXT", kind=str
        ),
        "--keep-alive": Word("keep_alive_s", "keep-alive (60)", "SECONDS"),
        "--keep-sessions": Word(
            "keeps_sessions", "subscribers have sessions that outlive their connections", kind=bool
        ),
        "--session-expiry": Word("session_expiry_s", "how long they do (MQTT 5)", "SECONDS"),
        "--will-topic": Word("will_topic", "subscribers leave a will there", "TEMPLATE", kind=str),
        "--number-base": Word("number_base", "number of the first device of a kind (0)"),
    },
    "connecting": {
        "--connect-rate": Word("connect_rate_per_s", "connections opened per second (2000)", kind=float),
        "--connects-in-progress": Word("connects_in_progress_max", "connections being opened at once (64)"),
        "--connect-timeout": Word(
            "connect_timeout_s", "how long connecting may take in all (60)", "SECONDS", kind=float
        ),
        "--answer-timeout": Word(
            "answer_timeout_s", "give up a connection after so long (30)", "SECONDS", kind=float
        ),
        "--reconnect": Word("reconnects", "who loses the connection connects again", kind=bool),
        "--return-after": Word("return_after_s", "after this time (0)", "SECONDS", kind=float),
        "--leave-rate": Word(
            "leave_per_s", "subscribers and idle ones that leave and return, per second (0)", kind=float
        ),
        "--leave-rudely": Word(
            "leaves_rudely", "they close without DISCONNECT, so that wills are published", kind=bool
        ),
        "--resubscribe-rate": Word(
            "resubscribe_per_s",
            "subscribers that unsubscribe and subscribe again, per second (0)",
            kind=float,
        ),
    },
    "messages": {
        "--topic": Word("topic", "topic of publishers (devices/{n}/telemetry)", "TEMPLATE", kind=str),
        "--topics-per-publisher": Word("topics_per_publisher", "each publishes to so many, in turn (1)"),
        "--filter": Word(
            "filter",
            "filter of subscribers (devices/+/telemetry); $share/GROUP/... is shared",
            "TEMPLATE",
            kind=str,
        ),
        "--qos": Word("qos", "QoS of messages (1)", "{0,1,2}"),
        "--filter-qos": Word("filter_qos", "QoS of subscriptions (that of messages)", "{0,1,2}"),
        "--window": Word("window", "messages of a publisher that may be unacknowledged (100)"),
        "--rate": Word(
            "rate_per_s", "messages/s of all publishers, at planned times (0: as fast as they can)"
        ),
        "--rate-from": Word("rate_from_per_s", "messages/s at the beginning of a ramp (0)"),
        "--ramp": Word("ramp_s", "how long the rate takes to become --rate (0)", "SECONDS", kind=float),
        "--shares-cores": Word(
            "shares_cores",
            "sleep until messages are due, which takes less of cores that the server needs, too",
            kind=bool,
        ),
        "--messages": Word("messages_max", "messages in all (any number)"),
        "--payload-bytes": Word("payload_bytes", "bytes of a payload (100)"),
        "--payload-sizes": Word("payload_sizes", "LOW-HIGH, or BYTES:WEIGHT,BYTES:WEIGHT", "SIZES", kind=str),
        "--payload": Word(
            "payload_template", "text of payloads, e.g. JSON with %%s, %%t and %%x", "TEMPLATE", kind=str
        ),
        "--deliveries-per-message": Word(
            "deliveries_per_message", "subscribers that get each message, when topic and filter do not tell"
        ),
    },
    "time": {
        "--warmup": Word("warmup_s", "published and not measured (1)", "SECONDS", kind=float),
        "--seconds": Word("seconds", "measured (5)", "SECONDS", kind=float),
        "--drain-timeout": Word(
            "drain_timeout_s", "how long to wait for what is on its way (10)", "SECONDS", kind=float
        ),
    },
}

PROGRAM_WORDS: Final[dict[str, Word]] = {
    "--lead": Word("lead_max", "messages ahead of the subscribers (0: any number)"),
    "--publishers-tracked": Word("publishers_tracked", "publishers whose sequences subscribers follow"),
    "--fallback-port": Word(
        "fallback_ports", "port to go to when a connection is lost", "PORT", kind=list, item=int
    ),
    "--measure-acks": Word("measures_acks", "measure the time to PUBACK", kind=bool),
}
"""Those that only programs need."""


def add_words(group: argparse._ActionsContainer, words: Mapping[str, Word]) -> None:
    """Add options that are absent from the namespace when they are not given."""
    for option, word in words.items():
        how: dict[str, Any] = {"metavar": word.metavar, "type": word.kind}
        if word.kind is bool:
            how = {"action": "store_true"}
        elif word.kind is list:
            how = {"action": "append", "metavar": word.metavar, "type": word.item}
        elif word.without_value is not None:
            how |= {"nargs": "?", "const": word.without_value}
        group.add_argument(option, dest=word.name, help=word.help, default=argparse.SUPPRESS, **how)
