"""Show clusters and brokers: their state and their settings."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable

import msgspec

from iotmq.client.admin.brokers import Statistic
from iotmq.client.admin.configs import BrokerPlace
from iotmq.client.admin.groups import GroupProgress
from iotmq.client.transport.routes import MASTER_ID
from iotmq.commands.admin.output import Done, Fields, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import BrokerError, ConnectionClosedError, RequestTimeoutError, RouteNotFoundError


async def list_cluster(session: Session, options: argparse.Namespace) -> Result:
    """Return every broker of every cluster with how busy it is; those that do not answer are there, too."""
    places = await session.admin.configurations.brokers()
    loads = await asyncio.gather(*(_load(session, place) for place in places))
    rows = [
        {
            "cluster": place.cluster,
            "broker": place.name,
            "id": place.broker_id,
            "address": place.address,
            **load,
        }
        for place, load in zip(places, loads, strict=True)
    ]
    columns = (
        "cluster",
        "broker",
        "id",
        "address",
        "version",
        "in_per_s",
        "out_per_s",
        "disk",
        "earliest_ms",
    )
    return Table(rows, columns=columns, nothing="no broker is registered")


async def show_status(session: Session, options: argparse.Namespace) -> Result:
    """Show the runtime information of brokers."""
    tables = await session.admin.statistics.runtime_info(options.broker_names)
    if len(tables) == 1:
        (values,) = tables.values()
        return Fields(dict(sorted(values.items())))
    rows = [
        {"broker": name, "name": key, "value": value}
        for name, values in sorted(tables.items())
        for key, value in sorted(values.items())
    ]
    return Table(rows)


async def show_progress(session: Session, options: argparse.Namespace) -> Result:
    """Show the progress of all groups of a broker, those furthest behind first."""
    progress = await session.admin.statistics.progress(options.broker)
    rows = [
        {"group": group, "topic": topic, "behind": behind}
        for group, parts in progress.groups.items()
        for topic, behind in _behind_by_topic(parts).items()
    ]
    rows.sort(key=lambda row: -int(str(row["behind"])))
    return Table(rows, nothing="no group has offsets there")


async def list_clients(session: Session, options: argparse.Namespace) -> Result:
    """List the clients connected to a broker, with their groups."""
    rows = [
        {
            "client": client.client_id,
            "address": client.client_addr,
            "language": client.language,
            "seen_ms": client.last_update_timestamp,
            "produces_for": client.producer_groups,
            "consumes_for": [membership.group for membership in client.consumers],
        }
        async for client in session.admin.groups.clients(options.broker)
    ]
    return Table(rows, nothing="nobody is connected")


async def show_settings(session: Session, options: argparse.Namespace) -> Result:
    """Show every setting of a broker."""
    return Fields(await session.admin.changes.broker_settings(options.broker))


async def change_settings(session: Session, options: argparse.Namespace) -> Result:
    """Change settings of running brokers."""
    wanted = dict(options.settings)
    names = await session.admin.changes.change_broker_settings(wanted, options.broker_names)
    return Done(f"{', '.join(wanted)} changed at {', '.join(names)}", {"settings": wanted, "brokers": names})


async def wipe_write_permission(session: Session, options: argparse.Namespace) -> Result:
    """Take a broker out of the routes that producers see."""
    count = await session.admin.changes.set_writable(options.broker, is_writable=False)
    return Done(
        f"{count} topics of {options.broker} take no messages, in the routes, until one of them changes",
        {"broker": options.broker, "topics": count},
    )


async def add_write_permission(session: Session, options: argparse.Namespace) -> Result:
    """Put a broker back into the routes that producers see."""
    count = await session.admin.changes.set_writable(options.broker, is_writable=True)
    return Done(
        f"{count} topics of {options.broker} take messages again", {"broker": options.broker, "topics": count}
    )


async def show_statistics(session: Session, options: argparse.Namespace) -> Result:
    """Show what brokers counted under a name and key, over a minute, an hour and a day."""
    found = await session.admin.statistics.statistics(options.name, options.key, options.broker_names)
    rows = [
        {"broker": broker, "span": span, **msgspec.structs.asdict(statistic)}
        for broker, statistics in sorted(found.items())
        for span, statistic in _spans(statistics.minute, statistics.hour, statistics.day)
    ]
    return Table(rows, nothing=f"no broker has counted {options.name} of {options.key}")


async def delete_expired(session: Session, options: argparse.Namespace) -> Result:
    """Delete log files past their age now."""
    names = await session.admin.changes.delete_expired(options.broker_names)
    return Done(f"{', '.join(names)}: what is past its age is deleted", {"brokers": names})


async def _load(session: Session, place: BrokerPlace) -> dict[str, object]:
    if place.broker_id != MASTER_ID:
        return {}
    try:
        (values,) = (await session.admin.statistics.runtime_info([place.name])).values()
    except (ConnectionClosedError, RequestTimeoutError, BrokerError, RouteNotFoundError):
        return {"version": "does not answer"}
    return {
        "version": values.get("brokerVersionDesc"),
        "in_per_s": _first_number(values.get("putTps", "")),
        "out_per_s": _first_number(values.get("getTransferedTps", "")),
        "disk": values.get("commitLogDiskRatio"),
        "earliest_ms": int(values.get("earliestMessageTimeStamp", "-1")),
    }


def _behind_by_topic(parts: Iterable[GroupProgress]) -> dict[str, int]:
    behind: dict[str, int] = {}
    for part in parts:
        for queue, lag in part.queues.items():
            behind[queue.topic] = behind.get(queue.topic, 0) + lag.behind
    return behind


def _first_number(text: str) -> float | None:
    first = text.partition(" ")[0]
    try:
        return float(first)
    except ValueError:
        return None


def _spans(*statistics: Statistic) -> list[tuple[str, Statistic]]:
    return list(zip(("minute", "hour", "day"), statistics, strict=True))
