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


class DelayedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for the time of its delivery."""

    message_id: str
    """The id of its sender; empty where it has none."""
    topic: str
    """The broker topic that it is for."""
    broker: str
    queue: int
    due_ms: int
    """When it will be delivered, in milliseconds since 1970 of the broker's clock."""
    level: int
    """The delay level it was sent with, from 1; 0 for a time of its own."""
    stored_ms: int
    payload_bytes: int
    """The size of the payload as it is stored, where it may be compressed."""
    position: int
    """Where its record begins in the log of the broker, in bytes."""


class Delayed(msgspec.Struct, frozen=True, kw_only=True):
    """Delayed messages, broker by broker, the next due first."""

    items: list[DelayedMessage]
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
    items: list[DelayedMessage] = []
    async for message in (await services.client()).waiting_messages.list(call.arguments.topic):
        if len(items) == call.arguments.limit:
            return Delayed(items=items, has_more=True)
        items.append(_shown(message))
    return Delayed(items=items, has_more=False)


def _shown(message: WaitingMessage) -> DelayedMessage:
    return DelayedMessage(
        message_id=message.unique_key,
        topic=message.topic,
        broker=message.broker_name,
        queue=message.queue_id,
        due_ms=message.due_ms,
        level=message.level,
        stored_ms=message.store_timestamp,
        payload_bytes=message.body_size,
        position=message.position,
    )


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
