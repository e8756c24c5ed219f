"""Secrets of settings: text that is not shown, and where it may come from besides the settings themselves.

A secret is read once, when the settings are. What goes wrong is said without a word of the secret.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.files import is_open_to_others

logger = logging.getLogger(__name__)

SECRET_SHOWN: Final = "********"
"""Stands for a secret wherever settings are shown."""
_SOURCES: Final = '{file = "NAME"}, {env = "VARIABLE"} or {command = ["PROGRAM", "ARGUMENT"]}'


class Secret(str):
    """Text that tracebacks, reprs and `%r` do not show. It is the secret itself wherever it is used."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(SECRET_SHOWN)


def hidden(value: Any) -> Any:
    """Return a secret, or a table of several, that does not show itself; anything else as it is."""
    if isinstance(value, dict):
        return {name: hidden(inner) for name, inner in value.items()}
    return Secret(value) if isinstance(value, str) and value else value


def hide(settings: msgspec.Struct, *names: str) -> None:
    """Have these fields not shown: for `__post_init__`, also of settings that do not change."""
    for name in names:
        msgspec.structs.force_setattr(settings, name, hidden(getattr(settings, name)))


class _Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table that stands in place of a secret; one key of it is set."""

    file: Annotated[str, Meta(min_length=1, max_length=limits.FILE_NAME_BYTES_MAX)] | None = None
    env: Annotated[str, Meta(min_length=1, max_length=limits.SECRET_VARIABLE_BYTES_MAX)] | None = None
    command: (
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=limits.SECRET_COMMAND_ARGUMENTS_MAX)] | None
    ) = None


def read_secret(table: Mapping[str, Any]) -> Secret:
    """Return the secret from where the table says. ConfigError names that place and what is wrong there.

    One line end behind it is not part of it, because editors and commands write one.
    """
    try:
        source = msgspec.convert(table, _Source)
    except msgspec.ValidationError:
        source = _Source()
    if sum(each is not None for each in (source.file, source.env, source.command)) != 1:
        raise ConfigError(f"a secret is text, {_SOURCES}")
    if source.file is not None:
        where, data = f"the file {source.file}", _of_file(source.file)
    elif source.env is not None:
        where, data = f"the environment variable {source.env}", _of_variable(source.env)
    else:
        assert source.command is not None
        where, data = f"the command {source.command[0]}", _of_command(source.command)
    if len(data) > limits.SECRET_BYTES_MAX:
        raise ConfigError(f"{where} gives more than {limits.SECRET_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Its text has the bytes.
        raise ConfigError(f"{where} gives bytes that are not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ConfigError(f"{where} is empty")
    return Secret(text)


def _of_file(name: str) -> bytes:
    try:
        # Opening a pipe would wait for somebody to write.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{name} is not a regular file")
            data = file.read(limits.SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if is_open_to_others(Path(name)):
        logger.warning(
            "%s holds a secret and others on this machine may read or change it: chmod 600 it", name
        )
    return data


def _of_variable(name: str) -> bytes:
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(f"there is no environment variable {name}")
    return os.fsencode(value)


def _of_command(command: tuple[str, ...]) -> bytes:
    """Return what a command writes to its standard output; its standard error is ours."""
    deadline_s = time.monotonic() + limits.SECRET_COMMAND_S
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the command {command[0]} cannot be run: {getattr(error, 'strerror', None) or error}"
        ) from None
    code = None
    with process:
        try:
            assert process.stdout is not None
            data = _read_until(process.stdout.fileno(), deadline_s)
            if len(data) > limits.SECRET_BYTES_MAX:
                return data
            code = process.wait(max(0.0, deadline_s - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise ConfigError(
                f"the command {command[0]} did not end within {limits.SECRET_COMMAND_S:g} s"
            ) from None
        finally:
            if code is None:
                # Nobody has waited for it, so its number is nobody else's; what it has started goes with it.
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        raise ConfigError(f"the command {command[0]} ended with code {code}")
    return data


def _read_until(descriptor: int, deadline_s: float) -> bytes:
    """Read to the end, or past the limit of bytes. TimeoutError."""
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(data) <= limits.SECRET_BYTES_MAX:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise TimeoutError
            piece = os.read(descriptor, limits.SECRET_BYTES_MAX + 1 - len(data))
            if not piece:
                break
            data += piece
    return bytes(data)
