"""A route of the API as data.

From the table of them everything is made: registration, the check of the role, decoding and validation,
the audit record, the OpenAPI document and the page of the reference.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from iotmq.console.access.console_sessions import Session, Way
from iotmq.console.api.lists import fields_of_items, of_list
from iotmq.console.api.problems import Kind
from iotmq.console.server.messages import Request

_PARAMETER: Final = re.compile(r"\{(\w+)(\.\.\.)?\}")

_BODY_BYTES_MAX: Final = 16_384

ArgumentsT = TypeVar("ArgumentsT")
BodyT = TypeVar("BodyT")


class Role(enum.IntEnum):
    """Roles; each may do all that the ones before it may."""

    VIEWER = 1
    """May read."""
    OPERATOR = 2
    """May change what devices and services can be helped with: publish, kick, reset, resend, drain."""
    ADMINISTRATOR = 3
    """May change who may do what, delete, and change settings."""


class Caller(NamedTuple):
    """The one who asks."""

    name: str
    role: Role
    address: str
    way: Way | None = "token"
    """How it has shown who it is; None where it has not."""
    session: Session | None = None
    """Of somebody who is signed in."""
    scopes: frozenset[str] = frozenset()
    """The areas it may use; empty: all."""


class Call(NamedTuple, Generic[ArgumentsT, BodyT]):
    """A request that has been checked."""

    arguments: ArgumentsT
    body: BodyT
    caller: Caller
    request: Request
    """As it came, for what a route has to know of it beside its arguments."""


class NoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Coming(NamedTuple):
    """The answer of a handler that needs no task, and no time limit: what is made of a future's result.

    Only for routes that are not audited.
    """

    future: asyncio.Future[Any]
    make: Callable[[Any], Any]
    """Given the result; returns a struct or an `Answer`."""


Handler = Callable[[Any, Call[Any, Any]], Awaitable[Any] | Coming]
"""Gets the services of the process and a call, and returns a struct or an `Answer`."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A route; `route` makes one of a handler."""

    method: str
    path: str
    """Below the base: literal segments, {name} for one segment, {name...} for all that are left."""
    name: str
    """Name of the operation."""
    tag: str
    """The area it belongs to."""
    role: Role
    handler: Handler
    summary: str
    """One line for the reference."""
    answer: type
    """A struct."""
    answer_type: str = "*/*"
    """The content type of an answer that is none."""
    arguments: type[msgspec.Struct] = NoArguments
    """A struct of the parameters of path and query; those of the path have no default."""
    body: type | None = None
    """A struct, or `bytes` for a body as it is; None: no body."""
    body_bytes_max: int = 0
    is_audited: bool = False
    is_open: bool = False
    """Whether it is for everybody, signed in or not."""
    is_for_people: bool = False
    """Whether API keys may not use it, whatever their role."""
    open_path: str | None = None
    """The word of `http.open_paths` with which everybody may ask."""
    problems: tuple[Kind, ...] = ()
    """Those that are its own, beside the ones every route has."""

    @property
    def path_parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters in its path."""
        return tuple(name for name, _ in _PARAMETER.findall(self.path))


def segment_parameter(segment: str) -> tuple[str, bool] | None:
    """Return the name of a segment's parameter and whether it takes all that are left; None for a literal."""
    found = _PARAMETER.fullmatch(segment)
    return (found[1], bool(found[2])) if found else None


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    tag: str,
    role: Role = Role.VIEWER,
    body_bytes_max: int = _BODY_BYTES_MAX,
    answer_type: str = "*/*",
    is_audited: bool | None = None,
    is_open: bool = False,
    is_for_people: bool = False,
    answer: type | None = None,
    open_path: str | None = None,
    problems: tuple[Kind, ...] = (),
) -> Route:
    """Make a route of a handler: its name, its first line and its types are those of the route.

    All but GET is audited unless it says otherwise. `answer` is what the body is, of a handler that makes an
    `Answer` with headers.
    """
    hints = get_type_hints(handler, include_extras=True)
    call = hints[tuple(inspect.signature(handler).parameters)[1]]
    arguments, body = get_args(call)
    text = inspect.getdoc(handler)
    assert text, f"{handler} has no text"
    shown = answer or hints["return"]
    return Route(
        method=method,
        path=path,
        name=handler.__name__,
        tag=tag,
        role=role,
        handler=handler,
        summary=text.splitlines()[0],
        answer=shown,
        answer_type=answer_type,
        arguments=of_list(arguments) if method == "GET" and fields_of_items(shown) else arguments,
        body=None if body is type(None) else body,
        body_bytes_max=0 if body is type(None) else body_bytes_max,
        is_audited=method != "GET" if is_audited is None else is_audited,
        is_open=is_open,
        is_for_people=is_for_people,
        open_path=open_path,
        problems=problems,
    )
