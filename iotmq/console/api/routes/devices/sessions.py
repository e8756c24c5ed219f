"""Kept MQTT sessions and shared subscriptions."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.client.admin.cursors import decode_cursor, encode_cursor
from iotmq.client.admin.devices.sessions import SessionAdmin
from iotmq.console.api.pages import Cursor, Limit
from iotmq.console.api.problems import NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.names import ClientArguments, Told
from iotmq.console.api.services import Services
from iotmq.ports.session_pages import SessionDetail, SessionSummary, ShareSummary

LIST_MAX: Final = 1000


class SessionsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of sessions."""

    prefix: Annotated[str, Meta(max_length=65_535)] = ""
    """Only client ids that begin with it."""
    limit: Limit = 100
    """The most items of a page."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A kept session."""

    client_id: str
    front_end: str
    """The front end that its client is connected to; empty while it is away."""
    subscriptions: int
    in_flight: int
    closed_ms: int
    """When its client went, in milliseconds since 1970; 0 while it is there."""
    expires_ms: int | None
    """When it ends; null: never."""


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sessions, by client id."""

    items: list[Session]
    next: str | None = None
    """The cursor of the next page; null behind the last one."""


class SessionFilterState(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription of a session at a broker."""

    broker: str
    topic_filter: str
    qos: int
    behind: int
    """Messages its client is not done with."""
    is_wide: bool
    """The filter matches so much that it is read from the log, and a long `behind` is an estimate."""
    is_exclusive: bool


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session, as all brokers together know it."""

    client_id: str
    is_kept: bool
    front_end: str
    expiry_s: int
    closed_ms: int
    expires_ms: int | None
    will_topic: str | None
    in_flight: int
    dropped: int
    """Messages it did not get because its queue was past a limit."""
    filters: list[SessionFilterState]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A shared subscription at a broker."""

    broker: str
    share: str
    strategy: str
    members: int
    kept_sessions: int
    in_flight: int
    behind: int


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Shared subscriptions, broker by broker."""

    items: list[Share]
    has_more: bool


async def list_sessions(services: Services, call: Call[SessionsArguments, None]) -> Sessions:
    """List kept sessions, by client id."""
    each = call.arguments
    after = decode_cursor(each.cursor, "sessions", str) or ""
    items: list[Session] = []
    async for found in SessionAdmin(await services.client()).kept(prefix=each.prefix, after=after):
        if len(items) == each.limit:
            return Sessions(items=items, next=encode_cursor("sessions", items[-1].client_id))
        items.append(_session(found))
    return Sessions(items=items)


async def show_session(services: Services, call: Call[ClientArguments, None]) -> SessionState:
    """Show the session of a client: its subscriptions, and what waits for it."""
    client_id = call.arguments.client_id
    details = await SessionAdmin(await services.client()).show(client_id)
    if not details:
        raise ProblemError(NOT_FOUND, f"no broker knows a client {client_id[:200]}")
    return _state(client_id, details)


async def kick_client(services: Services, call: Call[ClientArguments, None]) -> Told:
    """Disconnect a client; a kept session stays."""
    brokers = await SessionAdmin(await services.client()).kick(call.arguments.client_id)
    return _told(brokers, call.arguments.client_id)


async def end_session(services: Services, call: Call[ClientArguments, None]) -> Told:
    """End the session of a client, with what waits for it, and disconnect the client."""
    brokers = await SessionAdmin(await services.client()).purge(call.arguments.client_id)
    return _told(brokers, call.arguments.client_id)


async def list_shares(services: Services, _call: Call[NoArguments, None]) -> Shares:
    """List shared subscriptions, with how far behind they are."""
    items: list[Share] = []
    async for broker, found in SessionAdmin(await services.client()).shares():
        if len(items) == LIST_MAX:
            return Shares(items=items, has_more=True)
        items.append(_share(broker, found))
    return Shares(items=items, has_more=False)


def _told(brokers: list[str], client_id: str) -> Told:
    if not brokers:
        raise ProblemError(NOT_FOUND, f"no broker knows a client {client_id[:200]}")
    return Told(brokers=brokers)


def _session(found: SessionSummary) -> Session:
    return Session(
        client_id=found.client_id,
        front_end=found.front_end,
        subscriptions=found.subscriptions,
        in_flight=found.in_flight,
        closed_ms=found.closed_ms,
        expires_ms=found.expires_ms,
    )


def _state(client_id: str, details: dict[str, SessionDetail]) -> SessionState:
    # The home of a session knows where its client is.
    home = max(details.values(), key=lambda detail: (bool(detail.front_end), detail.is_kept, detail.epoch))
    filters = [
        SessionFilterState(
            broker=broker,
            topic_filter=each.topic_filter,
            qos=each.qos,
            behind=each.behind,
            is_wide=each.is_wide,
            is_exclusive=each.is_exclusive,
        )
        for broker, detail in sorted(details.items())
        for each in detail.filters
    ]
    return SessionState(
        client_id=client_id,
        is_kept=any(detail.is_kept for detail in details.values()),
        front_end=home.front_end,
        expiry_s=home.expiry_s,
        closed_ms=home.closed_ms,
        expires_ms=home.expires_ms,
        will_topic=home.will_topic,
        in_flight=sum(detail.in_flight for detail in details.values()),
        dropped=sum(detail.dropped for detail in details.values()),
        filters=filters,
    )


def _share(broker: str, found: ShareSummary) -> Share:
    return Share(
        broker=broker,
        share=found.share,
        strategy=found.strategy,
        members=found.member_count,
        kept_sessions=found.kept_sessions,
        in_flight=found.in_flight,
        behind=found.behind,
    )


_CLIENTS: Final = "clients"

ROUTES: Final = (
    route("GET", "/sessions", list_sessions, tag=_CLIENTS),
    route("GET", "/sessions/{client_id}", show_session, tag=_CLIENTS, problems=(NOT_FOUND,)),
    route(
        "DELETE",
        "/sessions/{client_id}",
        end_session,
        tag=_CLIENTS,
        role=Role.ADMINISTRATOR,
        problems=(NOT_FOUND,),
    ),
    route(
        "POST",
        "/sessions/{client_id}/kick",
        kick_client,
        tag=_CLIENTS,
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
    route("GET", "/shared-subscriptions", list_shares, tag=_CLIENTS),
)
