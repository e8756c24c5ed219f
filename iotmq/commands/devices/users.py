"""The words of `iotmq users`: the file of devices' users, for operators.

A password is never a word of the command line, where everybody on the machine could read it.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iotmq.errors import ConfigError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.mqtt_front.access.users_file import Users

_OK: Final = 0
_FAILED: Final = 1


def add_users_actions(
    users: argparse.ArgumentParser,
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Callable[[argparse.Namespace], Config],
) -> None:
    """Add the actions of `users`."""
    actions = users.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="add a user, or give one another password")
    bulk = actions.add_parser("import", help="add many users, or give them other passwords, all or none")
    bulk.add_argument(
        "passwords", metavar="PASSWORDS", help="file with a line NAME:PASSWORD each, - for standard input"
    )
    for action in (add, bulk):
        action.add_argument(
            "--hash",
            choices=("scram-sha-256", "argon2id"),
            help="what is kept of a password (`mqtt.authentication.password_hash`)",
        )
        action.add_argument(
            "--iterations",
            type=int,
            metavar="N",
            help="cost of a password guess, of scram-sha-256 (`mqtt.authentication.scram_iterations`)",
        )
    remove = actions.add_parser("remove", help="remove a user; connections that are open stay")
    listing = actions.add_parser("list", help="print the names, one a line")
    check = actions.add_parser("check", help="check the file, or a password")
    functions = ((add, _add), (bulk, _import), (remove, _remove), (listing, _list), (check, _check))
    for action, function in functions:
        if action in (add, remove):
            action.add_argument("name", metavar="NAME")
        if action is check:
            action.add_argument("name", metavar="NAME", nargs="?", help="ask for this user's password")
        if action in (add, check):
            action.add_argument(
                "--password-file",
                metavar="FILE",
                help="read the password from the first line of a file, - for standard input, and do not ask",
            )
        action.add_argument(
            "--file", metavar="FILE", help="the file (the setting `mqtt.authentication.users_file`)"
        )
        add_config_options(action)
        action.set_defaults(command=_command(function, load))


_Action = Callable[[argparse.Namespace, Path, "Config"], int]


def _command(
    function: _Action, load: Callable[[argparse.Namespace], Config]
) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        config = load(options)
        file = options.file or config.mqtt.authentication.users_file
        if not file:
            raise ConfigError(
                "say which file with --file, or with --config and mqtt.authentication.users_file"
            )
        try:
            return function(options, Path(file), config)
        except OSError as error:
            raise ConfigError(f"{error.filename or file}: {error.strerror or error}") from error

    return run


def _add(options: argparse.Namespace, path: Path, config: Config) -> int:
    make = _maker(options, config)
    name = _prepared_name(options.name)
    password = read_password(options, is_new=True)
    added = _put(path, {name: make(password)})
    print(f"{name}: {'added' if added else 'has another password now'}", file=sys.stderr)
    return _OK


def _import(options: argparse.Namespace, path: Path, config: Config) -> int:
    make = _maker(options, config)
    passwords = _passwords(options.passwords)
    # Hashing lets other threads run.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kept = dict(zip(passwords, pool.map(make, passwords.values()), strict=True))
    added = _put(path, kept)
    print(f"{added} users added, {len(kept) - added} have another password now", file=sys.stderr)
    return _OK


def _put(path: Path, kept: Mapping[str, str]) -> int:
    """Write users into the file; how many of them are new."""
    from iotmq.files import changing
    from iotmq.mqtt_front.access import users_file

    with changing(path):
        data = users_file.read_bytes(path) if path.exists() else b""
        users = users_file.parse_users(data)
        changed = users_file.with_users(data, kept)
        # What is written has to be read again.
        users_file.parse_users(changed)
        users_file.write_users(path, changed)
    return sum(users.kept(name) is None for name in kept)


def _maker(options: argparse.Namespace, config: Config) -> Callable[[bytes], str]:
    """Return what makes of a password what is kept of it."""
    from iotmq.credentials import argon2
    from iotmq.mqtt_front.access import scram

    if (options.hash or config.mqtt.authentication.password_hash) == "argon2id":
        if options.iterations is not None:
            raise ConfigError("--iterations is for --hash scram-sha-256")
        return argon2.make
    iterations = _iterations(options, config)
    return lambda password: str(scram.make_verifier(password, iterations=iterations))


def _iterations(options: argparse.Namespace, config: Config) -> int:
    from iotmq import limits

    least, most = limits.SCRAM_ITERATIONS_MIN, limits.SCRAM_ITERATIONS_MAX
    if options.iterations is None:
        return config.mqtt.authentication.scram_iterations
    if not least <= options.iterations <= most:
        raise ConfigError(f"--iterations {options.iterations} is refused; {least} to {most} are allowed")
    return int(options.iterations)


def _remove(options: argparse.Namespace, path: Path, _config: Config) -> int:
    from iotmq.files import changing
    from iotmq.mqtt_front.access import users_file

    name = _prepared_name(options.name)
    with changing(path):
        data = users_file.read_bytes(path)
        users_file.parse_users(data)
        users_file.write_users(path, users_file.without_user(data, name))
    print(f"{name}: removed", file=sys.stderr)
    return _OK


def _list(_options: argparse.Namespace, path: Path, _config: Config) -> int:
    for name in _read(path):
        print(name)
    return _OK


def _check(options: argparse.Namespace, path: Path, _config: Config) -> int:
    from iotmq.mqtt_front.access import users_file
    from iotmq.mqtt_front.access.kept_passwords import is_password_of

    users = _read(path)
    problem = users_file.warn_when_open(path)
    if options.name is None:
        print(f"{len(users)} users; every line is right")
        return _OK if problem is None else _FAILED
    kept = users.kept(_prepared_name(options.name))
    if kept is None:
        print(f"there is no user {options.name[:64]!a}")
        return _FAILED
    is_right = is_password_of(kept, read_password(options, is_new=False))
    print("the password is right" if is_right else "the password is wrong")
    return _OK if is_right else _FAILED


def _read(path: Path) -> Users:
    from iotmq.mqtt_front.access import users_file

    return users_file.read_users(path)


def _prepared_name(name: str) -> str:
    """As the file has it."""
    from iotmq.mqtt.auth.saslprep import saslprep
    from iotmq.mqtt_front.access.users_file import checked_name

    try:
        return checked_name(saslprep(name))
    except ValueError as error:
        raise ConfigError(f"user name {name[:64]!a} is refused: {error}") from error


def read_password(options: argparse.Namespace, *, is_new: bool) -> bytes:
    from iotmq import limits
    from iotmq.mqtt_front.access.scram import can_be_password

    if options.password_file == "-":
        password = _first_line(sys.stdin.buffer.readline(limits.MQTT_PASSWORD_BYTES_MAX + 2))
    elif options.password_file is not None:
        with Path(options.password_file).open("rb") as file:
            password = _first_line(file.readline(limits.MQTT_PASSWORD_BYTES_MAX + 2))
    elif not sys.stdin.isatty():
        raise ConfigError(
            "there is no terminal to ask for the password; --password-file - reads it from there"
        )
    else:
        password = getpass.getpass("Password: ").encode()
        if is_new and getpass.getpass("Once more: ").encode() != password:
            raise ConfigError("the two passwords differ")
    if not can_be_password(password):
        raise ConfigError(f"a password has 1 to {limits.MQTT_PASSWORD_BYTES_MAX} bytes, none of them NUL")
    return password


def _passwords(file: str) -> dict[str, bytes]:
    """Name -> password of a file of lines; ConfigError names a line that is wrong, and no password."""
    from iotmq import limits
    from iotmq.mqtt_front.access.scram import can_be_password

    with sys.stdin.buffer if file == "-" else Path(file).open("rb") as stream:
        data = stream.read(limits.MQTT_USERS_FILE_BYTES_MAX + 1)
    if len(data) > limits.MQTT_USERS_FILE_BYTES_MAX:
        raise ConfigError(f"{file} has more than {limits.MQTT_USERS_FILE_BYTES_MAX:,} bytes")
    passwords: dict[str, bytes] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        raw_name, colon, password = line.removesuffix(b"\r").partition(b":")
        if not colon and not raw_name:
            continue
        if not colon or not can_be_password(password):
            raise ConfigError(
                f"{file} line {number}: it is not NAME:PASSWORD with 1 to {limits.MQTT_PASSWORD_BYTES_MAX} "
                "bytes of password, none of them NUL"
            )
        try:
            name = _prepared_name(raw_name.decode())
        except (UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"{file} line {number}: {error}") from None
        if name in passwords:
            raise ConfigError(f"{file} line {number}: user {name[:64]!a} is there twice")
        passwords[name] = password
    return passwords


def _first_line(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")
