"""The words of `iotmq admin`, and running the action they name.

Nothing of the client is imported before an action runs, so that the other commands start as fast as before.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from iotmq.commands.admin import arguments
from iotmq.commands.admin.output import Result, as_json
from iotmq.commands.connection_options import add_connection_options, client_settings

if TYPE_CHECKING:
    from iotmq.commands.admin.session import Session

    Action = Callable[[Session, argparse.Namespace], Awaitable[Result]]

Argument: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]
"""The flags and the options of argparse's add_argument."""
AddOption: TypeAlias = Callable[[argparse.ArgumentParser], None]
Run: TypeAlias = Callable[[argparse.Namespace], int]


class Word(NamedTuple):
    """One action: `name` is what is typed, `target` is module:function in this package."""

    name: str
    target: str
    help: str
    arguments: tuple[Argument, ...]


def word(name: str, target: str, what: str, *arguments: Argument) -> Word:
    return Word(name, target, what, arguments)


def arg(*flags: str, **options: Any) -> Argument:
    return flags, options


def flag(name: str, dest: str, what: str) -> Argument:
    return arg(name, dest=dest, action="store_true", help=what)


def add_admin_actions(admin: argparse.ArgumentParser, *, add_registry_option: AddOption, run: Run) -> None:
    """Add all actions of `admin`; `run` is what the parsed options get as their command."""
    areas = admin.add_subparsers(title="areas", metavar="AREA", required=True)
    for name, what in _AREAS.items():
        area = areas.add_parser(name, help=what, description=_sentence(what))
        words = [word for word in _WORDS if word.name.startswith(f"{name} ")]
        add_actions(area, words, add_registry_option=add_registry_option, run=run)


