"""The file of users who may connect, a line for each:

    # comments and empty lines are allowed
    name:SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY
    name:$argon2id$v=19$m=MEMORY,t=ROUNDS,p=LANES$SALT$HASH

The second part is what is kept of the password (kept_passwords): what PostgreSQL keeps (RFC 5803), or a hash
of argon2id as its own tools write it. A name is text in its SASLprep form, without control characters, and
does not begin with # or begin or end with a space.
"""

from __future__ import annotations

import contextlib
import logging
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from iotmq import limits
from iotmq.credentials.argon2 import ARGON2
from iotmq.errors import IotmqError
from iotmq.files import replace_private_file
from iotmq.mqtt.auth.saslprep import saslprep
from iotmq.mqtt_front.access.kept_passwords import FORMS, check_kept, cost_of
from iotmq.mqtt_front.access.scram import Verifier, parse_verifier

_log: Final = logging.getLogger("iotmq.mqtt")

_MARKS: Final = tuple(f":{form}" for form in FORMS)
_PROBLEMS_SHOWN_MAX: Final = 10
# A server that reads again does so in a thread, and its loop gets the interpreter after so many lines, which
# take some two milliseconds; left to itself a thread keeps it for five.
_LINES_PER_PAUSE: Final = 256
_PAUSE_S: Final = 0.000_1


class UsersFileError(IotmqError):
    """The file of users, or a change to it, breaks a rule; the text says in which lines and what."""


class Users:
    """The users of a file. Names are interned, so connections of a user share its name."""

    def __init__(self, kept: dict[str, str]) -> None:
        """`kept` has what is kept of each user's password, as text: that is half of the memory of objects."""
        self._kept = kept
        counts = Counter(map(cost_of, kept.values())).most_common()
        # What most users have, so that a name that is not there is told by neither number nor time.
        self.usual_cost: str | None = counts[0][0] if counts else None
        self.usual_iterations: int | None = next(
            (int(cost.partition("$")[2]) for cost, _ in counts if not cost.startswith(ARGON2)), None
        )

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[str]:
        """Return the names, in the order of the file."""
        return iter(self._kept)

    def kept(self, name: str) -> str | None:
        """Return the stored form of a user's password, as in the file; None without such a user."""
        return self._kept.get(name)

    def verifier(self, name: str) -> Verifier | None:
        """Return the verifier in its parts; None without such a user, and for a hashed password."""
        kept = self._kept.get(name)
        return None if kept is None or kept.startswith(ARGON2) else parse_verifier(kept)


