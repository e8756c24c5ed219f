"""Delayed messages: those that wait, and cancelling one."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.client.admin.scheduled import WaitingMessage
from iotmq.console.api.pages import Limit
from iotmq.console.api.problems import NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, Role, route
from iotmq.console.api.routes.names import TopicText
from iotmq.console.api.services import Services


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


_MESSAGES: Final = "messages"

ROUTES: Final = (
    route("GET", "/delayed-messages", list_delayed, tag=_MESSAGES),
    route(
        "DELETE",
        "/delayed-messages/{topic}/{message_id}",
        cancel_delayed,
        tag=_MESSAGES,
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
)
