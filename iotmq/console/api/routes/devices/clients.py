"""Connected MQTT clients, their subscriptions, and those who were refused."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.admin.devices.clients import ClientAdmin, Kicked, SlowBy
from iotmq.client.admin.devices.sessions import SessionAdmin
from iotmq.console.api.pages import Cursor, Limit
from iotmq.console.api.problems import CONFLICT, NOT_FOUND, ProblemError, invalid
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.names import ClientArguments, ClientText, TimeMs
from iotmq.console.api.services import Services
from iotmq.console.api.stored_messages import ReadMessage, Shown
from iotmq.ports.client_pages import (
    PROTOCOL_LEVELS,
    ClientDetail,
    ClientFilter,
    ClientRow,
    ClientSubscription,
    Pattern,
    Refusal,
    RefusedQuestion,
    SubscriptionRow,
)

Number = Annotated[float, Meta(ge=0, le=1e15)]
Version = Literal["", "3.1", "3.1.1", "5"]
Order = Literal[
    "client_id", "-client_id", "user", "-user", "address", "-address", "listener", "-listener",
    "version", "-version", "keep_alive_s", "-keep_alive_s", "connected_ms", "-connected_ms",
    "subscriptions", "-subscriptions", "in_flight", "-in_flight", "queued", "-queued",
    "queued_bytes", "-queued_bytes", "unsent_bytes", "-unsent_bytes", "dropped", "-dropped",
    "latency_ms", "-latency_ms", "messages_received", "-messages_received", "messages_sent", "-messages_sent",
    "bytes_received", "-bytes_received", "bytes_sent", "-bytes_sent",
    "messages_received_per_s", "-messages_received_per_s", "messages_sent_per_s", "-messages_sent_per_s",
    "bytes_received_per_s", "-bytes_received_per_s", "bytes_sent_per_s", "-bytes_sent_per_s",
]  # fmt: skip


class WantedClients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clients that are meant: those that fit all of it. One that is empty says nothing."""

    client_id: Pattern = ""
    """A client id, or a part of it where `*` stands for the rest: `pump/*`, `*/7`, `*north*`."""
    user: Pattern = ""
    """The user that it proved to be; `*` as of client ids."""
    address: Pattern = ""
    """The IP address; `*` as of client ids, such as `10.0.*`."""
    listener: Pattern = ""
    """The name of its listener; `*` as of client ids."""
    version: Version = ""
    """The version of MQTT."""
    is_kept: bool | None = None
    """Whether its session outlives the connection."""
    connected_from_ms: TimeMs = 0
    """Those that connected then or later, in milliseconds since 1970."""
    connected_until_ms: TimeMs = 0
    """Those that connected then or before; 0: no matter."""
    keep_alive_s_min: Number = 0
    """The least keep-alive; 1 leaves those without one out."""
    subscriptions_min: Number = 0
    """The least number of subscriptions."""
    in_flight_min: Number = 0
    """The least number of messages that it has not acknowledged."""
    queued_min: Number = 0
    """The least number of messages that wait for it in the front end."""
    queued_bytes_min: Number = 0
    """The least bytes of them."""
    unsent_bytes_min: Number = 0
    """The least bytes that its socket has not taken."""
    dropped_min: Number = 0
    """The least number of messages that it was too slow for."""
    latency_ms_min: Number = 0
    """The least time that its acknowledgements take."""
    messages_received_per_s_min: Number = 0
    """The least rate of messages that it publishes."""
    messages_sent_per_s_min: Number = 0
    """The least rate of messages that it is sent."""


class ClientsArguments(WantedClients, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of clients."""

    sort: Order = "client_id"
    """The column that the list is sorted by; with `-` in front the largest come first."""
    limit: Limit = 100
    """The most items of a page."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    """A page of connected clients."""

    items: list[ClientRow]
    next: str | None
    """The cursor of the next page; null behind the last one."""
    matched: int
    """Clients that are meant, on all pages."""
    connected: int
    """All clients that are connected."""
    problems: dict[str, str]
    """The front ends that did not answer, and why: their clients are not in the list."""


class KickBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clients that are disconnected."""

    client_ids: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=limits.MQTT_CLIENT_ID_BYTES_MAX)]],
            Meta(min_length=1, max_length=limits.KICKED_NAMES_MAX),
        ]
        | None
    ) = None
    """Their client ids; or else `filter`."""
    filter: WantedClients | None = None
    """Those that fit, as in the list of clients; an empty one is all clients."""
    limit: Annotated[int, Meta(ge=1, le=limits.KICKED_CLIENTS_MAX)] = 100
    """When more fit, none is disconnected."""
    is_dry_run: bool = False
    """Only say which ones fit."""


class ClientSubscriptions(msgspec.Struct, frozen=True, kw_only=True):
    """The subscriptions of a client."""

    items: list[ClientSubscription]
    """A thousand of them at most."""
    is_connected: bool


class QueueArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue of a kept session."""

    client_id: ClientText
    """The client id."""
    topic_filter: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
    """The filter that it has subscribed."""
    limit: Annotated[int, Meta(ge=1, le=limits.SESSION_QUEUE_LISTED_MAX)] = 20
    """The most messages of each broker."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=65_536)] = 1_024
    """The most bytes of each payload."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""


class QueuedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that the client of a kept session is not done with, by the time they were stored."""

    items: list[ReadMessage]
    is_in_flight: list[bool]
    """Of each item whether the client was sent it, and has not acknowledged it; of a client that is connected
    as its front end said last."""
    left_out: int
    """Messages among them that are too large to be shown."""
    behind: int
    """All messages of the filter that the client is not done with."""
    next: str | None
    """The cursor of the next page; null behind the last one."""
    problems: dict[str, str]
    """The brokers that did not answer, and why."""


class SubscriptionsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of subscriptions."""

    topic_filter: Annotated[str, Meta(max_length=limits.MQTT_TOPIC_BYTES_MAX)] = ""
    """A filter, or a part of it where `*` stands for the rest; `+` and `#` stand for themselves."""
    topic: Annotated[str, Meta(max_length=limits.MQTT_TOPIC_BYTES_MAX)] = ""
    """Only filters that this MQTT topic matches."""
    client_id: Pattern = ""
    """A client id; `*` as of filters."""
    limit: Limit = 100
    """The most items of a page."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""


class ListedSubscriptions(msgspec.Struct, frozen=True, kw_only=True):
    """A page of subscriptions, by client id and filter."""

    items: list[SubscriptionRow]
    next: str | None
    """The cursor of the next page; null behind the last one."""
    problems: dict[str, str]
    """The front ends and brokers that did not answer, and why."""


class SlowArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of slow subscribers."""

    by: SlowBy = "latency_ms"
    """The column that says how slow one is."""
    limit: Limit = 20
    """The most items."""


class RefusedArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of refusals."""

    client_id: Pattern = ""
    """The client id that it said; `*` at the beginning or end stands for the rest."""
    user: Pattern = ""
    """The user that it said; `*` as of client ids."""
    address: Pattern = ""
    """The IP address that it came from; `*` as of client ids."""
    reason: Pattern = ""
    """The reason, such as `NOT_AUTHORIZED`; `*` as of client ids."""
    limit: Limit = 100
    """The most items."""


class Refusals(msgspec.Struct, frozen=True, kw_only=True):
    """The last ones who were not let in, the newest first."""

    items: list[Refusal]
    problems: dict[str, str]
    """The front ends and brokers that did not answer, and why."""


async def list_clients(services: Services, call: Call[ClientsArguments, None]) -> Clients:
    """List connected clients, by any column."""
    each = call.arguments
    page = await ClientAdmin(await services.client()).page(
        _filter_of(each),
        sort_by=each.sort.removeprefix("-"),
        is_descending=each.sort.startswith("-"),
        limit=each.limit,
        cursor=each.cursor,
    )
    return Clients(
        items=page.rows,
        next=page.next_cursor,
        matched=page.matched,
        connected=page.connected,
        problems=page.problems,
    )


async def show_client(services: Services, call: Call[ClientArguments, None]) -> ClientDetail:
    """Show a connected client."""
    client_id = call.arguments.client_id
    found = await ClientAdmin(await services.client()).show(client_id)
    if found is None:
        raise _unknown(client_id)
    return found


async def list_client_subscriptions(
    services: Services, call: Call[ClientArguments, None]
) -> ClientSubscriptions:
    """List the subscriptions of a client that is connected, or whose session is kept."""
    client_id = call.arguments.client_id
    client = await services.client()
    found = await ClientAdmin(client).show(client_id)
    if found is not None:
        return ClientSubscriptions(items=found.subscriptions, is_connected=True)
    details = await SessionAdmin(client).show(client_id)
    if not details:
        raise _unknown(client_id)
    filters = {each.topic_filter: each for detail in details.values() for each in detail.filters}
    items = [
        ClientSubscription(topic_filter=name, qos=each.qos, is_exclusive=each.is_exclusive)
        for name, each in sorted(filters.items())
    ]
    return ClientSubscriptions(items=items, is_connected=False)


async def list_client_queue(services: Services, call: Call[QueueArguments, None]) -> QueuedMessages:
    """List the messages that wait for the client of a kept session, or are on their way to it."""
    each = call.arguments
    page = await ClientAdmin(await services.client()).queue(
        each.client_id, each.topic_filter, limit=each.limit, cursor=each.cursor
    )
    if page is None:
        raise ProblemError(NOT_FOUND, f"no kept session of {each.client_id[:200]} has subscribed this filter")
    shown = Shown(each.payload_bytes_max)
    return QueuedMessages(
        items=[shown.show(message) for message in page.messages],
        is_in_flight=page.is_in_flight,
        left_out=page.left_out,
        behind=page.behind,
        next=page.next_cursor,
        problems=page.problems,
    )