def add_actions(
    parser: argparse.ArgumentParser, words: Iterable[Word], *, add_registry_option: AddOption, run: Run
) -> None:
    """Add the words as actions, each with the options that all of them have."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, target, what, own in words:
        action = actions.add_parser(name.split()[-1], help=what, description=_sentence(what))
        for flags, options in own:
            action.add_argument(*flags, **options)
        action.add_argument("--json", dest="is_json", action="store_true", help="one JSON document")
        add_connection_options(action)
        add_registry_option(action)
        action.set_defaults(command=run, admin_action=target)


def _sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}."


async def run_action(options: argparse.Namespace, registries: tuple[str, ...]) -> int:
    """Do what the words say and print what comes of it; raises what the client raises."""
    from iotmq.client.transport.client import ClientTransport
    from iotmq.commands.admin.session import Session

    module_name, _, function_name = options.admin_action.partition(":")
    module = importlib.import_module(f"iotmq.commands.admin.{module_name}")
    action = cast("Action", getattr(module, function_name))
    async with ClientTransport(client_settings(options, registries)) as client:
        result = await action(Session(client, is_quiet=options.is_json), options)
    sys.stdout.write(as_json(result) if options.is_json else result.text())
    sys.stdout.flush()
    return 0


_TOPIC = arg("topic", metavar="TOPIC")
_GROUP = arg("group", metavar="GROUP")
_QUEUES = arg("--queues", type=arguments.positive, required=True, metavar="N", help="queues at each broker")
_QUEUE_IDS = arg("queue_ids", type=arguments.queue_ids, metavar="QUEUES", help="such as 3, or 0,2, or 4-7")
_BROKERS = arg(
    "--broker",
    dest="broker_names",
    action="append",
    default=[],
    metavar="NAME",
    help="only at this broker, may be repeated (all)",
)
_BROKER = arg("broker", metavar="BROKER")
_PROCESS = arg("process", metavar="PROCESS", help="name of a broker or of a front end")
_BEGIN = arg("--since", dest="begin_ms", type=arguments.time_ms, metavar="TIME", help="such as 2d or a date")
_END = arg("--until", dest="end_ms", type=arguments.time_ms, metavar="TIME", help="such as 1h or a date")
_CHOSEN: Final = (
    _BEGIN,
    _END,
    arg("--topic", dest="original_topic", default="", metavar="TOPIC", help="only what came from it"),
    arg("--key", default="", metavar="KEY", help="only messages with this key"),
)
_MESSAGE_ID = arg("message_id", metavar="ID", help="the id that names a message's place")
_CLIENT = arg("client", metavar="CLIENT", help="its id, see `group connections`")
_TRACE = arg("name", metavar="NAME", help="letters, digits, dots and dashes")
_ACCOUNT = arg("account", metavar="ACCESS_KEY")
_ACCESS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")
_NAMESPACE = arg("namespace", metavar="NAMESPACE", help="such as ORDER_TOPIC_CONFIG")
_KEY = arg("key", metavar="KEY")
_COUNT = arg("--limit", dest="count_max", type=arguments.client_count, default=100, metavar="N", help="(100)")
_CURSOR = arg("--cursor", default="", metavar="TEXT", help="go on where another answer has ended")
_ID_PATTERN = arg("--id", dest="client_id", default="", metavar="PATTERN", help="client ids, such as pump/*")
_USER = arg("--user", default="", metavar="PATTERN", help="their users")
_ADDRESS = arg("--address", default="", metavar="PATTERN", help="their IP addresses, such as 10.0.*")
_WANTED: Final = (
    arg("--id", dest="pattern", default="", metavar="PATTERN", help="client ids, such as pump/* or *north*"),
    _USER,
    _ADDRESS,
    arg("--listener", default="", metavar="PATTERN", help="the names of their listeners"),
    arg("--version", dest="version", choices=("3.1", "3.1.1", "5"), default="", help="of MQTT"),
    arg("--kept", dest="is_kept", action=argparse.BooleanOptionalAction, help="whose session is kept"),
    arg(
        "--where",
        dest="bounds",
        action="append",
        default=[],
        type=arguments.client_bound,
        metavar="COLUMN>=N",
        help="or COLUMN<=N, such as 'queued>=100'; may be repeated",
    ),
)
_SETTINGS = arg("settings", nargs="+", type=arguments.pair, metavar="NAME=VALUE")

_AREAS: Final = {
    "cluster": "all brokers at a glance",
    "broker": "brokers: state, settings, permissions, statistics",
    "registry": "registries: settings",
    "topic": "topics and their queues",
    "group": "consumer groups and their offsets",
    "client": "connected MQTT clients, their subscriptions, and who was refused",
    "message": "finding single messages",
    "dlq": "dead letters: what consumer groups gave up",
    "timer": "messages that wait for their time",
    "trace": "what happens to a client, to messages of a topic, or to connections from an address",
    "kv": "key-value settings of the registries",
    "acl": "accounts of brokers with access control",
    "history": "how the metrics of a process changed",
    "statistics": "what was counted by minute, hour and day",
}

_WORDS: Final = (
    word("cluster list", "brokers:list_cluster", "list every broker and how busy it is"),
    word("broker status", "brokers:show_status", "print everything brokers say of themselves", _BROKERS),
    word(
        "broker progress",
        "brokers:show_progress",
        "print how far all groups of a broker are, those furthest behind first",
        _BROKER,
    ),
    word("broker clients", "brokers:list_clients", "list the clients connected to a broker", _BROKER),
    word("broker config", "brokers:show_settings", "print a broker's settings", _BROKER),
    word("broker set", "brokers:change_settings", "change settings while brokers run", _SETTINGS, _BROKERS),
    word(
        "broker wipe-write",
        "brokers:wipe_write_permission",
        "let producers send to this broker no more: its topics lose the write permission in the routes",
        _BROKER,
    ),
    word("broker add-write", "brokers:add_write_permission", "give that permission back", _BROKER),
    word(
        "broker stats",
        "brokers:show_statistics",
        "print what was counted under a name and key",
        arg("name", metavar="NAME", help="such as TOPIC_PUT_NUMS or GROUP_GET_NUMS"),
        arg("key", metavar="KEY", help="such as TOPIC or TOPIC@GROUP"),
        _BROKERS,
    ),
    word("broker delete-expired", "brokers:delete_expired", "delete log files past their age", _BROKERS),
    word("registry config", "registries:show_settings", "print the settings of every registry"),
    word("registry set", "registries:change_settings", "change settings of every registry", _SETTINGS),
    word(
        "topic list",
        "topics:list_topics",
        "list topics",
        arg("--cluster", metavar="NAME", help="only those of this cluster"),
        flag("--all", "is_all", "those of brokers and groups, too"),
    ),
    word("topic status", "topics:show_status", "print what every queue holds", _TOPIC),
    word("topic route", "topics:show_route", "print what clients are told", _TOPIC),
    word("topic groups", "topics:show_groups", "list the groups that consume a topic", _TOPIC),
    word(
        "topic create",
        "topics:create",
        "make a topic",
        _TOPIC,
        arg("--queues", type=arguments.positive, default=8, metavar="N", help="at each broker (8)"),
        arg("--perm", type=arguments.permissions, default=6, metavar="rw|r|w|none", help="(rw)"),
        flag("--ordered", "is_ordered", "keep its queues fixed, for consumers that rely on order"),
        _BROKERS,
    ),
    word(
        "topic update",
        "topics:update",
        "change a topic; what is not named stays",
        _TOPIC,
        arg("--read-queues", type=arguments.positive, metavar="N", help="queues that are read"),
        arg("--write-queues", type=arguments.positive, metavar="N", help="queues that take messages"),
        arg("--perm", type=arguments.permissions, metavar="rw|r|w|none"),
        arg("--ordered", dest="is_ordered", action=argparse.BooleanOptionalAction),
        _BROKERS,
    ),
    word("topic delete", "topics:delete", "delete a topic with its messages and offsets", _TOPIC),
    word("topic clean-unused", "topics:clean_unused", "delete what is left of unknown topics", _BROKERS),
    word(
        "topic queues",
        "topics:show_queues",
        "print which queues take messages, and what each group has still to consume",
        _TOPIC,
        _BROKERS,
    ),
    word("topic scale", "topics:scale", "add queues to a topic", _TOPIC, _QUEUES, _BROKERS),
    word(
        "topic pause",
        "topics:pause",
        "let nobody read a topic; it still takes messages",
        _TOPIC,
        _BROKERS,
    ),
    word("topic resume", "topics:resume", "let a paused topic be read again", _TOPIC, _BROKERS),
    word(
        "topic freeze",
        "topics:freeze",
        "let queues take no more messages; they are still read",
        _TOPIC,
        _QUEUE_IDS,
        _BROKERS,
    ),
    word("topic thaw", "topics:thaw", "let frozen queues take messages again", _TOPIC, _QUEUE_IDS, _BROKERS),
    word(
        "topic drain",
        "topics:drain",
        "have fewer queues: freeze the last ones, wait until they are consumed, remove them",
        _TOPIC,
        _QUEUES,
        arg("--wait", dest="timeout_s", type=float, metavar="SECONDS", help="give up after (never)"),
        flag("--force", "is_forced", "remove them at once, whatever is in them"),
        _BROKERS,
    ),
    word(
        "group list",
        "groups:list_groups",
        "list groups that have members or offsets",
        flag("--all", "is_all", "those that have neither, too"),
    ),
    word(
        "group progress",
        "groups:show_progress",
        "print how far a group is in every queue",
        _GROUP,
        arg("--topic", metavar="TOPIC", help="only in this one"),
    ),
    word("group times", "groups:show_times", "print how late a group is", _GROUP, _TOPIC),
    word("group status", "groups:show_status", "print how far each member says it is", _GROUP, _TOPIC),
    word("group connections", "groups:show_connections", "list the live members", _GROUP),
    word("group producers", "groups:show_producers", "list the live producers of a group", _GROUP),
    word(
        "group running",
        "groups:show_running",
        "print what a consumer says of itself",
        _GROUP,
        _CLIENT,
        flag("--stack", "has_stack", "with its threads"),
    ),
    word(
        "group create",
        "groups:create",
        "make a group, or change what is named of one",
        _GROUP,
        arg("--retries", dest="retries_max", type=int, metavar="N", help="before the dead letters (16)"),
        arg("--retry-queues", type=int, metavar="N", help="queues of its retry topic (1)"),
        arg("--consume", dest="may_consume", action=argparse.BooleanOptionalAction),
        arg("--broadcast", dest="may_broadcast", action=argparse.BooleanOptionalAction),
        _BROKERS,
    ),
    word("group pause", "groups:pause", "give a group no messages; its offsets stay", _GROUP, _BROKERS),
    word("group resume", "groups:resume", "give a paused group messages again", _GROUP, _BROKERS),
    word(
        "group delete",
        "groups:delete",
        "delete a group, its retry and dead letter topics, and its offsets",
        _GROUP,
        flag("--keep-offsets", "keeps_offsets", "so that it goes on where it was"),
    ),
    word(
        "group reset-offset",
        "groups:reset_offsets",
        "let a group go on at another place of a topic",
        _GROUP,
        _TOPIC,
        arg(
            "--to",
            dest="place_ms",
            type=arguments.place_ms,
            required=True,
            metavar="begin|end|TIME",
            help="a time is like 2026-08-01T04:00, or 90m ago",
        ),
        flag("--only-back", "is_only_back", "skip nothing: leave queues that would go forward"),
    ),
    word(
        "group skip",
        "groups:skip",
        "let a group go on at the end of its queues; what it has not consumed is skipped",
        _GROUP,
        arg("topics", nargs="*", metavar="TOPIC", help="only in these (all it consumes, and its retries)"),
        arg("--yes", dest="is_confirmed", action="store_true", help="do it, not only show what is skipped"),
    ),
    word(
        "group clone",
        "groups:clone_offsets",
        "let a group begin where another one is",
        arg("source", metavar="SOURCE"),
        arg("target", metavar="TARGET"),
        arg("--topic", metavar="TOPIC", help="only in this one"),
    ),
    word(
        "client list",
        "clients:list_clients",
        "list connected clients, in any order",
        *_WANTED,
        arg(
            "--sort",
            dest="order",
            type=arguments.client_order,
            default=("client_id", False),
            metavar="COLUMN",
            help="with - in front the largest come first: --sort=-queued (client_id)",
        ),
        _COUNT,
        _CURSOR,
    ),
    word("client show", "clients:show", "print one connected client", arg("client_id", metavar="CLIENT_ID")),
    word(
        "client kick",
        "clients:kick",
        "disconnect clients: those named, or those that fit; kept sessions stay",
        arg("client_ids", nargs="*", metavar="CLIENT_ID"),
        *_WANTED,
        arg(
            "--limit", type=arguments.positive, default=100, metavar="N", help="do nothing if more fit (100)"
        ),
        flag("--dry-run", "is_dry_run", "only print which ones fit"),
    ),
    word(
        "client subscriptions",
        "clients:list_subscriptions",
        "list subscriptions of connected clients and kept sessions",
        _ID_PATTERN,
        arg(
            "--filter", dest="topic_filter", default="", metavar="PATTERN", help="topic filters, such as a/*"
        ),
        arg("--topic", default="", metavar="TOPIC", help="only filters that this MQTT topic matches"),
        _COUNT,
        _CURSOR,
    ),
    word(
        "client queue",
        "clients:list_queue",
        "list messages that a kept session is not done with; `iotmq admin message id` shows one",
        arg("client_id", metavar="CLIENT_ID"),
        arg("topic_filter", metavar="FILTER", help="of its subscriptions"),
        arg(
            "--limit",
            dest="count_max",
            type=arguments.queue_count,
            default=20,
            metavar="N",
            help="of each broker (20)",
        ),
        _CURSOR,
    ),
    word(
        "client slow",
        "clients:list_slow",
        "list the clients that take their messages slowest",
        arg(
            "--by",
            choices=("latency_ms", "queued", "queued_bytes", "unsent_bytes", "dropped", "in_flight"),
            default="latency_ms",
            help="(latency_ms)",
        ),
        _COUNT,
    ),
    word(
        "client refused",
        "clients:list_refused",
        "list the last ones who were not let in",
        _ID_PATTERN,
        _USER,
        _ADDRESS,
        arg("--reason", default="", metavar="PATTERN", help="such as NOT_AUTHORIZED"),
        _COUNT,
    ),
    word(
        "message consume",
        "messages:consume",
        "have one consumer consume a stored message now; offsets stay",
        _MESSAGE_ID,
        _GROUP,
        _CLIENT,
    ),
    word(
        "message resume",
        "messages:resume_transaction",
        "have a producer asked again about a transaction that was given up",
        _MESSAGE_ID,
    ),
    word("message id", "messages:show_by_id", "print the message at a place", _MESSAGE_ID),
    word(
        "message key",
        "messages:find_by_key",
        "list messages by a word among their keys",
        _TOPIC,
        _KEY,
        flag("--unique", "is_unique", "KEY is the id its sender gave it"),
        _BEGIN,
        _END,
    ),
    word(
        "message offset",
        "messages:show_by_offset",
        "print the message with an offset",
        _TOPIC,
        _BROKER,
        arg("queue", type=int, metavar="QUEUE"),
        arg("offset", type=int, metavar="OFFSET"),
    ),
    word("message track", "messages:track", "print what became of a message in each group", _MESSAGE_ID),
    word(
        "dlq list",
        "dead_letters:list_all",
        "list what a group gave up",
        _GROUP,
        *_CHOSEN,
        arg("--limit", dest="count_max", type=arguments.positive, default=100, metavar="N", help="(100)"),
    ),
    word(
        "dlq resend",
        "dead_letters:resend",
        "send dead letters to their original topics again",
        _GROUP,
        arg("message_ids", nargs="*", metavar="ID", help="of the messages, see `dlq list`"),
        flag("--all", "is_all", "all of them, from where the last --all ended"),
        flag("--again", "is_again", "with --all: from the first one on"),
        arg(
            "--rate",
            dest="per_second",
            type=arguments.rate,
            default=0.0,
            metavar="N",
            help="with --all: at most so many messages a second, such as 50 or 0.5 (as they are taken)",
        ),
        *_CHOSEN,
    ),
    word(
        "dlq export",
        "dead_letters:export",
        "write dead letters to standard output, a line of JSON each",
        _GROUP,
        *_CHOSEN,
    ),
    word(
        "trace start",
        "traces:start",
        "begin a trace at all front ends",
        _TRACE,
        arg("--client", dest="of_client", default="", metavar="ID", help="trace the client with this id"),
        arg("--topic", dest="of_topic", default="", metavar="FILTER", help="trace messages of these topics"),
        arg(
            "--address",
            dest="of_address",
            default="",
            metavar="ADDRESS",
            help="trace connections from this address or network",
        ),
        arg(
            "--for",
            dest="duration_ms",
            type=arguments.duration_ms,
            default=600_000,
            metavar="TIME",
            help="how long, such as 90s or 2h (10m)",
        ),
        arg(
            "--events",
            dest="events_max",
            type=arguments.positive,
            default=10_000,
            metavar="N",
            help="the newest so many are kept at each front end (10000)",
        ),
        arg(
            "--bytes",
            dest="bytes_max",
            type=arguments.positive,
            default=4 * 1024 * 1024,
            metavar="N",
            help="the newest so many bytes of them are kept (4 MiB)",
        ),
        arg(
            "--payload-bytes",
            type=int,
            default=0,
            metavar="N",
            help="keep so much of each payload, and user properties (nothing)",
        ),
    ),
    word("trace stop", "traces:stop", "end a trace; what it has is kept", _TRACE),
    word("trace delete", "traces:delete", "end a trace and forget it", _TRACE),
    word("trace list", "traces:list_all", "list traces"),
    word(
        "trace show",
        "traces:show",
        "write the events of a trace, a line each, oldest first",
        _TRACE,
        flag("--json-lines", "has_json_lines", "as lines of JSON"),
    ),
    word(
        "timer list",
        "timers:list_waiting",
        "list the messages that wait, first things first",
        arg("--topic", metavar="TOPIC", help="only those for this topic"),
        arg("--limit", dest="count_max", type=arguments.positive, default=100, metavar="N", help="(100)"),
        _BROKERS,
    ),
    word(
        "timer cancel",
        "timers:cancel",
        "take a message back that waits",
        _TOPIC,
        arg("message_id", metavar="ID", help="the message id that its send returned, see `timer list`"),
        _BROKERS,
    ),
    word("kv get", "registries:get_value", "print a value", _NAMESPACE, _KEY),
    word("kv list", "registries:list_values", "list the values of a namespace", _NAMESPACE),
    word(
        "kv put",
        "registries:put_value",
        "set a value at every registry",
        _NAMESPACE,
        _KEY,
        arg("value", metavar="VALUE"),
    ),
    word("kv delete", "registries:delete_value", "delete a value at every registry", _NAMESPACE, _KEY),
    word("acl show", "access:show", "print the version of the accounts at each broker", _BROKERS),
    word(
        "acl put",
        "access:put",
        "make an account, or change what is named of one; its secret is in IOTMQ_ACCOUNT_SECRET",
        _ACCOUNT,
        arg("--admin", dest="is_admin", action=argparse.BooleanOptionalAction),
        arg(
            "--address",
            dest="addresses",
            action="append",
            default=[],
            metavar="PATTERN",
            help="that may use it without a signature, such as 10.0.0.*; may be repeated",
        ),
        arg("--default-topic", choices=_ACCESS, help="for topics not named"),
        arg("--default-group", choices=_ACCESS, help="for groups not named"),
        arg(
            "--topic",
            dest="topics",
            action="append",
            default=[],
            type=arguments.access,
            metavar="TOPIC=PERM",
            help="DENY, PUB, SUB or PUB|SUB; may be repeated",
        ),
        arg(
            "--group",
            dest="groups",
            action="append",
            default=[],
            type=arguments.access,
            metavar="GROUP=PERM",
            help="DENY or SUB; may be repeated",
        ),
        arg(
            "--default-mqtt-topic", choices=("DENY", "PUB"), help="for messages to devices under other topics"
        ),
        arg(
            "--mqtt-topic",
            dest="mqtt_topics",
            action="append",
            default=[],
            type=arguments.device_access,
            metavar="FILTER=PERM",
            help="PUB: it may send to devices under these MQTT topics, DENY: it may not; the first that "
            "matches decides; may be repeated",
        ),
        _BROKERS,
    ),
    word("acl delete", "access:delete", "delete an account", _ACCOUNT, _BROKERS),
    word(
        "acl white",
        "access:set_white_addresses",
        "let these addresses, and no others, do everything without an account",
        arg("addresses", nargs="+", metavar="PATTERN", help="such as 10.0.0.*"),
        _BROKERS,
    ),
    word("history series", "history:list_series", "list the series that a process remembers", _PROCESS),
    word(
        "history show",
        "history:show_history",
        "print the values of series; of a counter what it grew by in a second",
        _PROCESS,
        arg("series", nargs="+", metavar="SERIES", help="a metric, or one of its series"),
        arg("--step", dest="step_s", type=int, choices=(10, 60, 1_200), default=0, help="(what fits)"),
        _BEGIN,
        _END,
    ),
    *(
        word(
            f"statistics {table}",
            f"history:show_{table}",
            what,
            arg("--step", choices=("minute", "hour", "day"), default="minute", help="(minute)"),
            arg(
                "--name",
                dest="names",
                action="append",
                default=[],
                metavar="NAME",
                help="step by step of this name, may be repeated (the sums of all names)",
            ),
            arg("--limit", type=arguments.positive, default=100, metavar="N", help="how many names (100)"),
            _BEGIN,
            _END,
        )
        for table, what in (
            ("topics", "print what was sent to topics and consumed from them"),
            ("groups", "print what groups consumed and gave back"),
            ("clients", "print what devices published and got, by the beginning of their client ids"),
        )
    ),
)
