"""Consumer groups: who is in them, how far they are, and their offsets."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.client.admin.admin import Admin
from iotmq.client.admin.changes import END_MS
from iotmq.client.admin.groups import is_own_group
from iotmq.client.consuming.offsets import offsets
from iotmq.client.transport.queue_tables import by_queue
from iotmq.client.transport.routes import MessageQueue
from iotmq.console.api.pages import PageArguments, page_of
from iotmq.console.api.problems import CONFLICT, INVALID, NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, Role, route
from iotmq.console.api.routes.names import GroupArguments, TimeMs, Told, TopicText
from iotmq.console.api.services import Services
from iotmq.event_loop import some_at_once

# Groups asked about at one time.
_ASKED_AT_ONCE: Final = 16


class GroupsArguments(PageArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of groups."""

    has_system: bool = False
    """Whether groups of brokers, of tools of RocketMQ and of iotmq itself are listed, too."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    name: str
    members: int
    """Consumers that are connected."""
    model: str | None
    """`clustering` or `broadcasting`; null without members."""
    behind: int
    """Messages it has still to consume."""
    consumed_per_s: float


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """A page of groups, by name."""

    items: list[Group]
    next: str | None = None
    """The cursor of the next page; null behind the last one."""


class GroupQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a queue."""

    topic: str
    broker: str
    queue: int
    end: int
    """The offset that the next message of the queue will get."""
    consumed: int
    """The offset of the message that the group consumes next."""
    behind: int
    last_consumed_ms: int
    """When the last message that it consumed was stored, in milliseconds since 1970; 0: none is known."""


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A connected member of a group."""

    client_id: str
    address: str
    language: str
    version: int


class ConsumerArguments(GroupArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member of a group."""

    client_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    """The name that it connects with, from the list of members."""


class ReadQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that a member reads."""

    topic: str
    broker: str
    queue: int


class ConsumerDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A member's report of itself."""

    client_id: str
    queues: list[ReadQueue]
    """The queues that it reads now."""


class GroupDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A group with its members and its progress."""

    group: Group
    queues: list[GroupQueue]
    consumers: list[Consumer]


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a group is to go on."""

    topic: TopicText
    """The broker topic in which it is moved."""
    to_ms: TimeMs | None = None
    """Go on with the first message stored at this time or later, in milliseconds since 1970."""
    to_end: bool = False
    """Go on behind the last message."""
    is_preview: bool = False
    """Only says what would be done."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a group that is moved."""

    broker: str
    queue: int
    before: int | None
    """The offset before; null: the group had none."""
    after: int


