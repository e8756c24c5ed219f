"""The `iotmq` command."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import iotmq
from iotmq.commands.command_parser import CommandParser, Commands
from iotmq.commands.connection_options import add_connection_options, client_settings
from iotmq.cycles import rare_collections
from iotmq.errors import ConfigError, IotmqError, StoreError

if TYPE_CHECKING:
    from iotmq.assembly import RoleName
    from iotmq.client.transport.message import SendResult
    from iotmq.config.config import Config

# What the process answers to the shell.
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

_ROLES: Final = {
    "serve": "every role in one process: registry, broker and MQTT front end",
    "registry": "a registry: tells clients which broker has which topic",
    "broker": "a broker: the log on disk and the native port",
    "mqtt": "an MQTT front end for brokers in other processes",
}

# What `store dump` can print: `iotmq.commands.store` has the same names.
_DUMP_SUBJECTS: Final = (
    "summary", "segments", "records", "queues", "entries", "index", "checkpoint", "kv", "retained",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; the parser itself leaves with 2 on wrong usage."""
    options = parser().parse_args(arguments)
    command = cast("Callable[[argparse.Namespace], int]", options.command)
    try:
        return command(options)
    except ConfigError as error:
        return _complain(str(error), EXIT_USAGE)
    except IotmqError as error:
        return _complain(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Nothing may be left for the interpreter to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    top: argparse.ArgumentParser = CommandParser(
        prog="iotmq", description="An MQTT-first IoT gateway with a RocketMQ-compatible queue backend."
    )
    top.add_argument("--version", action="version", version=f"iotmq {iotmq.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for role, what in _ROLES.items():
        _add(commands, role, f"run {what}", partial(_add_role_options, role=role))
    _add(commands, "config", "check and show settings", _add_config_actions)
    _add(
        commands,
        "store",
        "look into a data directory that is not in use",
        _add_store_actions,
        "Look into a data directory and put it right. Nobody may have it open. Exit codes: 0 all is well, 1 "
        "something was found, 2 it could not be done.",
    )
    _add(
        commands,
        "produce",
        "send messages by hand",
        _add_produce_options,
        "Send each BODY as a message, or each line of standard input when there is none.",
    )
    _add(
        commands,
        "consume",
        "read messages by hand",
        _add_consume_options,
        "Write the messages of a topic to standard output until Ctrl-C, or --count of them. "
        "A topic that does not exist yet is waited for.",
    )
    _add(
        commands,
        "tail",
        "follow topics: the last messages, and those that come",
        _add_tail_options,
        "Write the last messages of topics, oldest first, and then those that come, until Ctrl-C. Nothing is "
        "stored at the brokers.",
    )
    _add(
        commands,
        "archive",
        "write the messages of topics into files",
        _add_archive_options,
        "Write the messages of topics into files of one queue each, until Ctrl-C, and print the name of each "
        "file that is whole. One that was killed goes on behind its last whole file.",
    )
    _add_mqtt_commands(commands)
    _add_tools(commands)
    return top


def _add(
    commands: Commands,
    name: str,
    what: str,
    fill: Callable[[argparse.ArgumentParser], None],
    description: str = "",
    *,
    has_help: bool = True,
) -> None:
    commands.add_parser(
        name,
        help=what,
        description=description or f"{what[0].upper()}{what[1:]}.",
        fill=fill,
        add_help=has_help,
    )


# What these have is in modules of their own, each of which is imported for its commands only.


def _add_mqtt_commands(commands: Commands) -> None:
    def fill(name: str, command: argparse.ArgumentParser) -> None:
        from iotmq.commands.mqtt import command as words

        add_options = {
            "pub": words.add_publish_options,
            "sub": words.add_subscribe_options,
            "rr": words.add_request_options,
        }
        add_options[name](command)

    for name, what in (
        ("pub", "publish to an MQTT broker"),
        ("sub", "subscribe at an MQTT broker, and write what comes"),
        ("rr", "publish a request to an MQTT broker, and write the answer"),
    ):
        description = f"{what[0].upper()}{what[1:]}. Options are named as in mosquitto_{name}."
        _add(commands, name, what, partial(fill, name), description, has_help=False)


def _add_tools(commands: Commands) -> None:
    def fill_admin(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.admin.command import add_admin_actions

        add_admin_actions(command, add_registry_option=_add_registry_option, run=_run_admin)

    def fill_sessions(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.devices.sessions import add_sessions_actions

        add_sessions_actions(command, add_registry_option=_add_registry_option, run=_run_admin)

    def fill_bans(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.devices.bans import add_bans_actions

        add_bans_actions(command, add_registry_option=_add_registry_option, run=_run_admin)

    def fill_users(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.devices.users import add_users_actions

        add_users_actions(command, add_config_options=_add_config_options, load=_load)

    def fill_console(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.console import add_console_actions

        add_console_actions(command, add_config_options=_add_config_options, load=_load)

    def fill_access(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.devices.access import add_access_actions

        add_access_actions(command, add_config_options=_add_config_options, load=_load)

    def fill_bridges(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.bridges import add_bridges_actions

        add_bridges_actions(command, add_config_options=_add_config_options, load=_load, run=_run_role)

    def fill_alarms(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.alarms import add_alarms_actions

        add_alarms_actions(command, add_config_options=_add_config_options, load=_load)

    def fill_routes(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.devices.routes import add_routes_actions

        add_routes_actions(command, add_config_options=_add_config_options, load=_load)

    def fill_replication(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.replication import add_replication_actions

        add_replication_actions(command, add_config_options=_add_config_options, load=_load)

    def fill_loadtest(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.loadtest import add_loadtest_actions

        add_loadtest_actions(command)

    def fill_spark(command: argparse.ArgumentParser) -> None:
        from iotmq.commands.spark import add_spark_actions

        add_spark_actions(command)

    _add(
        commands,
        "admin",
        "look at and change brokers, topics, groups, messages",
        fill_admin,
        "Look at and change brokers, registries, topics, groups and messages. Tables for people, --json for "
        "programs. Exit codes: 0 done, 1 refused or not reachable (the error says what to do), 2 wrong "
        "usage, 130 interrupted.",
    )
    _add(commands, "sessions", "look at and end kept MQTT sessions", fill_sessions)
    _add(commands, "bans", "ban MQTT devices, and see who is banned", fill_bans)
    _add(
        commands,
        "users",
        "change the file of MQTT users",
        fill_users,
        "Change the file of MQTT users. Front ends notice changes by themselves.",
    )
    _add(commands, "console", "say who may sign in at the console", fill_console)
    _add(commands, "bridges", "run bridges to other MQTT brokers, and show how they are doing", fill_bridges)
    _add(commands, "alarms", "show, acknowledge and silence alarms, and try who is told", fill_alarms)
    _add(commands, "routes", "try the routes of MQTT topics", fill_routes)
    _add(
        commands,
        "access",
        "say what MQTT devices may do",
        fill_access,
        "Say what MQTT devices may do by the settings and the file of permissions.",
    )
    _add(
        commands,
        "replication",
        "look at the members of a replicated broker, change them and the master",
        fill_replication,
        "Look at the members of a replicated broker, change them and the master. Every action needs the "
        "settings of a member: --config FILE.",
    )
    _add(
        commands,
        "loadtest",
        "put a load on an MQTT broker, and show what it did",
        fill_loadtest,
        "Put a load on any MQTT broker: thousands of devices in a few processes.",
    )
    _add(commands, "spark", "run jobs over stored messages, here or on a Spark cluster", fill_spark)


# Running roles ----------------------------------------------------------------------------------------


def _add_role_options(command: argparse.ArgumentParser, *, role: str) -> None:
    _add_config_options(command)
    if role == "mqtt":
        command.add_argument(
            "--workers",
            metavar="N",
            help="processes that share the MQTT port (the setting `mqtt.workers`)",
        )
    command.set_defaults(command=_run_role, role=role)


def _add_config_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE.toml", help="read settings from this file")
    command.add_argument("--data", metavar="DIR", help="directory of the log (the setting `data`)")
    command.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="set one setting; may be repeated, and wins over the file and the variable IOTMQ_SECTION__KEY",
    )


def _load(options: argparse.Namespace) -> Config:
    from iotmq.config.config import load_config

    assignments = list(options.assignments)
    if getattr(options, "workers", None) is not None:
        assignments.append(f"mqtt.workers={options.workers}")
    return load_config(options.config, environment=os.environ, assignments=assignments, data=options.data)


def _run_role(options: argparse.Namespace) -> int:
    with rare_collections():
        config = _load(options)
        # Only now: what a server needs takes a moment to import, and help or a wrong setting should not.
        import uvloop

        from iotmq.assembly import run
        from iotmq.log_format import set_up_logging

    set_up_logging(config.log)
    uvloop.run(run(config, cast("RoleName", options.role)))
    # Nobody looks for garbage among what the system takes back at once.
    gc.freeze()
    return EXIT_OK


# Configuration ----------------------------------------------------------------------------------------


def _add_config_actions(config: argparse.ArgumentParser) -> None:
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="check the settings and their files, and print errors")
    check.add_argument(
        "--settings-only",
        action="store_true",
        help="look at no files of users, permissions, accounts, keys and certificates",
    )
    show = actions.add_parser("show", help="print the settings in effect, as TOML")
    reference = actions.add_parser("reference", help="print every setting with its meaning, as Markdown")
    for action in (check, show):
        _add_config_options(action)
    check.set_defaults(command=_check_config)
    show.set_defaults(command=_show_config)
    reference.set_defaults(command=_show_reference)


def _check_config(options: argparse.Namespace) -> int:
    """Everything that stops a start and is known without another machine."""
    from iotmq.commands.config_check import problems_of

    problems = list(problems_of(_load(options), with_files=not options.settings_only))
    if problems:
        raise ConfigError("\n".join(problems))
    print("the settings are valid")
    return EXIT_OK


def _show_config(options: argparse.Namespace) -> int:
    from iotmq.config.setting_text import toml_document

    print(toml_document(_load(options)), end="")
    return EXIT_OK


def _show_reference(_options: argparse.Namespace) -> int:
    from iotmq.config.config import Config
    from iotmq.config.setting_text import reference

    print(reference(Config), end="")
    return EXIT_OK


# The store ---------------------------------------------------------------------------------------------


def _add_store_actions(store: argparse.ArgumentParser) -> None:
    actions = store.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="say every inconsistency in a sentence; changes nothing")
    check.set_defaults(tool=_store_check)
    dump = actions.add_parser("dump", help="print the contents of the files, an item a line; changes nothing")
    dump.add_argument("subject", nargs="?", choices=_DUMP_SUBJECTS, default="summary", metavar="WHAT",
                      help=f"one of {', '.join(_DUMP_SUBJECTS)} (summary)")  # fmt: skip
    dump.add_argument("--json", dest="is_json", action="store_true", help="one JSON object a line")
    dump.add_argument(
        "--from",
        dest="begin",
        metavar="N",
        help="begin at a position (segments, records), offset (entries), slot (index) or MQTT topic "
        "(retained)",
    )
    dump.add_argument("--limit", type=_count, metavar="N", help="end after N items")
    dump.add_argument("--topic", help="only this broker topic's")
    dump.add_argument("--queue", type=_count, metavar="ID", help="only the queues with this id")
    dump.add_argument("--bodies", action="store_true", help="print the bodies of records, too")
    dump.set_defaults(tool=_store_dump)
    rebuild = actions.add_parser("rebuild", help="delete the files derived from the log and make them again")
    rebuild.add_argument(
        "names", nargs="*", metavar="NAME", help="consumequeue, index, timers ... (all there are)"
    )
    rebuild.set_defaults(tool=_store_rebuild)
    repair = actions.add_parser(
        "repair",
        help="check the whole log, put damaged bytes aside and print which messages are lost",
        description="Check every record of the log. Bytes that are no records are copied to "
        "commitlog.damage/, covered by markers that everybody steps over, and reported with the offsets "
        "that are lost.",
    )
    repair.add_argument("--json", dest="is_json", action="store_true", help="one JSON object a line")
    repair.set_defaults(tool=_store_repair)
    salvage = actions.add_parser(
        "salvage",
        help="show what a member of a replicated broker has cut off its log, and publish it again",
        description="Show the records of a file of commitlog.diverged: nobody was told that they are stored. "
        "With --yes their messages are published again, in order, to the queues they were in; what brokers "
        "have stored already is not stored twice. The data directory may be in use. Exit codes: 0 done, "
        "1 some messages were not taken, 2 it could not be done.",
    )
    salvage.add_argument("file", type=Path, metavar="FILE.bin", help="a file of commitlog.diverged")
    salvage.add_argument("--json", dest="is_json", action="store_true", help="one JSON object a line")
    salvage.add_argument("--bodies", action="store_true", help="print the bodies of records, too")
    salvage.add_argument(
        "--yes", dest="is_confirmed", action="store_true", help="publish them, not only show them"
    )
    _add_registry_option(salvage)
    add_connection_options(salvage)
    salvage.set_defaults(tool=_store_salvage)
    for action in (check, dump, rebuild, repair, salvage):
        _add_config_options(action)
        action.set_defaults(command=_run_store_tool)


def _run_store_tool(options: argparse.Namespace) -> int:
    config = _load(options)
    try:
        return cast("Callable[[argparse.Namespace, Config], int]", options.tool)(options, config)
    except StoreError as error:
        return _complain(str(error), EXIT_USAGE)


def _store_check(_options: argparse.Namespace, config: Config) -> int:
    from iotmq.commands import store as store_tools

    return store_tools.check(Path(config.data), config.store, output=sys.stdout)


def _store_dump(options: argparse.Namespace, config: Config) -> int:
    from iotmq.commands import store as store_tools

    wanted = store_tools.DumpFilter(
        options.begin, options.limit, options.topic, options.queue, has_bodies=options.bodies
    )
    return store_tools.dump(
        Path(config.data),
        config.store,
        options.subject,
        wanted=wanted,
        is_json=options.is_json,
        output=sys.stdout,
    )


def _store_rebuild(options: argparse.Namespace, config: Config) -> int:
    from iotmq.commands import store as store_tools

    return store_tools.rebuild(Path(config.data), config.store, options.names, output=sys.stdout)


def _store_repair(options: argparse.Namespace, config: Config) -> int:
    from iotmq.commands import store as store_tools

    return store_tools.repair(Path(config.data), config.store, is_json=options.is_json, output=sys.stdout)


def _store_salvage(options: argparse.Namespace, config: Config) -> int:
    from iotmq.broker.tables.system_topics import system_topic_names
    from iotmq.commands import salvage

    kept, rest_bytes = salvage.read_kept(options.file, system_topics=system_topic_names(config.broker))
    salvage.show(kept, rest_bytes, has_bodies=options.bodies, is_json=options.is_json, output=sys.stdout)
    for line in salvage.summary(kept):
        print(line, file=sys.stderr)
    batches = list(salvage.batches_of(kept))
    if not options.is_confirmed or not batches:
        print("Nothing is published. Say it again with --yes to do it.", file=sys.stderr)
        return EXIT_OK
    settings = client_settings(options, _registries(options))
    done: list[salvage.Salvaged] = []

    async def publish() -> int:
        done.append(await salvage.publish(settings, batches, broker=config.broker.name))
        return EXIT_OK

    _run(publish())
    (salvaged,) = done
    for problem in salvaged.problems:
        print(problem, file=sys.stderr)
    print(
        f"{salvaged.stored_count:,} messages stored, {salvaged.found_count:,} were stored already",
        file=sys.stderr,
    )
    return salvage.exit_code(salvaged)


# By hand ----------------------------------------------------------------------------------------------


def _add_registry_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--registry",
        dest="registries",
        action="append",
        metavar="HOST:PORT",
        help="address of a registry, may be repeated (127.0.0.1:9876)",
    )


def _add_produce_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("topic", metavar="TOPIC", help="broker topic")
    command.add_argument("bodies", metavar="BODY", nargs="*")
    command.add_argument("--key", default="", help="messages of one key stay in one queue, in order")
    command.add_argument("--tags", default="", help="word that consumers may filter by")
    command.add_argument(
        "--property",
        dest="properties",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of the messages, may be repeated",
    )
    add_connection_options(command)
    _add_registry_option(command)
    command.set_defaults(command=_produce)


def _produce(options: argparse.Namespace) -> int:
    from iotmq.commands.messages import produce_consume

    properties: dict[str, str] = {}
    for pair in options.properties:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            return _complain(f"--property {pair}: the form is NAME=VALUE", EXIT_USAGE)
        properties[name] = value

    def report(result: SendResult) -> None:
        queue = result.queue
        print(f"{queue.topic} {queue.broker_name}/{queue.queue_id}@{result.queue_offset} {result.message_id}")

    async def given() -> AsyncIterator[bytes]:
        for body in options.bodies:
            yield os.fsencode(body)

    async def send() -> int:
        return await produce_consume.produce(
            client_settings(options, _registries(options)),
            options.topic,
            given() if options.bodies else produce_consume.lines_of(sys.stdin.buffer),
            key=options.key,
            tags=options.tags,
            properties=properties,
            report=report if options.bodies else None,
        )

    count = _run(send())
    print(f"{count} {'message' if count == 1 else 'messages'} stored", file=sys.stderr)
    return EXIT_OK


def _add_consume_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("topic", metavar="TOPIC", help="broker topic")
    command.add_argument(
        "--group",
        default="",
        help="share the messages with this group and store its offsets; without, read alone",
    )
    command.add_argument("--tags", default="*", metavar="EXPRESSION", help="such as 'alarm || fault'")
    command.add_argument(
        "--from",
        dest="begin",
        choices=("first", "last"),
        default="last",
        help="where to begin when the group has no offset: all that is stored, or only what comes (default)",
    )
    command.add_argument("--count", type=_count, metavar="N", help="end after N messages")
    command.add_argument("--format", choices=("text", "json", "raw"), default="text", help="output format")
    add_connection_options(command)
    _add_registry_option(command)
    command.set_defaults(command=_consume)


def _consume(options: argparse.Namespace) -> int:
    from iotmq.commands.messages import produce_consume

    _run(
        produce_consume.consume(
            client_settings(options, _registries(options)),
            options.topic,
            sys.stdout.buffer,
            group=options.group,
            tags=options.tags,
            begin=options.begin,
            count_max=options.count,
            output_format=options.format,
        )
    )
    return EXIT_OK


def _add_tail_options(command: argparse.ArgumentParser) -> None:
    from iotmq.commands.messages.tail import add_tail_options

    add_tail_options(command, run=_tail)
    add_connection_options(command)
    _add_registry_option(command)


def _tail(options: argparse.Namespace) -> int:
    from iotmq.commands.messages import tail

    return _run(
        tail.tail(
            client_settings(options, _registries(options)),
            options.topics,
            sys.stdout.buffer,
            tags=options.tags,
            last=options.last,
            count_max=options.count,
            percent=options.sample,
            output_format=options.format,
        )
    )


def _add_archive_options(command: argparse.ArgumentParser) -> None:
    from iotmq.commands.messages.archive import add_archive_options

    add_archive_options(command, run=_archive)
    add_connection_options(command)
    _add_registry_option(command)


def _archive(options: argparse.Namespace) -> int:
    from iotmq.commands.messages import archive

    return _run(
        archive.archive(
            client_settings(options, _registries(options)),
            options.topics,
            options.group,
            archive.archive_settings(options),
            tags=options.tags,
            begin=options.begin,
            is_once=options.once,
            report=archive.tell,
        )
    )


# Administration ---------------------------------------------------------------------------------------


def _run_admin(options: argparse.Namespace) -> int:
    from iotmq.commands.admin.command import run_action

    return _run(run_action(options, _registries(options)))


def _registries(options: argparse.Namespace) -> tuple[str, ...]:
    from iotmq.client.transport.settings import ClientSettings

    return tuple(options.registries or ClientSettings().registries)


def _run(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end; SIGTERM ends it as Ctrl-C does, with offsets committed and the group left."""
    import asyncio
    import signal

    async def watched() -> int:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _complain(text: str, code: int) -> int:
    """Print the reason of a failure to standard error."""
    print(f"iotmq: {text}", file=sys.stderr)
    return code
