"""Bans: MQTT clients that may not connect."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.client.admin.devices.bans import BanAdmin
from iotmq.console.api.problems import invalid
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.names import TimeMs, Told
from iotmq.console.api.services import Services
from iotmq.mqtt.bans import Ban, BanKind, normal_value


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
        raise invalid(str(error), parameter="value") from None


_CLIENTS: Final = "clients"

ROUTES: Final = (
    route("GET", "/bans", list_bans, tag=_CLIENTS),
    route("PUT", "/bans/{kind}/{value...}", put_ban, tag=_CLIENTS, role=Role.OPERATOR),
    route("DELETE", "/bans/{kind}/{value...}", remove_ban, tag=_CLIENTS, role=Role.OPERATOR),
)
