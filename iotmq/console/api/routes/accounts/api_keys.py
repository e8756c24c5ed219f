"""Keys with which programs use the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.console.access.api_keys import ApiKey, make_secret
from iotmq.console.access.console_users import RoleName
from iotmq.console.access.kept_file import KeptFile, KeptFileError
from iotmq.console.api.pages import PageArguments, page_of
from iotmq.console.api.problems import CONFLICT, NOT_FOUND, NOT_SUPPORTED, ProblemError, invalid
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.accounts.sign_in import Done
from iotmq.console.api.routes.accounts.users import UserArguments, UserName
from iotmq.console.api.services import Services

_DAY_MS: Final = 86_400_000
_AREAS_MAX: Final = 32


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make."""

    name: UserName
    """The name that stands in audit records; no other key has it."""
    role: RoleName
    """The most it may do."""
    areas: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=_AREAS_MAX)] = ()
    """The areas of the API it may use, as they stand in the reference; empty: all but users, sessions and
    keys, which no key may use."""
    expires_days: Annotated[int, Meta(ge=1, le=3650)] = 90
    """Days after which it counts no more."""


class ApiKeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without its secret."""

    name: str
    role: str
    areas: list[str]
    created_ms: int
    expires_ms: int
    used_ms: int | None
    """When it was used last since this process started, in milliseconds since 1970."""


class ApiKeys(msgspec.Struct, frozen=True, kw_only=True):
    """A page of keys."""

    items: list[ApiKeyEntry]
    next: str | None


class MadeApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key; nobody can be shown it again."""

    name: str
    key: str
    """Sent in the header Authorization: Bearer KEY."""
    expires_ms: int


async def list_api_keys(services: Services, call: Call[PageArguments, None]) -> ApiKeys:
    """List the API keys, without their secrets."""
    page, following = page_of(_file(services).items.values(), call.arguments, lambda each: each.name)
    used_ms = services.access.keys_used_ms
    return ApiKeys(
        items=[
            ApiKeyEntry(
                name=each.name,
                role=each.role,
                areas=sorted(each.areas),
                created_ms=each.created_ms,
                expires_ms=each.expires_ms,
                used_ms=used_ms.get(each.name),
            )
            for each in page
        ],
        next=following,
    )


async def make_api_key(services: Services, call: Call[NoArguments, NewApiKey]) -> MadeApiKey:
    """Make an API key; the answer is the only one that has it."""
    body = call.body
    unknown = sorted(set(body.areas) - services.areas)
    if unknown:
        detail = f"there is no area {unknown[0]!r}; there are {', '.join(sorted(services.areas))}"
        raise invalid(detail, pointer="/areas")
    shown, kept = make_secret(body.name)
    now_ms = services.clock.now_ms()
    expires_ms = now_ms + body.expires_days * _DAY_MS

    def add(keys: dict[str, ApiKey]) -> None:
        if body.name in keys:
            raise ProblemError(CONFLICT, f"there is a key {body.name} already")
        keys[body.name] = ApiKey(body.name, body.role, now_ms, expires_ms, frozenset(body.areas), kept)

    await _change(services, add)
    return MadeApiKey(name=body.name, key=shown, expires_ms=expires_ms)


async def remove_api_key(services: Services, call: Call[UserArguments, None]) -> Done:
    """Remove an API key, which counts no more from then on."""
    name = call.arguments.name

    def remove(keys: dict[str, ApiKey]) -> None:
        if keys.pop(name, None) is None:
            raise ProblemError(NOT_FOUND, f"there is no key {name}")

    await _change(services, remove)
    services.access.keys_used_ms.pop(name, None)
    return Done()


def _file(services: Services) -> KeptFile[ApiKey]:
    keys = services.access.keys
    if keys is None:
        raise ProblemError(NOT_SUPPORTED, "this process has no API keys: set http.sign_in.api_keys_file")
    return keys


async def _change(services: Services, change: Callable[[dict[str, ApiKey]], None]) -> None:
    try:
        await _file(services).change(change)
    except (OSError, KeptFileError) as error:
        raise ProblemError(CONFLICT, f"the file of API keys cannot be changed: {error}") from error


_TAG: Final = "API keys"

ROUTES: Final = (
    route(
        "GET",
        "/api-keys",
        list_api_keys,
        tag=_TAG,
        role=Role.ADMINISTRATOR,
        is_for_people=True,
        problems=(NOT_SUPPORTED,),
    ),
    route(
        "POST",
        "/api-keys",
        make_api_key,
        tag=_TAG,
        role=Role.ADMINISTRATOR,
        body_bytes_max=4_096,
        is_for_people=True,
        problems=(CONFLICT, NOT_SUPPORTED),
    ),
    route(
        "DELETE",
        "/api-keys/{name}",
        remove_api_key,
        tag=_TAG,
        role=Role.ADMINISTRATOR,
        is_for_people=True,
        problems=(NOT_FOUND, CONFLICT, NOT_SUPPORTED),
    ),
)
