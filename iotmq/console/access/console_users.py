"""The file of the people who may sign in at the console, a line for each:

    # comments and empty lines are allowed
    NAME:ROLE:$argon2id$v=19$m=MEMORY,t=ROUNDS,p=LANES$SALT$HASH

`iotmq console user` writes it, and so do administrators by the API. A running server notices.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from iotmq import limits
from iotmq.console.access.kept_file import KeptFile, parse_lines
from iotmq.credentials import argon2

RoleName: TypeAlias = Literal["viewer", "operator", "administrator"]
ROLES: Final[tuple[RoleName, ...]] = get_args(RoleName)
"""From the one who may least."""

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"
_NAME: Final = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")
_FIRST_LINE: Final = "# Users of the console, NAME:ROLE:HASH; `iotmq console user` changes them.\n"


class ConsoleUser(NamedTuple):
    """One who may sign in with a password."""

    name: str
    role: RoleName
    kept: str
    """The hash of the password."""


Users: TypeAlias = Mapping[str, ConsoleUser]


def users_file(path: Path) -> KeptFile[ConsoleUser]:
    """Return the users of a file."""
    return KeptFile(path, parse=parse_users, encode=encode_users, bytes_max=limits.CONSOLE_FILE_BYTES_MAX)


def parse_users(data: bytes) -> dict[str, ConsoleUser]:
    """Return the users that the bytes of a file say; KeptFileError names the lines that are wrong."""
    return parse_lines(data, _parsed, most=limits.CONSOLE_USERS_MAX)


def encode_users(users: Users) -> bytes:
    """Return the bytes of a file with these users; comments that were there are gone."""
    lines = (f"{each.name}:{each.role}:{each.kept}\n" for each in users.values())
    return (_FIRST_LINE + "".join(lines)).encode()


def checked_name(name: str) -> str:
    """Return a name of a user. ValueError when it cannot be one."""
    if not _NAME.match(name) or len(name) > limits.CONSOLE_USER_NAME_CHARACTERS_MAX:
        raise ValueError(
            f"a name has 1 to {limits.CONSOLE_USER_NAME_CHARACTERS_MAX} letters of ASCII, digits and ._@+-, "
            "and begins with a letter or a digit"
        )
    return name


def password_bytes(password: str) -> bytes:
    """Return what is hashed of a password, the same for all ways to type a letter. ValueError."""
    data = unicodedata.normalize("NFKC", password).encode()
    if len(data) > limits.CONSOLE_PASSWORD_BYTES_MAX:
        raise ValueError(f"a password has at most {limits.CONSOLE_PASSWORD_BYTES_MAX} bytes")
    return data


def checked_new_password(password: str) -> bytes:
    """Return what is hashed of a password somebody chooses. ValueError when it is too short or too long."""
    if len(password) < limits.CONSOLE_PASSWORD_CHARACTERS_MIN:
        raise ValueError(f"a password has at least {limits.CONSOLE_PASSWORD_CHARACTERS_MIN} characters")
    return password_bytes(password)


def _parsed(line: str) -> tuple[str, ConsoleUser]:
    name, _, rest = line.partition(":")
    role, _, kept = rest.partition(":")
    checked_name(name)
    if role not in ROLES:
        raise ValueError(f"the role of {name} is none of {', '.join(ROLES)}")
    try:
        argon2.check(kept)
    except ValueError as error:
        raise ValueError(f"the hash of {name}: {error}") from None
    return name, ConsoleUser(name, role, kept)
