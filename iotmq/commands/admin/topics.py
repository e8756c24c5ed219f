"""List, create, change and delete topics, and scale their queues while they are in use."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from iotmq.client.admin.configs import TopicSettings
from iotmq.client.admin.queue_scaling import DrainProgress, TopicState
from iotmq.commands.admin.arguments import permission_text
from iotmq.commands.admin.output import Done, Nothing, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError, RequestTimeoutError

_DRAIN_LOOK_S = 1.0
_INTERNAL = ("%RETRY%", "%DLQ%")


async def list_topics(session: Session, options: argparse.Namespace) -> Result:
    """Topics with their brokers and queues; the brokers' own and groups' only when asked for."""
    by_broker = await session.admin.configurations.topics()
    of_cluster = (
        set(await session.admin.configurations.topics_of_cluster(options.cluster))
        if options.cluster
        else None
    )
    hidden = set() if options.is_all else set(await session.admin.statistics.system_topics())
    rows = [
        {
            "topic": name,
            "broker": broker,
            "queues": topic.read_queue_nums,
            "perm": permission_text(topic.perm),
            "ordered": topic.order,
            "frozen": topic.frozen_queues,
        }
        for broker, topics in sorted(by_broker.items())
        for name, topic in topics.items()
        if (of_cluster is None or name in of_cluster)
        and name not in hidden
        and (options.is_all or not name.startswith(_INTERNAL))
    ]
    rows.sort(key=lambda row: (str(row["topic"]), str(row["broker"])))
    return Table(rows, nothing="no topics")


async def show_status(session: Session, options: argparse.Namespace) -> Result:
    """Show the offsets of each queue of a topic."""
    await session.admin.configurations.route(options.topic)
    content = await session.admin.statistics.topic_content(options.topic)
    rows = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "first": held.min_offset,
            "next": held.max_offset,
            "messages": held.max_offset - held.min_offset,
            "last_stored_ms": held.last_update_timestamp,
        }
        for queue, held in sorted(content.items())
    ]
    return Table(rows)


async def show_route(session: Session, options: argparse.Namespace) -> Result:
    """Show the route of a topic."""
    addresses = await session.admin.brokers()
    rows = [
        {
            "broker": queues.broker_name,
            "addresses": {
                str(broker_id): address
                for broker_id, address in sorted(addresses.get(queues.broker_name, {}).items())
            },
            "read_queues": queues.read_queue_nums,
            "write_queues": queues.write_queue_nums,
            "perm": permission_text(queues.perm),
            "frozen": queues.frozen_queues,
        }
        for queues in await session.admin.configurations.route(options.topic)
    ]
    return Table(rows)


async def show_groups(session: Session, options: argparse.Namespace) -> Result:
    """Show the groups that consume a topic, with their lag."""
    groups = await session.admin.groups.of_topic(options.topic)
    progress = await asyncio.gather(
        *(session.admin.groups.progress(group, options.topic) for group in groups)
    )
    rows = [{"group": group, "behind": found.behind} for group, found in zip(groups, progress, strict=True)]
    return Table(rows, nothing=f"no group consumes topic {options.topic}")


async def create(session: Session, options: argparse.Namespace) -> Result:
    """Make a topic; it must not be there yet."""
    by_broker = await session.admin.configurations.topics(options.broker_names)
    there = sorted(name for name, topics in by_broker.items() if options.topic in topics)
    if there:
        raise ClientError(
            f"topic {options.topic} is at {', '.join(there)} already: change it with `topic update`, or give "
            "it more queues with `topic scale`"
        )
    return await _put(session, options, read_queues=options.queues, write_queues=options.queues)


async def update(session: Session, options: argparse.Namespace) -> Result:
    """Change a topic at all brokers that have it; what is not named stays."""

    def change(topic: TopicSettings) -> dict[str, Any]:
        return {
            "read_queues": options.read_queues or topic.read_queue_nums,
            "write_queues": options.write_queues or topic.write_queue_nums,
            "permissions": topic.perm if options.perm is None else options.perm,
            "is_ordered": topic.order if options.is_ordered is None else options.is_ordered,
        }

    changed: list[str] = []
    for broker, topics in sorted((await session.admin.configurations.topics(options.broker_names)).items()):
        topic = topics.get(options.topic)
        if topic is not None:
            changed += await session.admin.changes.update_topic(
                options.topic, **change(topic), broker_names=[broker]
            )
    if not changed:
        raise ClientError(f"no broker has topic {options.topic}: make it with `topic create`")
    return _done(options.topic, changed, "changed")


async def pause(session: Session, options: argparse.Namespace) -> Result:
    """Let nobody read a topic until `resume`; it still takes messages."""
    names = await session.admin.changes.pause_topic(options.topic, options.broker_names)
    return _done(options.topic, names, "paused")


async def resume(session: Session, options: argparse.Namespace) -> Result:
    """Let a paused topic be read again."""
    names = await session.admin.changes.resume_topic(options.topic, options.broker_names)
    return _done(options.topic, names, "resumed")


async def delete(session: Session, options: argparse.Namespace) -> Result:
    """Delete a topic with its messages and the offsets of all groups in it."""
    configured = await session.admin.configurations.topics()
    if not any(options.topic in topics for topics in configured.values()):
        raise ClientError(f"no broker has topic {options.topic}: `topic list --all` shows what there is")
    return _done(options.topic, await session.admin.changes.delete_topic(options.topic), "deleted")


async def clean_unused(session: Session, options: argparse.Namespace) -> Result:
    """Delete what is left of topics that are not configured."""
    names = await session.admin.changes.clean_unused_topics(options.broker_names)
    return Done(f"cleaned at {', '.join(names)}", {"brokers": names})


async def show_queues(session: Session, options: argparse.Namespace) -> Result:
    """Show which queues take messages, and what each group has still to consume."""
    return _states(await session.admin.scaling.states(options.topic, options.broker_names))


async def scale(session: Session, options: argparse.Namespace) -> Result:
    """Add queues to a topic; `topic drain` takes queues away."""
    return _states(await session.admin.scaling.add(options.topic, options.queues, options.broker_names))


async def freeze(session: Session, options: argparse.Namespace) -> Result:
    """Let queues take no more messages."""
    return _states(await session.admin.scaling.freeze(options.topic, options.queue_ids, options.broker_names))


async def thaw(session: Session, options: argparse.Namespace) -> Result:
    """Let frozen queues take messages again."""
    return _states(await session.admin.scaling.thaw(options.topic, options.queue_ids, options.broker_names))


async def drain(session: Session, options: argparse.Namespace) -> Result:
    """Have fewer queues: freeze the last ones, wait until they are consumed, and remove them."""
    if options.is_forced:
        for name, state in (await session.admin.scaling.states(options.topic, options.broker_names)).items():
            going = [queue.queue_id for queue in state.queues if queue.queue_id >= options.queues]
            if going:
                await session.admin.scaling.freeze(options.topic, going, [name])
                await session.admin.scaling.remove(options.topic, options.queues, [name], is_forced=True)
    else:
        await _drain(session, options)
    return _states(await session.admin.scaling.states(options.topic, options.broker_names))


async def _drain(session: Session, options: argparse.Namespace) -> None:
    step: DrainProgress | None = None
    try:
        async with asyncio.timeout(options.timeout_s):
            async for step in session.admin.scaling.scale_in(
                options.topic, options.queues, options.broker_names, interval_s=_DRAIN_LOOK_S
            ):
                session.progress(
                    f"{options.topic}: {step.queues_left} queues to drain, {step.messages_left} messages",
                    is_last=step.is_over,
                )
    except TimeoutError:
        left = "nobody has said yet which queues" if step is None else f"{step.queues_left} queues"
        messages = "" if step is None else f", {step.messages_left} messages are left"
        raise RequestTimeoutError(
            f"after {options.timeout_s:g} s {left} of topic {options.topic} are not drained{messages}. They "
            "stay frozen: see `topic queues` for who is behind, wait with the same command again, or open "
            "them with `topic thaw`"
        ) from None


async def _put(
    session: Session, options: argparse.Namespace, *, read_queues: int, write_queues: int
) -> Result:
    names = await session.admin.changes.update_topic(
        options.topic,
        read_queues=read_queues,
        write_queues=write_queues,
        permissions=options.perm,
        is_ordered=options.is_ordered,
        broker_names=options.broker_names,
    )
    return Done(
        f"topic {options.topic} made with {write_queues} queues at each of {', '.join(names)}",
        {"topic": options.topic, "queues": write_queues, "brokers": names},
    )


def _states(states: dict[str, TopicState]) -> Result:
    rows = [
        {
            "broker": name,
            "queue": queue.queue_id,
            "state": queue.state,
            "messages": queue.max_offset - queue.min_offset,
            "drained": queue.is_drained,
            "behind": {group: count for group, count in queue.behind.items() if count},
        }
        for name, state in sorted(states.items())
        for queue in state.queues
    ]
    if not rows:
        return Nothing()
    return Table(rows)


def _done(topic: str, names: list[str], done: str) -> Result:
    return Done(f"topic {topic} {done} at {', '.join(names)}", {"topic": topic, "brokers": names})
