"""Broker topics and their queues."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.admin.configs import TopicSettings
from iotmq.client.transport.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_own_topic
from iotmq.console.api.pages import PageArguments, page_of
from iotmq.console.api.problems import CONFLICT, FORBIDDEN, INVALID, NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, Role, route
from iotmq.console.api.routes.names import BrokerText, QueueId, Told, TopicArguments
from iotmq.console.api.services import Services

QueueCount = Annotated[int, Meta(ge=1, le=limits.QUEUES_PER_TOPIC_MAX)]
BrokerNames = Annotated[tuple[BrokerText, ...], Meta(max_length=256)]

_READ: Final = 4
_WRITE: Final = 2


class TopicsArguments(PageArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of topics."""

    has_system: bool = False
    """Whether the brokers' own topics and those of groups (retries, dead letters) are listed, too."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A broker topic."""

    name: str
    brokers: list[str]
    """The names of the brokers that have it."""
    queues: int
    """Readable queues at all brokers together."""
    is_readable: bool
    is_writable: bool
    is_system: bool
    """Made by a broker for itself, or by a group for its retries or dead letters."""


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """A page of topics, by name."""

    items: list[Topic]
    next: str | None = None
    """The cursor of the next page; null behind the last one."""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a topic."""

    broker: str
    queue: int
    begin: int
    """The offset of the oldest message that is still there."""
    end: int
    """The offset that the next message will get."""
    last_stored_ms: int
    """When its last message was stored, in milliseconds since 1970; 0: never."""
    state: str
    """`open`, `frozen` (read only, because it is to be removed), or `closed` (not in use any more)."""
    behind: dict[str, int]
    """Consumer group -> messages it has still to consume."""


class TopicDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its queues."""

    topic: Topic
    queues: list[Queue]


class NewTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic as it is to be."""

    queues: QueueCount = 4
    """Queues at each broker. Use `PUT /topics/{topic}/queues` to take queues away."""
    is_readable: bool = True
    """Whether consumers get its messages."""
    is_writable: bool = True
    """Whether it takes messages."""
    is_ordered: bool = False
    """Whether clients keep to its queues, in whatever state its brokers are (ORDER_TOPIC_CONFIG)."""
    brokers: BrokerNames = ()
    """Names of the brokers to make it at; empty: all."""


class QueueNumber(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of queues at each broker."""

    queues: QueueCount
    """Queues at each broker."""
    is_forced: bool = False
    """Removes queues although groups have messages left in them."""
    brokers: BrokerNames = ()
    """Names of the brokers; empty: all that have the topic."""


