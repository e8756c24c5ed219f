"""Kept MQTT sessions, shared subscriptions, delayed messages, and bans."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.client.admin.bans import BanAdmin
from iotmq.client.admin.scheduled import WaitingMessage
from iotmq.client.admin.sessions import SessionAdmin
from iotmq.console.api.pages import Cursor, Limit, decode_cursor, encode_cursor
from iotmq.console.api.problems import INVALID, NOT_FOUND, FieldProblem, ProblemError
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.names import ClientArguments, TimeMs, Told, TopicText
from iotmq.console.api.services import Services
from iotmq.mqtt.bans import Ban, BanKind, normal_value
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


class DelayedArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of delayed messages."""

    topic: Annotated[str, Meta(max_length=127)] = ""
    """Only those for this broker topic."""
    limit: Limit = 100
    """The most items of an answer."""


class Delayed(msgspec.Struct, frozen=True, kw_only=True):
    """Delayed messages, broker by broker, the next due first."""

    items: list[WaitingMessage]
    has_more: bool


class DelayedMessageArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A delayed message."""

    topic: TopicText
    """The broker topic that it is for."""
    message_id: Annotated[str, Meta(min_length=1, max_length=256)]
    """The id of its sender."""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """A delayed message that will not be delivered."""

    message_id: str


class BanArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one that is banned."""

    kind: BanKind
    """The kind of its value."""
    value: Annotated[str, Meta(min_length=1, max_length=1024)]
    """A client id, a user, an IP address, a network such as 192.0.2.0/24, or a regular expression."""


class NewBan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of a ban."""

    until_ms: TimeMs = 0
    """When it ends, in milliseconds since 1970; 0: never."""
    reason: Annotated[str, Meta(max_length=256)] = ""
    """Shown with it."""


class Bans(msgspec.Struct, frozen=True, kw_only=True):
    """The bans that are not over, by kind and value."""

    items: list[Ban]


async def list_sessions(services: Services, call: Call[SessionsArguments, None]) -> Sessions:
    """List kept sessions, by client id."""
    each = call.arguments
    after = decode_cursor(each.cursor)
    items: list[Session] = []
    async for found in SessionAdmin(await services.client()).kept(prefix=each.prefix, after=after):
        if len(items) == each.limit:
            return Sessions(items=items, next=encode_cursor(items[-1].client_id))
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


async def list_delayed(services: Services, call: Call[DelayedArguments, None]) -> Delayed:
    """List messages that wait for the time of their delivery."""
    items: list[WaitingMessage] = []
    async for message in (await services.client()).waiting_messages.list(call.arguments.topic):
        if len(items) == call.arguments.limit:
            return Delayed(items=items, has_more=True)
        items.append(message)
    return Delayed(items=items, has_more=False)


async def cancel_delayed(services: Services, call: Call[DelayedMessageArguments, None]) -> Cancelled:
    """Cancel a delayed message."""
    each = call.arguments
    if not await (await services.client()).waiting_messages.cancel(each.topic, each.message_id):
        raise ProblemError(NOT_FOUND, f"no message {each.message_id} waits for {each.topic}, or not any more")
    return Cancelled(message_id=each.message_id)


async def list_bans(services: Services, _call: Call[NoArguments, None]) -> Bans:
    """List who is banned."""
    return Bans(items=await BanAdmin(await services.client()).all(services.clock.now_ms()))


async def put_ban(services: Services, call: Call[BanArguments, NewBan]) -> Told:
    """Ban a client id, user, address, network or pattern: it may not connect, and is disconnected."""
    each, now_ms = call.arguments, services.clock.now_ms()
    ban = Ban(
        kind=each.kind,
        value=_ban_value(each),
        until_ms=call.body.until_ms,
        reason=call.body.reason,
        by=call.caller.name,
        made_ms=now_ms,
    )
    return Told(brokers=await BanAdmin(await services.client()).put(ban, now_ms))


async def remove_ban(services: Services, call: Call[BanArguments, None]) -> Told:
    """End a ban."""
    each = call.arguments
    return Told(brokers=await BanAdmin(await services.client()).remove(each.kind, _ban_value(each)))


def _ban_value(each: BanArguments) -> str:
    try:
        return normal_value(each.kind, each.value)
    except ValueError as error:
        errors = (FieldProblem(str(error), parameter="value"),)
        raise ProblemError(INVALID, f"value: {error}", errors=errors) from None


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
    route("GET", "/bans", list_bans, tag=_CLIENTS),
    route("PUT", "/bans/{kind}/{value...}", put_ban, tag=_CLIENTS, role=Role.OPERATOR),
    route("DELETE", "/bans/{kind}/{value...}", remove_ban, tag=_CLIENTS, role=Role.OPERATOR),
    route("GET", "/delayed-messages", list_delayed, tag="messages"),
    route(
        "DELETE",
        "/delayed-messages/{topic}/{message_id}",
        cancel_delayed,
        tag="messages",
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
)
