"""Dead letters of consumer groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.client.admin.dead_letters import DeadLetter as FoundLetter
from iotmq.client.admin.dead_letters import Replay as ReplayOfLetters
from iotmq.client.admin.dead_letters import (
    Selection,
    dead_letter,
    exported,
    message_again,
    topic_of,
)
from iotmq.console.api.problems import CONFLICT, INVALID, NOT_FOUND, TOO_MANY, ProblemError
from iotmq.console.api.publishing import Stored
from iotmq.console.api.replays import ReplayJob, State
from iotmq.console.api.route import Call, Role, route
from iotmq.console.api.routes.messaging.messages import decoded_base64
from iotmq.console.api.routes.names import GroupArguments, GroupText, TimeMs, TopicText, check_is_open
from iotmq.console.api.services import Services
from iotmq.console.api.stored_messages import ReadMessage, Shown
from iotmq.console.server.messages import Answer, Sink

LIST_MAX: Final = 500
RESEND_MAX: Final = 1000
# An edited one with the largest payload, as Base64.
_EDITED_BYTES_MAX: Final = 8 * 1024 * 1024
# Written at once.
_EXPORT_PIECE_BYTES: Final = 65_536

KeyText = Annotated[str, Meta(max_length=32_767)]


class ChosenArguments(GroupArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters of a group that fit all that is given."""

    from_ms: TimeMs = 0
    """Given up at this time or later, in milliseconds since 1970."""
    to_ms: TimeMs | None = None
    """Given up at this time or before."""
    original_topic: TopicText | None = None
    """The topic they had come from."""
    key: KeyText = ""
    """One of their keys."""