def read_users(path: Path, *, former: Users | None = None) -> Users:
    """Return the users of a file; lines as in `former` are taken as they are, which makes reading again fast.

    An empty file in the place of `former` users is an error, because it is one that is being written.

    OSError when it cannot be read, UsersFileError when it is too large or breaks a rule.
    """
    return parse_users(read_bytes(path), former=former)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of the file. OSError when it cannot be read, UsersFileError when it is too large."""
    with path.open("rb") as file:
        data = file.read(limits.MQTT_USERS_FILE_BYTES_MAX + 1)
    if len(data) > limits.MQTT_USERS_FILE_BYTES_MAX:
        raise UsersFileError(f"it has more than {limits.MQTT_USERS_FILE_BYTES_MAX:,} bytes")
    return data


def parse_users(data: bytes, *, former: Users | None = None) -> Users:
    """Return the users that the bytes of a file say; UsersFileError names the lines that are wrong."""
    if former and not data.strip():
        # As it is while somebody writes it anew in place, or after a full disk.
        raise UsersFileError("it is empty; a file without users has a comment in it")
    kept: dict[str, str] = {}
    problems: list[str] = []
    for number, raw in enumerate(data.splitlines(), start=1):
        if former is not None and not number % _LINES_PER_PAUSE:
            time.sleep(_PAUSE_S)
        try:
            line = raw.decode()
            if not line.strip() or line.startswith("#"):
                continue
            name, text = _parts(line)
            if former is None or former.kept(name) != text:
                checked_name(name)
                check_kept(text)
            if name in kept:
                raise ValueError(f"user {name[:64]!a} is there twice")
            if len(kept) == limits.MQTT_USERS_MAX:
                raise UsersFileError(f"it has more than {limits.MQTT_USERS_MAX:,} users")
        except ValueError as error:
            problems.append(f"line {number}: {_said(error)}")
            if len(problems) > _PROBLEMS_SHOWN_MAX:
                break
            continue
        kept[sys.intern(name)] = text
    if problems:
        if len(problems) > _PROBLEMS_SHOWN_MAX:
            problems[-1] = "and more"
        raise UsersFileError("\n".join(problems))
    return Users(kept)


def checked_name(name: str) -> str:
    """Return the name; ValueError when it cannot be one."""
    if not name or len(name.encode()) > limits.MQTT_USER_NAME_BYTES_MAX:
        raise ValueError(f"a user name has 1 to {limits.MQTT_USER_NAME_BYTES_MAX} bytes")
    if name.startswith("#") or name != name.strip():
        raise ValueError("a user name does not begin with # and neither begins nor ends with a space")
    for mark in _MARKS:
        if mark in name:
            raise ValueError(f"a user name does not have {mark} in it")
    prepared = saslprep(name)
    if prepared != name:
        raise ValueError(f"user name {name[:64]!a} is not in its SASLprep form, which is {prepared[:64]!a}")
    return name


def with_users(data: bytes, kept: Mapping[str, Verifier | str]) -> bytes:
    """Return the bytes of the file with these users, each in the place of one of its name or at the end."""
    left = {checked_name(name): str(text) for name, text in kept.items()}
    lines = data.splitlines(keepends=True)
    for at, line in enumerate(lines):
        name = _name_of(line)
        if name in left:
            lines[at] = f"{name}:{left.pop(name)}\n".encode()
    if lines and left and not lines[-1].endswith(b"\n"):
        lines.append(b"\n")
    lines += (f"{name}:{text}\n".encode() for name, text in left.items())
    return b"".join(lines)


def without_user(data: bytes, name: str) -> bytes:
    """Return the bytes of the file without this user, never none; UsersFileError when it is not there."""
    lines = data.splitlines(keepends=True)
    kept = [line for line in lines if _name_of(line) != name]
    if len(kept) == len(lines):
        raise UsersFileError(f"there is no user {name[:64]!a}")
    return b"".join(kept) or b"# nobody\n"


def write_users(path: Path, data: bytes) -> None:
    """Replace the file, readable as it was, but never for everybody. OSError leaves it as it is."""
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        mode |= stat.S_IMODE(path.stat().st_mode) & 0o040
    replace_private_file(path, data, mode=mode)


def warn_when_open(path: Path) -> str | None:
    """Log a problem of the file's permissions, and return it; None when there is none."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if not mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        return None
    text = f"{path} holds secrets and others on this machine may read or change it: chmod 600 it"
    _log.warning(text)
    return text


def _name_of(line: bytes) -> str | None:
    """Return the user of a line; None for a comment and for a line without one."""
    at = max(line.rfind(mark.encode()) for mark in _MARKS)
    return None if at < 0 or line.startswith(b"#") else line[:at].decode(errors="replace")


def _parts(line: str) -> tuple[str, str]:
    at = max(line.rfind(mark) for mark in _MARKS)
    if at < 0:
        raise ValueError(
            f"it is not name{_MARKS[0]}ITERATIONS:SALT$STOREDKEY:SERVERKEY or name{_MARKS[1]}..."
        )
    return line[:at], line[at + 1 :]


def _said(error: ValueError) -> str:
    return f"it is not UTF-8 (byte {error.start})" if isinstance(error, UnicodeDecodeError) else str(error)
