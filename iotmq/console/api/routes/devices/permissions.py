"""Identities and permissions of devices, as the settings of the process that is asked have them."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from iotmq.console.api.pages import PageArguments, page_of
from iotmq.console.api.problems import INVALID, ProblemError
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.services import Services
from iotmq.errors import ConfigError
from iotmq.ports.device_access import AccessDecision, AccessQuestion, AccessRule


class DeviceUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the file of users."""

    name: str
    roles: list[str]
    """Roles that the file of permissions gives it."""


class DeviceUsers(msgspec.Struct, frozen=True, kw_only=True):
    """A page of users, by name."""

    items: list[DeviceUser]
    next: str | None = None
    """The cursor of the next page; null behind the last one."""


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the file of permissions, in the order in which they are asked."""

    items: list[AccessRule]


async def list_device_users(services: Services, call: Call[PageArguments, None]) -> DeviceUsers:
    """List the users of the file of users (`mqtt.authentication.users_file`), with their roles."""
    access = services.own.device_access()

    def page() -> DeviceUsers:
        found = access.users()
        names, following = page_of(found, call.arguments, str)
        return DeviceUsers(items=[DeviceUser(name=name, roles=found[name]) for name in names], next=following)

    # There may be half a million: they are looked through in the thread that reads them.
    return await asyncio.to_thread(page)


async def list_permissions(services: Services, _call: Call[NoArguments, None]) -> Permissions:
    """List the rules of the file of permissions (`mqtt.permissions.permissions_file`)."""
    return Permissions(items=await asyncio.to_thread(services.own.device_access().rules))


async def try_access(services: Services, call: Call[NoArguments, AccessQuestion]) -> AccessDecision:
    """Say whether a device may publish or subscribe, and which rule says so; nothing is done."""
    try:
        return await asyncio.to_thread(services.own.device_access().decide, call.body)
    except ConfigError as error:
        raise ProblemError(INVALID, str(error)) from None


_AREA: Final = "access"

ROUTES: Final = (
    route("GET", "/device-users", list_device_users, tag=_AREA, role=Role.OPERATOR),
    route("GET", "/permissions", list_permissions, tag=_AREA, role=Role.OPERATOR),
    route("POST", "/access:test", try_access, tag=_AREA, role=Role.OPERATOR, is_audited=False),
)