class DeadLettersArguments(ChosenArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters to list: those that fit all that is given, the first ones."""

    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    """The most items of an answer."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=65_536)] = 4096
    """Longer payloads are cut."""


class LetterArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dead letter."""

    group: GroupText
    """The name of the consumer group."""
    offset_message_id: Annotated[str, Meta(max_length=64)]
    """The id that names the place of the dead letter."""


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


class EditedLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dead letter to send with changes; what is left out stays as it is."""

    topic: TopicText | None = None
    """The topic it goes to."""
    payload: str | None = None
    """A new payload, as text; at most one of this and the next."""
    payload_base64: str | None = None
    """A new payload, as Base64."""
    key: KeyText | None = None
    """Messages of one key stay in order, and are found by it."""
    tags: str | None = None
    """A word that consumers filter by."""
    properties: dict[str, str | None] = {}
    """Properties to set; null takes one away."""


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters to send to their topics again: those that fit all that is given."""

    from_ms: TimeMs = 0
    """Given up at this time or later, in milliseconds since 1970."""
    to_ms: TimeMs | None = None
    """Given up at this time or before."""
    original_topic: TopicText | None = None
    """The topic they had come from, and go to."""
    key: KeyText = ""
    """One of their keys."""
    per_second: Annotated[float, Meta(ge=0.01, le=100_000)] | None = None
    """The most messages of a second; null: as fast as the brokers take them."""
    is_again: bool = False
    """Whether those that were sent by an earlier replay are sent once more."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay of the dead letters of a group."""

    group: str
    state: State
    """`waiting` is for brokers that do not do it now: it is tried again. `done`, `stopped` and `failed` are
    ends."""
    problem: str
    """Why it waits, or has failed."""
    by: str
    """The one who has started it."""
    started_ms: int
    ended_ms: int | None
    from_ms: int
    to_ms: int | None
    original_topic: str
    key: str
    per_second: float | None
    total: int
    """Dead letters of the group, chosen or not, from where it began to what was there then."""
    seen: int
    """Those of them that are sent, left, or passed over."""
    sent: int
    left: int
    """Those that cannot be sent: they do not say what topic they had come from, or nobody can open them."""
    left_message_ids: list[str]
    """The first of them."""


async def list_dead_letters(services: Services, call: Call[DeadLettersArguments, None]) -> DeadLetters:
    """List the dead letters of a group."""
    each = call.arguments
    items: list[DeadLetter] = []
    shown = Shown(each.payload_bytes_max)
    letters = await _chosen(services, each)
    async for letter in letters:
        if len(items) == each.limit:
            return DeadLetters(items=items, has_more=True)
        items.append(
            DeadLetter(
                message=shown.show(letter.message),
                original_topic=letter.original_topic,
                original_message_id=letter.original_message_id,
            )
        )
    return DeadLetters(items=items, has_more=False)


async def export_dead_letters(services: Services, call: Call[ChosenArguments, None]) -> Answer:
    """Download dead letters with all of them, a line of JSON each."""
    each = call.arguments
    letters = await _chosen(services, each)
    # Whoever asks for a group that has none is told so with a status.
    first = await anext(letters, None)

    async def stream(sink: Sink) -> None:
        piece = b"" if first is None else exported(first)
        async for letter in letters:
            piece += exported(letter)
            if len(piece) >= _EXPORT_PIECE_BYTES:
                await sink.write(piece)
                piece = b""
        await sink.write(piece)

    return Answer(
        content_type="application/jsonl",
        headers=(
            ("Content-Disposition", 'attachment; filename="dead-letters.jsonl"'),
            ("X-Content-Type-Options", "nosniff"),
        ),
        stream=services.streams.counted(call.caller.name, stream),
    )


async def resend_dead_letters(services: Services, call: Call[GroupArguments, Resend]) -> Resent:
    """Send dead letters to the topics they came from, once more."""
    letters = (await services.client()).admin.dead_letters
    resent = await letters.resend(call.arguments.group, call.body.message_ids, await services.producer())
    return Resent(sent=resent.sent_count, left_message_ids=resent.left_message_ids)


async def resend_dead_letter(services: Services, call: Call[LetterArguments, EditedLetter]) -> Stored:
    """Send one dead letter again, with changes."""
    each, body = call.arguments, call.body
    check_is_open(body.topic)
    topic = topic_of(each.group)
    found = await (await services.client()).admin.messages.by_id(each.offset_message_id)
    if found.topic != topic:
        raise ProblemError(NOT_FOUND, f"{each.offset_message_id} is no dead letter of the group {each.group}")
    if body.payload is not None and body.payload_base64 is not None:
        raise ProblemError(INVALID, "at most one of payload and payload_base64 may be given")
    payload = None if body.payload is None else body.payload.encode()
    if body.payload_base64 is not None:
        payload = decoded_base64(body.payload_base64)
    message = message_again(dead_letter(found), topic=body.topic, body=payload)
    properties = {**(message.properties or {}), **body.properties}
    message = msgspec.structs.replace(
        message,
        key=message.key if body.key is None else body.key,
        tags=message.tags if body.tags is None else body.tags,
        properties={name: value for name, value in properties.items() if value is not None},
    )
    return await (await services.publisher()).send(message, unique_key="")


async def replay_dead_letters(services: Services, call: Call[GroupArguments, ReplayOrder]) -> Replay:
    """Begin to send dead letters to the topics they came from, at a rate, in the process that is asked."""
    group, body = call.arguments.group, call.body
    services.replays.check(group)
    selection = Selection(body.from_ms, body.to_ms, body.original_topic or "", body.key)
    per_second = body.per_second or 0.0
    replay = ReplayOfLetters(
        await services.client(),
        group,
        await services.producer(),
        selection,
        per_second=per_second,
        is_again=body.is_again,
    )
    await replay.begin()
    job = services.replays.start(replay, selection, group=group, by=call.caller.name, per_second=per_second)
    return _replay(job)


async def show_replay(services: Services, call: Call[GroupArguments, None]) -> Replay:
    """Show how far the replay of a group is, or how its last one has ended, in the process that is asked."""
    return _replay(_job(services, call.arguments.group))


async def stop_replay(services: Services, call: Call[GroupArguments, None]) -> Replay:
    """End the replay of a group; a later one goes on behind what was sent."""
    job = _job(services, call.arguments.group)
    if not job.is_over:
        await job.stop()
    return _replay(job)


async def _chosen(services: Services, each: ChosenArguments) -> AsyncIterator[FoundLetter]:
    return (await services.client()).admin.dead_letters.of_group(
        each.group,
        begin_ms=each.from_ms,
        end_ms=each.to_ms,
        original_topic=each.original_topic or "",
        key=each.key,
    )


def _job(services: Services, group: str) -> ReplayJob:
    job = services.replays.find(group)
    if job is None:
        raise ProblemError(NOT_FOUND, f"this process knows of no replay of the group {group}")
    return job


def _replay(job: ReplayJob) -> Replay:
    replay, selection, resent = job.replay, job.selection, job.replay.resent
    return Replay(
        group=job.group,
        state=job.state,
        problem=job.problem,
        by=job.by,
        started_ms=job.started_ms,
        ended_ms=job.ended_ms,
        from_ms=selection.begin_ms,
        to_ms=selection.end_ms,
        original_topic=selection.original_topic,
        key=selection.key,
        per_second=job.per_second or None,
        total=replay.total_count,
        seen=replay.seen_count,
        sent=resent.sent_count,
        left=resent.left_count,
        left_message_ids=resent.left_message_ids,
    )


_AREA: Final = "dead letters"

ROUTES: Final = (
    route("GET", "/groups/{group}/dead-letters", list_dead_letters, tag=_AREA, problems=(NOT_FOUND,)),
    route(
        "GET",
        "/groups/{group}/dead-letters/export",
        export_dead_letters,
        tag=_AREA,
        answer_type="application/jsonl",
        problems=(NOT_FOUND, TOO_MANY),
    ),
    route(
        "POST",
        "/groups/{group}/dead-letters/resend",
        resend_dead_letters,
        tag=_AREA,
        role=Role.OPERATOR,
        body_bytes_max=256 * 1024,
        problems=(NOT_FOUND,),
    ),
    route(
        "POST",
        "/groups/{group}/dead-letters/{offset_message_id}/resend",
        resend_dead_letter,
        tag=_AREA,
        role=Role.OPERATOR,
        body_bytes_max=_EDITED_BYTES_MAX,
        problems=(NOT_FOUND, TOO_MANY),
    ),
    route(
        "POST",
        "/groups/{group}/dead-letters/replay",
        replay_dead_letters,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, CONFLICT, TOO_MANY),
    ),
    route("GET", "/groups/{group}/dead-letters/replay", show_replay, tag=_AREA, problems=(NOT_FOUND,)),
    route(
        "DELETE",
        "/groups/{group}/dead-letters/replay",
        stop_replay,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
)
