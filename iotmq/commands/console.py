"""The words of `iotmq console`: the people who sign in at the console.

A password is never a word of the command line, where everybody on the machine could read it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from iotmq.commands.devices.users import read_password
from iotmq.errors import ConfigError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.console.access.console_users import ConsoleUser
    from iotmq.console.access.kept_file import KeptFile

_OK: Final = 0


def add_console_actions(
    console: argparse.ArgumentParser,
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Callable[[argparse.Namespace], Config],
) -> None:
    """Add the actions of `console user`."""
    areas = console.add_subparsers(title="areas", metavar="AREA", required=True)
    user = areas.add_parser("user", help="change the file of the people who sign in at the console")
    actions = user.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="add a user")
    listing = actions.add_parser("list", help="print the names with their roles, one a line")
    remove = actions.add_parser("remove", help="remove a user, whose sessions end within seconds")
    password = actions.add_parser("password", help="give a user another password; sessions of the user end")
    role = actions.add_parser("role", help="give a user another role")
    functions = ((add, _add), (listing, _list), (remove, _remove), (password, _password), (role, _role))
    for action, function in functions:
        if action is not listing:
            action.add_argument("name", metavar="NAME")
        if action is role:
            action.add_argument("role", metavar="ROLE", choices=_roles())
        if action is add:
            action.add_argument(
                "--role", choices=_roles(), default="viewer", help="viewer unless told otherwise"
            )
        if action in (add, password):
            action.add_argument(
                "--password-file",
                metavar="FILE",
                help="read the password from the first line of a file, - for standard input, and do not ask",
            )
        action.add_argument("--file", metavar="FILE", help="the file (the setting `http.sign_in.users_file`)")
        add_config_options(action)
        action.set_defaults(command=_command(function, load))


_Action = Callable[[argparse.Namespace, "KeptFile[ConsoleUser]"], int]


def _roles() -> tuple[str, ...]:
    from iotmq.console.access.console_users import ROLES

    return ROLES


def _command(
    function: _Action, load: Callable[[argparse.Namespace], Config]
) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        from iotmq.console.access.console_users import users_file
        from iotmq.console.access.kept_file import KeptFileError

        config = load(options)
        path = Path(options.file) if options.file else config.http.sign_in.users_path(Path(config.data))
        if path is None:
            raise ConfigError("http.sign_in.enabled is false: nobody signs in")
        try:
            return function(options, users_file(path))
        except OSError as error:
            raise ConfigError(f"{error.filename or path}: {error.strerror or error}") from error
        except (KeptFileError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error

    return run


def _add(options: argparse.Namespace, file: KeptFile[ConsoleUser]) -> int:
    from iotmq.console.access.console_users import ConsoleUser, checked_name

    name = checked_name(options.name)
    kept = _hashed(options)

    def add(users: dict[str, ConsoleUser]) -> None:
        if name in users:
            raise ConfigError(f"there is a user {name} already: see `iotmq console user password` and `role`")
        users[name] = ConsoleUser(name, options.role, kept)

    users = file.change_now(add)
    return _said(f"{name}: added as {options.role}", users)


def _list(_options: argparse.Namespace, file: KeptFile[ConsoleUser]) -> int:
    users = file.read()
    for user in users.values():
        print(f"{user.name} {user.role}")
    if not users:
        print(f"{file.path} has no users", file=sys.stderr)
    return _OK


def _remove(options: argparse.Namespace, file: KeptFile[ConsoleUser]) -> int:
    def remove(users: dict[str, ConsoleUser]) -> None:
        del users[_found(users, options.name).name]

    return _said(f"{options.name}: removed", file.change_now(remove))


def _password(options: argparse.Namespace, file: KeptFile[ConsoleUser]) -> int:
    _found(file.read(), options.name)
    kept = _hashed(options)

    def put(users: dict[str, ConsoleUser]) -> None:
        users[options.name] = _found(users, options.name)._replace(kept=kept)

    file.change_now(put)
    return _said(f"{options.name}: has another password now")


def _role(options: argparse.Namespace, file: KeptFile[ConsoleUser]) -> int:
    def put(users: dict[str, ConsoleUser]) -> None:
        users[options.name] = _found(users, options.name)._replace(role=options.role)

    return _said(f"{options.name}: {options.role}", file.change_now(put))


def _found(users: dict[str, ConsoleUser], name: str) -> ConsoleUser:
    if name not in users:
        raise ConfigError(f"there is no user {name[:64]!a}")
    return users[name]


def _hashed(options: argparse.Namespace) -> str:
    from iotmq.console.access.console_users import checked_new_password
    from iotmq.credentials import argon2

    password = read_password(options, is_new=True)
    try:
        return argon2.make(checked_new_password(password.decode()))
    except UnicodeDecodeError:
        raise ConfigError("the password is not UTF-8") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _said(text: str, users: Mapping[str, ConsoleUser] = MappingProxyType({})) -> int:
    """Print what was done, and whether none of the users may make others."""
    print(text, file=sys.stderr)
    if users and all(user.role != "administrator" for user in users.values()):
        print("no user is administrator: see `iotmq console user role`", file=sys.stderr)
    return _OK
