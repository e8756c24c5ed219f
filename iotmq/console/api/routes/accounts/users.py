"""The people who sign in with a password."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.console.access.console_users import (
    NAME_PATTERN,
    ConsoleUser,
    RoleName,
    checked_name,
    checked_new_password,
)
from iotmq.console.access.kept_file import KeptFile, KeptFileError
from iotmq.console.access.passwords import SignInFailedError, TooManyAttemptsError
from iotmq.console.api.pages import PageArguments, page_of
from iotmq.console.api.problems import (
    CONFLICT,
    FORBIDDEN,
    INVALID,
    NOT_FOUND,
    NOT_SUPPORTED,
    TOO_MANY,
    ProblemError,
    invalid,
)
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.accounts.sign_in import Done
from iotmq.console.api.services import Services
from iotmq.secret_text import hide

UserName = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=limits.CONSOLE_USER_NAME_CHARACTERS_MAX)]
PasswordText = Annotated[str, Meta(max_length=limits.CONSOLE_PASSWORD_BYTES_MAX)]


class UserArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user of the console, or one API key."""

    name: UserName
    """The name."""

    def __post_init__(self) -> None:
        # A pattern lets a line end pass behind it.
        checked_name(self.name)


class ConsoleUserSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The role and the password of a user; what is left out stays as it is."""

    role: RoleName | None = None
    """A new user has to have one."""
    password: PasswordText = ""
    """At least 10 characters; a new user has to have one. Another one ends the sessions of the user."""

    def __post_init__(self) -> None:
        hide(self, "password")


class ConsoleUserEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A user who may sign in with a password."""

    name: str
    role: str
    sessions: int
    """In how many browsers that is so now."""


class ConsoleUsers(msgspec.Struct, frozen=True, kw_only=True):
    """A page of users."""

    items: list[ConsoleUserEntry]
    next: str | None


class NewPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another password for oneself."""

    former: PasswordText
    """The password until now."""
    password: PasswordText
    """At least 10 characters."""

    def __post_init__(self) -> None:
        hide(self, "former", "password")


async def list_console_users(services: Services, call: Call[PageArguments, None]) -> ConsoleUsers:
    """List the people who sign in with a password."""
    page, following = page_of(_file(services).items.values(), call.arguments, lambda each: each.name)
    sessions = [each for each in services.access.sessions.all() if each.way == "password"]
    return ConsoleUsers(
        items=[
            ConsoleUserEntry(
                name=each.name, role=each.role, sessions=sum(own.name == each.name for own in sessions)
            )
            for each in page
        ],
        next=following,
    )


async def put_console_user(services: Services, call: Call[UserArguments, ConsoleUserSettings]) -> Done:
    """Add a user of the console, or give one another role or password."""
    name, body = call.arguments.name, call.body
    kept = await _hashed(services, body.password, "/password") if body.password else ""

    def put(users: dict[str, ConsoleUser]) -> None:
        former = users.get(name)
        if former is None and not (body.role and kept):
            raise ProblemError(INVALID, f"there is no user {name} yet: a new one needs a role and a password")
        role = body.role or (former.role if former else "viewer")
        if former is not None and former.role == "administrator" != role:
            _check_is_left(users, name, call.caller.name)
        users[name] = ConsoleUser(name, role, kept or (former.kept if former else ""))

    await _change(services, put)
    return Done()


async def remove_console_user(services: Services, call: Call[UserArguments, None]) -> Done:
    """Remove a user of the console; the sessions of that user end."""
    name = call.arguments.name

    def remove(users: dict[str, ConsoleUser]) -> None:
        if name not in users:
            raise ProblemError(NOT_FOUND, f"there is no user {name}")
        if users[name].role == "administrator":
            _check_is_left(users, name, call.caller.name)
        del users[name]

    await _change(services, remove)
    return Done()


async def change_own_password(services: Services, call: Call[NoArguments, NewPassword]) -> Done:
    """Change one's own password; this ends all one's sessions, this one too."""
    name = call.caller.name
    if call.caller.way != "password":
        raise ProblemError(FORBIDDEN, "this is for who has signed in with a password")
    passwords = services.access.passwords
    try:
        await passwords.check(_file(services).items, name, call.body.former, call.caller.address)
    except SignInFailedError:
        raise invalid("this is not the password", pointer="/former") from None
    except TooManyAttemptsError as error:
        raise ProblemError(TOO_MANY, str(error)) from None
    kept = await _hashed(services, call.body.password, "/password")

    def put(users: dict[str, ConsoleUser]) -> None:
        if name not in users:
            raise ProblemError(NOT_FOUND, f"there is no user {name}")
        users[name] = users[name]._replace(kept=kept)

    await _change(services, put)
    return Done()


def _file(services: Services) -> KeptFile[ConsoleUser]:
    users = services.access.users
    if users is None:
        raise ProblemError(NOT_SUPPORTED, "this process has no users: set http.sign_in.users_file")
    return users


async def _hashed(services: Services, password: str, pointer: str) -> str:
    try:
        data = checked_new_password(password)
    except ValueError as error:
        raise invalid(str(error), pointer=pointer) from None
    try:
        return await services.access.passwords.hash(data)
    except TooManyAttemptsError as error:
        raise ProblemError(TOO_MANY, str(error)) from None


async def _change(services: Services, change: Callable[[dict[str, ConsoleUser]], None]) -> None:
    try:
        await _file(services).change(change)
    except (OSError, KeptFileError) as error:
        raise ProblemError(CONFLICT, f"the file of users cannot be changed: {error}") from error


def _check_is_left(users: dict[str, ConsoleUser], name: str, caller: str) -> None:
    """Refuse to lose the last administrator, and oneself."""
    if name == caller:
        raise ProblemError(CONFLICT, "nobody takes the role of administrator from oneself")
    if not any(each.role == "administrator" for each in users.values() if each.name != name):
        raise ProblemError(CONFLICT, f"{name} is the last administrator")


_AREA: Final = "console users"
_OF_FILE: Final = (CONFLICT, NOT_SUPPORTED, TOO_MANY, INVALID)

ROUTES: Final = (
    route(
        "GET",
        "/console-users",
        list_console_users,
        tag=_AREA,
        role=Role.ADMINISTRATOR,
        is_for_people=True,
        problems=(NOT_SUPPORTED,),
    ),
    route(
        "PUT",
        "/console-users/{name}",
        put_console_user,
        tag=_AREA,
        role=Role.ADMINISTRATOR,
        body_bytes_max=4_096,
        is_for_people=True,
        problems=_OF_FILE,
    ),
    route(
        "DELETE",
        "/console-users/{name}",
        remove_console_user,
        tag=_AREA,
        role=Role.ADMINISTRATOR,
        is_for_people=True,
        problems=(*_OF_FILE, NOT_FOUND),
    ),
    route(
        "PUT",
        "/me/password",
        change_own_password,
        tag=_AREA,
        body_bytes_max=4_096,
        is_for_people=True,
        problems=(*_OF_FILE, NOT_FOUND),
    ),
)