class Freeze(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Queues that are to take no messages, or to take them again."""

    queues: Annotated[tuple[QueueId, ...], Meta(min_length=1, max_length=limits.QUEUES_PER_TOPIC_MAX)]
    """The numbers of the queues."""
    is_frozen: bool
    """Whether they take no messages from now on, or take them again."""
    brokers: BrokerNames = ()
    """Names of the brokers; empty: all that have the topic."""


async def list_topics(services: Services, call: Call[TopicsArguments, None]) -> Topics:
    """List broker topics, by name."""
    admin = (await services.client()).admin
    settings_of: dict[str, dict[str, TopicSettings]] = {}
    for broker, topics in (await admin.configurations.topics()).items():
        for name, settings in topics.items():
            settings_of.setdefault(name, {})[broker] = settings
    system = set(await admin.statistics.system_topics())
    wanted = [name for name in settings_of if call.arguments.has_system or not _is_system(name, system)]
    names, next_cursor = page_of(wanted, call.arguments, str)
    items = [_topic(name, settings_of[name], is_system=_is_system(name, system)) for name in names]
    return Topics(items=items, next=next_cursor)


async def show_topic(services: Services, call: Call[TopicArguments, None]) -> TopicDetail:
    """Show a topic and its queues: what they hold, and who is behind."""
    name = call.arguments.topic
    admin = (await services.client()).admin
    tables = await admin.configurations.topics()
    found = {broker: topics[name] for broker, topics in tables.items() if name in topics}
    if not found:
        raise ProblemError(NOT_FOUND, f"no broker has the topic {name}")
    content = await admin.statistics.topic_content(name)
    last_ms = {
        (queue.broker_name, queue.queue_id): each.last_update_timestamp for queue, each in content.items()
    }
    queues = [
        Queue(
            broker=broker,
            queue=queue.queue_id,
            begin=queue.min_offset,
            end=queue.max_offset,
            last_stored_ms=last_ms.get((broker, queue.queue_id), 0),
            state=queue.state,
            behind=queue.behind,
        )
        for broker, state in sorted((await admin.scaling.states(name)).items())
        for queue in state.queues
    ]
    system = set(await admin.statistics.system_topics())
    return TopicDetail(topic=_topic(name, found, is_system=_is_system(name, system)), queues=queues)


async def put_topic(services: Services, call: Call[TopicArguments, NewTopic]) -> Told:
    """Make a topic, or change it."""
    _check_may_change(call)
    body = call.body
    if body.is_ordered and not body.is_writable:
        raise ProblemError(INVALID, "is_ordered: a topic that nobody may write to has no order")
    brokers = await (await services.client()).admin.changes.update_topic(
        call.arguments.topic,
        read_queues=body.queues,
        write_queues=body.queues,
        permissions=body.is_readable * _READ | body.is_writable * _WRITE,
        is_ordered=body.is_ordered,
        broker_names=body.brokers,
    )
    return Told(brokers=brokers)


async def delete_topic(services: Services, call: Call[TopicArguments, None]) -> Told:
    """Delete a topic at all brokers, with its messages and the offsets of groups in it."""
    return Told(brokers=await (await services.client()).admin.changes.delete_topic(call.arguments.topic))


async def scale_topic(services: Services, call: Call[TopicArguments, QueueNumber]) -> TopicDetail:
    """Add queues to a topic, or remove its last ones, which have to be frozen and drained."""
    _check_may_change(call)
    name, body = call.arguments.topic, call.body
    scaling = (await services.client()).admin.scaling
    states = await scaling.states(name, body.brokers)
    for broker, state in states.items():
        if body.queues > state.write_queue_nums:
            await scaling.add(name, body.queues, (broker,))
        elif body.queues < state.read_queue_nums:
            await scaling.remove(name, body.queues, (broker,), is_forced=body.is_forced)
    return await show_topic(services, Call(call.arguments, None, call.caller, call.request))


async def freeze_queues(services: Services, call: Call[TopicArguments, Freeze]) -> TopicDetail:
    """Let queues of a topic take no messages any more, or take them again; they are read meanwhile."""
    _check_may_change(call)
    scaling = (await services.client()).admin.scaling
    change = scaling.freeze if call.body.is_frozen else scaling.thaw
    await change(call.arguments.topic, call.body.queues, call.body.brokers)
    return await show_topic(services, Call(call.arguments, None, call.caller, call.request))


def _check_may_change(call: Call[TopicArguments, Any]) -> None:
    """Leave the gateway's own topics to administrators: without them there are no audit records."""
    if is_own_topic(call.arguments.topic) and call.caller.role < Role.ADMINISTRATOR:
        raise ProblemError(FORBIDDEN, f"the topic {call.arguments.topic} is the gateway's own")


def _topic(name: str, settings_of: dict[str, TopicSettings], *, is_system: bool) -> Topic:
    permissions = [settings.perm for settings in settings_of.values()]
    return Topic(
        name=name,
        brokers=sorted(settings_of),
        queues=sum(settings.read_queue_nums for settings in settings_of.values()),
        is_readable=any(each & _READ for each in permissions),
        is_writable=any(each & _WRITE for each in permissions),
        is_system=is_system,
    )


def _is_system(name: str, system: set[str]) -> bool:
    return name in system or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


_AREA: Final = "topics"

ROUTES: Final = (
    route("GET", "/topics", list_topics, tag=_AREA),
    route("GET", "/topics/{topic}", show_topic, tag=_AREA, problems=(NOT_FOUND,)),
    route("PUT", "/topics/{topic}", put_topic, tag=_AREA, role=Role.OPERATOR, problems=(CONFLICT,)),
    route(
        "DELETE",
        "/topics/{topic}",
        delete_topic,
        tag=_AREA,
        role=Role.ADMINISTRATOR,
        problems=(NOT_FOUND, CONFLICT),
    ),
    route(
        "PUT",
        "/topics/{topic}/queues",
        scale_topic,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, CONFLICT),
    ),
    route(
        "PUT",
        "/topics/{topic}/frozen",
        freeze_queues,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, CONFLICT),
    ),
)
