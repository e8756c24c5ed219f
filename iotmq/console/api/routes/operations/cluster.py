"""Brokers and front ends."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.admin.devices.front_ends import FrontEndAdmin
from iotmq.client.admin.inspections import InspectionAdmin
from iotmq.console.access.browser import own_origin
from iotmq.console.api.problems import NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.names import BrokerText, Told
from iotmq.console.api.services import Services
from iotmq.ports.replication_state import ReplicationState
from iotmq.ports.sessions import DrainOrder


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker process."""

    cluster: str
    name: str
    """Processes of one name have the same messages."""
    broker_id: int
    """0 is the master of the name."""
    address: str
    """host:port of the native protocol."""


class Brokers(msgspec.Struct, frozen=True, kw_only=True):
    """All brokers that are registered."""

    items: list[Broker]


class BrokerArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One broker."""

    broker: BrokerText
    """The name of the broker."""


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers and facts of a broker, by the names RocketMQ's tools know."""

    name: str
    facts: dict[str, str]
    replication: ReplicationState | None
    """Those that copy its log, and how far they are; null where nobody does."""


class FrontEnd(msgspec.Struct, frozen=True, kw_only=True):
    """An MQTT front end that brokers know."""

    name: str
    clients: int
    """Clients with a session, as the broker that knows most of them counts."""
    is_draining: bool


class FrontEnds(msgspec.Struct, frozen=True, kw_only=True):
    """All front ends."""

    items: list[FrontEnd]


class WebSocket(msgspec.Struct, frozen=True, kw_only=True):
    """A listener for MQTT in WebSockets."""

    name: str
    """The name of the listener in the settings."""
    scheme: Literal["ws", "wss"]
    port: int
    """The port at the host of this API."""
    path: str
    is_allowed: bool
    """Whether `allowed_origins` of the listener let in pages of this port."""


class WebSockets(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    items: list[WebSocket]


class FrontEndArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One front end."""

    front_end: BrokerText
    """The name of the front end."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin or end the draining of a front end."""

    is_draining: bool
    """Whether it is drained from now on, or takes devices again."""
    per_second: Annotated[int, Meta(ge=1, le=limits.DRAINED_PER_SECOND_MAX)] = 100
    """Clients that are disconnected in a second."""
    server_reference: Annotated[str, Meta(max_length=limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX)] = ""
    """Address that MQTT 5 clients are told to use instead."""
    has_moved: bool = False
    """Whether they are told to use it from now on."""


async def list_brokers(services: Services, _call: Call[NoArguments, None]) -> Brokers:
    """List the brokers that registries know."""
    places = await (await services.client()).admin.configurations.brokers()
    return Brokers(
        items=[
            Broker(cluster=each.cluster, name=each.name, broker_id=each.broker_id, address=each.address)
            for each in places
        ]
    )


async def show_broker(services: Services, call: Call[BrokerArguments, None]) -> BrokerFacts:
    """Return what a broker tells of itself."""
    name, client = call.arguments.broker, await services.client()
    facts = await client.admin.statistics.runtime_info((name,))
    replication = await InspectionAdmin(client).replication(name)
    return BrokerFacts(name=name, facts=facts[name], replication=replication)


async def list_front_ends(services: Services, _call: Call[NoArguments, None]) -> FrontEnds:
    """List the front ends that brokers know."""
    found = await FrontEndAdmin(await services.client()).front_ends()
    return FrontEnds(
        items=[
            FrontEnd(name=name, clients=each.clients, is_draining=each.is_draining)
            for name, each in sorted(found.items())
        ]
    )


async def list_websockets(services: Services, call: Call[NoArguments, None]) -> WebSockets:
    """List where browsers find MQTT: the WebSocket listeners of the process that answers."""
    origin = own_origin(call.request)
    return WebSockets(
        items=[
            WebSocket(
                name=each.name,
                scheme=each.scheme,
                port=each.port,
                path=each.path,
                is_allowed=each.lets_in(origin),
            )
            for each in services.own.websockets()
        ]
    )


async def drain_front_end(services: Services, call: Call[FrontEndArguments, Drain]) -> Told:
    """Begin or end the draining of a front end: its clients move to others, so many in a second."""
    body, name = call.body, call.arguments.front_end
    order = DrainOrder(
        is_draining=body.is_draining,
        per_second=body.per_second,
        server_reference=body.server_reference,
        has_moved=body.has_moved,
    )
    told = await FrontEndAdmin(await services.client()).drain(name, order)
    if not told:
        raise ProblemError(NOT_FOUND, f"no broker knows a front end {name}")
    return Told(brokers=told)


ROUTES: Final = (
    route("GET", "/brokers", list_brokers, tag="cluster"),
    route("GET", "/brokers/{broker}", show_broker, tag="cluster", problems=(NOT_FOUND,)),
    route("GET", "/front-ends", list_front_ends, tag="cluster"),
    route("GET", "/websocket-listeners", list_websockets, tag="cluster"),
    route(
        "POST",
        "/front-ends/{front_end}/drain",
        drain_front_end,
        tag="cluster",
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
)
