"""People whom another system names: a name that can stand in records, and the role of who they are there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.console.access.console_users import RoleName
from iotmq.console.settings import RoleSettings

_EVERYBODY: Final = "*"


class Person(NamedTuple):
    """A person of another system."""

    name: str
    role: RoleName


def person_of(name: object, names: Collection[str], settings: RoleSettings) -> Person | None:
    """Return who this is, with the highest role; None for who has no role here.

    ValueError for a name that is none.
    """
    if (
        not isinstance(name, str)
        or not name
        or not name.isprintable()
        or len(name) > limits.CONSOLE_FOREIGN_NAME_CHARACTERS_MAX
    ):
        raise ValueError("it has no name that can stand in records")
    roles: tuple[tuple[RoleName, Collection[str]], ...] = (
        ("administrator", settings.administrators),
        ("operator", settings.operators),
        ("viewer", settings.viewers),
    )
    for role, theirs in roles:
        if _EVERYBODY in theirs or any(each in theirs for each in names):
            return Person(name, role)
    return None