class Moves(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a move, or of its preview."""

    items: list[Moved]
    skipped: int
    """Messages that the group does not get."""
    repeated: int
    """Messages that it gets again, if they are still there."""
    is_preview: bool


class DeleteArguments(GroupArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a deletion."""

    with_offsets: bool = True
    """Whether its offsets go, too: a group of this name then begins anew."""


class GroupChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a group at all brokers; those that are left out stay as they are."""

    is_consuming: bool | None = None
    """Whether its members get messages: false pauses it."""
    retries_max: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    """After so many more tries a message is a dead letter; -1: never."""


async def list_groups(services: Services, call: Call[GroupsArguments, None]) -> Groups:
    """List consumer groups, by name, with their members and how far behind they are."""
    admin = (await services.client()).admin
    configured = await admin.configurations.groups()
    known = {name for groups in configured.values() for name in groups}
    for broker in configured:
        # Some have offsets and were never configured there.
        known |= (await admin.statistics.progress(broker)).groups.keys()
    if not call.arguments.has_system:
        known = {name for name in known if not is_own_group(name)}
    names, next_cursor = page_of(known, call.arguments, str)
    found = await some_at_once(partial(_detail, admin), names, count=_ASKED_AT_ONCE)
    return Groups(items=[each.group for each in found], next=next_cursor)


async def show_group(services: Services, call: Call[GroupArguments, None]) -> GroupDetail:
    """Show a group: its members, and how far it is in each queue."""
    name = call.arguments.group
    admin = (await services.client()).admin
    detail = await _detail(admin, name)
    if not detail.queues and not detail.consumers:
        configured = await admin.configurations.groups()
        if not any(name in groups for groups in configured.values()):
            raise ProblemError(NOT_FOUND, f"no broker knows the group {name}")
    return detail


async def show_consumer(services: Services, call: Call[ConsumerArguments, None]) -> ConsumerDetail:
    """Ask a member of a group, through its broker, which queues it reads."""
    asked = call.arguments
    info = await (await services.client()).admin.groups.running_info(asked.group, asked.client_id)
    queues = [
        ReadQueue(topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id)
        for queue in sorted(by_queue(info.mq_table))
    ]
    return ConsumerDetail(client_id=asked.client_id, queues=queues)


async def change_group(services: Services, call: Call[GroupArguments, GroupChange]) -> Told:
    """Make a group, or change it: pause it, or set when messages become dead letters."""
    named = {"consumeEnable": call.body.is_consuming, "retryMaxTimes": call.body.retries_max}
    settings = {name: value for name, value in named.items() if value is not None}
    changes = (await services.client()).admin.changes
    return Told(brokers=await changes.change_group(call.arguments.group, settings))


async def delete_group(services: Services, call: Call[DeleteArguments, None]) -> Told:
    """Delete a group at all brokers, with its retry and dead letter topics."""
    changes = (await services.client()).admin.changes
    group, with_offsets = call.arguments.group, call.arguments.with_offsets
    return Told(brokers=await changes.delete_group(group, with_offsets=with_offsets))


async def move_group(services: Services, call: Call[GroupArguments, Move]) -> Moves:
    """Move a group in a topic to a time or to the end, or show what that would do."""
    group, body = call.arguments.group, call.body
    if (body.to_ms is None) != body.to_end:
        raise ProblemError(INVALID, "exactly one of to_ms and to_end is needed")
    client = await services.client()
    before = await client.admin.group_offsets(group, body.topic)
    targets: dict[MessageQueue, int] = {}
    if not body.is_preview:
        to_ms = END_MS if body.to_ms is None else body.to_ms
        targets.update((await client.admin.changes.reset_offsets(group, body.topic, to_ms)).offsets)
    elif body.to_ms is None:
        targets.update({queue: span.end for queue, span in (await client.admin.offsets(body.topic)).items()})
    else:
        for queue in before:
            targets[queue] = await offsets.offset_at_time(client, queue, body.to_ms)
    items = [
        Moved(broker=queue.broker_name, queue=queue.queue_id, before=before[queue], after=targets[queue])
        for queue in sorted(before)
        if queue in targets
    ]
    steps = [each.after - each.before for each in items if each.before is not None]
    return Moves(
        items=items,
        skipped=sum(step for step in steps if step > 0),
        repeated=-sum(step for step in steps if step < 0),
        is_preview=body.is_preview,
    )


async def _detail(admin: Admin, name: str) -> GroupDetail:
    connections, progress = await asyncio.gather(
        admin.groups.connections(name), admin.groups.progress(name)
    )
    members = () if connections is None else connections.connection_set
    group = Group(
        name=name,
        members=len(members),
        model=None if connections is None else connections.message_model.lower(),
        behind=progress.behind,
        consumed_per_s=progress.consume_tps,
    )
    queues = [
        GroupQueue(
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            end=lag.broker_offset,
            consumed=lag.consumer_offset,
            behind=lag.behind,
            last_consumed_ms=lag.last_timestamp,
        )
        for queue, lag in sorted(progress.queues.items())
    ]
    consumers = [
        Consumer(
            client_id=each.client_id,
            address=each.client_addr,
            language=each.language,
            version=each.version,
        )
        for each in members
    ]
    return GroupDetail(group=group, queues=queues, consumers=consumers)


_AREA: Final = "groups"

ROUTES: Final = (
    route("GET", "/groups", list_groups, tag=_AREA),
    route("GET", "/groups/{group}", show_group, tag=_AREA, problems=(NOT_FOUND,)),
    route(
        "GET",
        "/groups/{group}/consumers/{client_id}",
        show_consumer,
        tag=_AREA,
        problems=(NOT_FOUND, CONFLICT),
    ),
    route("PATCH", "/groups/{group}", change_group, tag=_AREA, role=Role.OPERATOR, problems=(CONFLICT,)),
    route(
        "DELETE",
        "/groups/{group}",
        delete_group,
        tag=_AREA,
        role=Role.ADMINISTRATOR,
        problems=(NOT_FOUND, CONFLICT),
    ),
    route(
        "POST",
        "/groups/{group}/offsets",
        move_group,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, CONFLICT),
    ),
)
