"""Show consumer groups, their members and their progress, and move their offsets."""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

import msgspec

from iotmq.commands.admin.output import Done, Fields, Result, Table
from iotmq.commands.admin.session import Session

# Groups asked about at one time.
_ASKED_AT_ONCE: Final = 16


async def list_groups(session: Session, options: argparse.Namespace) -> Result:
    """List every group with its members and its lag."""
    configured = await session.admin.configurations.groups()
    known = {name for groups in configured.values() for name in groups}
    for broker in configured:
        # Some have offsets and were never configured there.
        known |= (await session.admin.statistics.progress(broker)).groups.keys()
    names = sorted(known)
    rows = []
    for start in range(0, len(names), _ASKED_AT_ONCE):
        asked = names[start : start + _ASKED_AT_ONCE]
        rows += await asyncio.gather(*(_state_of(session, name) for name in asked))
    if not options.is_all:
        rows = [row for row in rows if row["members"] or row["has_offsets"]]
    return Table(rows, columns=("group", "members", "model", "behind", "per_s"), nothing="no groups")


async def _state_of(session: Session, group: str) -> dict[str, object]:
    connections = await session.admin.groups.connections(group)
    progress = await session.admin.groups.progress(group)
    return {
        "group": group,
        "members": 0 if connections is None else len(connections.connection_set),
        "model": None if connections is None else connections.message_model.lower(),
        "behind": progress.behind,
        "per_s": progress.consume_tps,
        "has_offsets": bool(progress.queues),
    }


async def show_progress(session: Session, options: argparse.Namespace) -> Result:
    """Show the progress of a group in every queue."""
    progress = await session.admin.groups.progress(options.group, options.topic or "")
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "end": lag.broker_offset,
            "consumed": lag.consumer_offset,
            "behind": lag.behind,
            "last_consumed_ms": lag.last_timestamp,
        }
        for queue, lag in progress.queues.items()
    ]
    return Table(rows, nothing=f"group {options.group} has consumed nothing yet")


async def show_connections(session: Session, options: argparse.Namespace) -> Result:
    """Show the live members of a group."""
    found = await session.admin.groups.connections(options.group)
    members = () if found is None else found.connection_set
    return _clients(members, f"group {options.group} has no live consumer")


async def show_producers(session: Session, options: argparse.Namespace) -> Result:
    """Show the live producers of a group."""
    return _clients(
        await session.admin.groups.producers(options.group), f"group {options.group} has no live producer"
    )


async def show_running(session: Session, options: argparse.Namespace) -> Result:
    """Show a consumer's running info."""
    info = await session.admin.groups.running_info(
        options.group, options.client, with_stack=options.has_stack
    )
    return Fields(msgspec.to_builtins(info))


async def show_times(session: Session, options: argparse.Namespace) -> Result:
    """Show the delay of a group in every queue of a topic."""
    times = await session.admin.groups.times(options.group, options.topic)
    rows = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "first_ms": found.min_time_ms,
            "last_ms": found.max_time_ms,
            "consumed_ms": found.consume_time_ms,
            "late_s": round(found.delay_ms / 1000, 1),
        }
        for queue, found in times.items()
    ]
    return Table(rows, nothing=f"group {options.group} has no offsets in topic {options.topic}")


async def show_status(session: Session, options: argparse.Namespace) -> Result:
    """Show the progress of each member in its queues of a topic."""
    found = await session.admin.groups.status(options.group, options.topic)
    rows = [
        {"client": client, "broker": queue.broker_name, "queue": queue.queue_id, "offset": offset}
        for client, queues in found.items()
        for queue, offset in queues.items()
    ]
    return Table(rows, nothing="no member has a queue of it")


async def create(session: Session, options: argparse.Namespace) -> Result:
    """Make a group, or change what is named of one."""
    wanted = {
        "retryMaxTimes": options.retries_max,
        "retryQueueNums": options.retry_queues,
        "consumeEnable": options.may_consume,
        "consumeBroadcastEnable": options.may_broadcast,
    }
    known: dict[str, object] = {}
    for groups in (await session.admin.configurations.groups(options.broker_names)).values():
        if options.group in groups:
            known = msgspec.to_builtins(groups[options.group])
    known |= {name: value for name, value in wanted.items() if value is not None}
    names = await session.admin.changes.update_group(options.group, known, options.broker_names)
    return _done(options.group, names, "set")


async def pause(session: Session, options: argparse.Namespace) -> Result:
    """Give a group no messages until `resume`."""
    names = await session.admin.changes.pause_group(options.group, options.broker_names)
    return _done(options.group, names, "paused")


async def resume(session: Session, options: argparse.Namespace) -> Result:
    """Give a paused group messages again."""
    names = await session.admin.changes.resume_group(options.group, options.broker_names)
    return _done(options.group, names, "resumed")


async def delete(session: Session, options: argparse.Namespace) -> Result:
    """Delete a group with its retry and dead letter topics and its offsets."""
    names = await session.admin.changes.delete_group(options.group, with_offsets=not options.keeps_offsets)
    return _done(options.group, names, "deleted")


async def reset_offsets(session: Session, options: argparse.Namespace) -> Result:
    """Let a group go on at another place of a topic."""
    moved = await session.admin.changes.reset_offsets(
        options.group, options.topic, options.place_ms, is_forced=not options.is_only_back
    )
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": offset,
            "by": "its members" if moved.is_live else "the broker",
        }
        for queue, offset in sorted(moved.offsets.items())
    ]
    return Table(rows)


async def skip(session: Session, options: argparse.Namespace) -> Result:
    """Let a group go on at the end of its queues; without --yes show what that skips."""
    skipped = await session.admin.changes.skip_to_now(
        options.group, options.topics, only_look=not options.is_confirmed
    )
    rows = [
        {
            "topic": each.queue.topic,
            "broker": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "from": each.begin,
            "to": each.end,
            "messages": each.end - each.begin,
            "in_flight": each.in_flight,
        }
        for each in skipped
    ]
    if rows and not options.is_confirmed:
        session.progress("Nothing is changed. Say it again with --yes to skip this.", is_last=True)
    return Table(rows, nothing=f"group {options.group} has nothing to skip")


async def clone_offsets(session: Session, options: argparse.Namespace) -> Result:
    """Let a group begin where another one is."""
    names = await session.admin.changes.clone_offsets(options.source, options.target, options.topic or "")
    return Done(
        f"group {options.target} begins where {options.source} is, at {', '.join(names)}",
        {"source": options.source, "target": options.target, "brokers": names},
    )


def _done(group: str, names: list[str], done: str) -> Result:
    return Done(f"group {group} {done} at {', '.join(names)}", {"group": group, "brokers": names})


def _clients(members: object, nothing: str) -> Result:
    rows = [
        {
            "client": member.client_id,
            "address": member.client_addr,
            "language": member.language,
            "version": member.version,
        }
        for member in members  # type: ignore[attr-defined]
    ]
    return Table(rows, nothing=nothing)
