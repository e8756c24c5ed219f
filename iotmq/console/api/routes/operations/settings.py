"""Settings of brokers that they tell, and those that may change while they run."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.console.api.problems import CONFLICT, NOT_FOUND
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.names import Told
from iotmq.console.api.routes.operations.cluster import BrokerArguments
from iotmq.console.api.services import Services

SETTINGS_MAX: Final = 64
_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Value = Annotated[str, Meta(max_length=4096)]


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a broker, by the names RocketMQ's tools know; none is a secret."""

    broker: str
    settings: dict[str, str]


class AllSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all brokers."""

    items: list[BrokerSettings]


class SettingsChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that are to have other values."""

    settings: Annotated[dict[_Name, _Value], Meta(min_length=1, max_length=SETTINGS_MAX)]
    """Name -> value. A broker refuses those that may not change while it runs, and then changes none."""


async def list_settings(services: Services, _call: Call[NoArguments, None]) -> AllSettings:
    """List the settings of all brokers that have a master."""
    admin = (await services.client()).admin
    names = sorted(await admin.brokers())
    return AllSettings(
        items=[
            BrokerSettings(broker=name, settings=await admin.changes.broker_settings(name)) for name in names
        ]
    )


async def change_settings(services: Services, call: Call[BrokerArguments, SettingsChange]) -> Told:
    """Change settings of a broker while it runs; after a restart those of its file count again."""
    changes = (await services.client()).admin.changes
    name = call.arguments.broker
    return Told(brokers=await changes.change_broker_settings(call.body.settings, (name,)))


_AREA: Final = "settings"

ROUTES: Final = (
    route("GET", "/settings", list_settings, tag=_AREA),
    route(
        "PATCH",
        "/brokers/{broker}/settings",
        change_settings,
        tag=_AREA,
        role=Role.ADMINISTRATOR,
        problems=(NOT_FOUND, CONFLICT),
    ),
)