async def disconnect_client(services: Services, call: Call[ClientArguments, None]) -> Kicked:
    """Disconnect a client; a kept session stays, and it may come back."""
    client_id = call.arguments.client_id
    kicked = await ClientAdmin(await services.client()).kick([client_id])
    if not kicked.matched:
        raise _unknown(client_id)
    return kicked


async def kick_clients(services: Services, call: Call[NoArguments, KickBody]) -> Kicked:
    """Disconnect many clients, by their ids or by a filter."""
    body = call.body
    admin = ClientAdmin(await services.client())
    if (body.client_ids is None) == (body.filter is None):
        raise invalid("either client_ids or filter say who is disconnected", pointer="/filter")
    if body.client_ids is not None:
        return await admin.kick(body.client_ids, is_dry_run=body.is_dry_run)
    assert body.filter is not None, "one of the two is there"
    wanted = _filter_of(body.filter)
    if body.is_dry_run:
        return await admin.find_to_kick(wanted)
    kicked = await admin.kick_all(wanted, limit=body.limit)
    if kicked.matched > body.limit:
        raise ProblemError(
            CONFLICT,
            f"{kicked.matched} clients fit, more than the limit of {body.limit}: none is disconnected",
        )
    return kicked


async def list_subscriptions(
    services: Services, call: Call[SubscriptionsArguments, None]
) -> ListedSubscriptions:
    """List subscriptions of connected clients and kept sessions."""
    each = call.arguments
    page = await ClientAdmin(await services.client()).subscriptions(
        client_id=each.client_id,
        topic_filter=each.topic_filter,
        topic=each.topic,
        limit=each.limit,
        cursor=each.cursor,
    )
    return ListedSubscriptions(items=page.rows, next=page.next_cursor, problems=page.problems)


async def list_slow_subscribers(services: Services, call: Call[SlowArguments, None]) -> Clients:
    """List the clients that take their messages slowest."""
    each = call.arguments
    page = await ClientAdmin(await services.client()).slow(by=each.by, limit=each.limit)
    return Clients(
        items=page.rows, next=None, matched=page.matched, connected=page.connected, problems=page.problems
    )


async def list_refused_clients(services: Services, call: Call[RefusedArguments, None]) -> Refusals:
    """List the last ones who were not let in, by front ends and by brokers."""
    each = call.arguments
    question = RefusedQuestion(
        client_id=each.client_id,
        user=each.user,
        address=each.address,
        reason=each.reason,
        limit=each.limit,
    )
    found = await ClientAdmin(await services.client()).refused(question)
    return Refusals(items=found.refusals, problems=found.problems)


def _filter_of(wanted: WantedClients) -> ClientFilter:
    least = {
        name.removesuffix("_min"): float(value)
        for name in wanted.__struct_fields__
        if name.endswith("_min") and (value := getattr(wanted, name))
    }
    most: dict[str, float] = {}
    if wanted.connected_from_ms:
        least["connected_ms"] = wanted.connected_from_ms
    if wanted.connected_until_ms:
        most["connected_ms"] = wanted.connected_until_ms
    if wanted.version:
        least["version"] = most["version"] = PROTOCOL_LEVELS[wanted.version]
    return ClientFilter(
        client_id=wanted.client_id,
        user=wanted.user,
        address=wanted.address,
        listener=wanted.listener,
        is_kept=wanted.is_kept,
        least=least,
        most=most,
    )


def _unknown(client_id: str) -> ProblemError:
    return ProblemError(NOT_FOUND, f"no client {client_id[:200]} is connected")


_CLIENTS: Final = "clients"

ROUTES: Final = (
    route("GET", "/clients", list_clients, tag=_CLIENTS),
    route(
        "POST",
        "/clients:kick",
        kick_clients,
        tag=_CLIENTS,
        role=Role.OPERATOR,
        body_bytes_max=limits.INSPECTION_QUESTION_BYTES_MAX,
        problems=(CONFLICT,),
    ),
    route("GET", "/clients/{client_id}", show_client, tag=_CLIENTS, problems=(NOT_FOUND,)),
    route(
        "DELETE",
        "/clients/{client_id}",
        disconnect_client,
        tag=_CLIENTS,
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
    route(
        "GET",
        "/clients/{client_id}/subscriptions",
        list_client_subscriptions,
        tag=_CLIENTS,
        problems=(NOT_FOUND,),
    ),
    route("GET", "/clients/{client_id}/queue", list_client_queue, tag=_CLIENTS, problems=(NOT_FOUND,)),
    route("GET", "/subscriptions", list_subscriptions, tag=_CLIENTS),
    route("GET", "/slow-subscribers", list_slow_subscribers, tag=_CLIENTS),
    route("GET", "/refused-clients", list_refused_clients, tag=_CLIENTS),
)
