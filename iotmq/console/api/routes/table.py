"""All routes of the API."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

import iotmq
from iotmq.console.api.api import BASE
from iotmq.console.api.openapi import document
from iotmq.console.api.route import Call, NoArguments, Route, route
from iotmq.console.api.routes.accounts import api_keys, audit, sign_in, users
from iotmq.console.api.routes.devices import bans, clients, permissions, sessions, traces
from iotmq.console.api.routes.messaging import (
    dead_letters,
    delayed,
    groups,
    latest,
    messages,
    streams,
    topics,
)
from iotmq.console.api.routes.operations import alarms, cluster, health, history, settings
from iotmq.console.api.services import Services
from iotmq.console.server.messages import Answer


async def show_description(_services: Services, _call: Call[NoArguments, None]) -> Answer:
    """Show this API as an OpenAPI 3.1 document."""
    return Answer(openapi_json(), content_type="application/json")


ROUTES: Final[tuple[Route, ...]] = (
    *messages.ROUTES,
    *latest.ROUTES,
    *streams.ROUTES,
    *topics.ROUTES,
    *groups.ROUTES,
    *dead_letters.ROUTES,
    *clients.ROUTES,
    *sessions.ROUTES,
    *bans.ROUTES,
    *delayed.ROUTES,
    *cluster.ROUTES,
    *history.ROUTES,
    *traces.ROUTES,
    *alarms.ROUTES,
    *settings.ROUTES,
    *audit.ROUTES,
    *permissions.ROUTES,
    *sign_in.ROUTES,
    *users.ROUTES,
    *health.ROUTES,
    *api_keys.ROUTES,
    route("GET", "/openapi.json", show_description, tag="description", answer_type="application/json"),
)


@cache
def openapi_json() -> bytes:
    """Return the OpenAPI document of all routes."""
    return msgspec.json.encode(document(ROUTES, base=BASE, version=iotmq.__version__))
