"""Dead letters of consumer groups."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.console.api.problems import NOT_FOUND
from iotmq.console.api.route import Call, Role, route
from iotmq.console.api.routes.names import GroupArguments, TimeMs
from iotmq.console.api.services import Services
from iotmq.console.api.stored_messages import ReadMessage, read_message

LIST_MAX: Final = 500
RESEND_MAX: Final = 1000


class DeadLettersArguments(GroupArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters to list: those of a time, the first ones."""

    from_ms: TimeMs = 0
    """Given up at this time or later, in milliseconds since 1970."""
    to_ms: TimeMs | None = None
    """Given up at this time or before."""
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    """The most items of an answer."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=65_536)] = 4096
    """Longer payloads are cut."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group has given up."""

    message: ReadMessage
    original_topic: str
    """The topic it had come from; empty where it does not say."""
    original_message_id: str
    """The id of its place there."""


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, queue by queue."""

    items: list[DeadLetter]
    has_more: bool
    """Whether there are more of that time."""


class Resend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead letters to send to their topics again."""

    message_ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=RESEND_MAX)]
    """Their ids, of their senders or of their places."""


class Resent(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a resend."""

    sent: int
    left_message_ids: list[str]
    """Those that cannot be sent: they do not say what topic they had come from, or nobody can open them."""


async def list_dead_letters(services: Services, call: Call[DeadLettersArguments, None]) -> DeadLetters:
    """List the dead letters of a group."""
    each = call.arguments
    items: list[DeadLetter] = []
    letters = (await services.client()).admin.dead_letters.of_group(
        each.group, begin_ms=each.from_ms, end_ms=each.to_ms
    )
    async for letter in letters:
        if len(items) == each.limit:
            return DeadLetters(items=items, has_more=True)
        items.append(
            DeadLetter(
                message=read_message(letter.message, each.payload_bytes_max),
                original_topic=letter.original_topic,
                original_message_id=letter.original_message_id,
            )
        )
    return DeadLetters(items=items, has_more=False)


async def resend_dead_letters(services: Services, call: Call[GroupArguments, Resend]) -> Resent:
    """Send dead letters to the topics they came from, once more."""
    letters = (await services.client()).admin.dead_letters
    resent = await letters.resend(call.arguments.group, call.body.message_ids, await services.producer())
    return Resent(sent=resent.sent_count, left_message_ids=resent.left_message_ids)


_AREA: Final = "dead letters"

ROUTES: Final = (
    route("GET", "/groups/{group}/dead-letters", list_dead_letters, tag=_AREA, problems=(NOT_FOUND,)),
    route(
        "POST",
        "/groups/{group}/dead-letters/resend",
        resend_dead_letters,
        tag=_AREA,
        role=Role.OPERATOR,
        body_bytes_max=256 * 1024,
        problems=(NOT_FOUND,),
    ),
)
