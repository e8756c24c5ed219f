"""`iotmq sessions`: kept MQTT sessions listed and shown, clients disconnected, sessions ended."""

from __future__ import annotations

import argparse

from iotmq.client.admin.devices.sessions import SessionAdmin
from iotmq.commands.admin.output import Done, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError


async def list_sessions(session: Session, options: argparse.Namespace) -> Result:
    """List sessions in the order of their client ids."""
    rows: list[dict[str, object]] = []
    async for found in SessionAdmin(session.client).kept(prefix=options.prefix):
        if len(rows) == options.count_max:
            break
        rows.append(
            {
                "client_id": found.client_id,
                "front_end": found.front_end,
                "filters": found.subscriptions,
                "in_flight": found.in_flight,
                "left_ms": found.closed_ms,
                "expires_ms": found.expires_ms,
            }
        )
    return Table(rows, nothing="no session is kept")


async def show(session: Session, options: argparse.Namespace) -> Result:
    """Show what each broker knows of one client: a row for each of its filters."""
    details = await SessionAdmin(session.client).show(options.client_id)
    if not details:
        raise _unknown(options.client_id)
    rows: list[dict[str, object]] = []
    for broker, detail in sorted(details.items()):
        common = {
            "broker": broker,
            "front_end": detail.front_end,
            "is_kept": detail.is_kept,
            "left_ms": detail.closed_ms,
            "expires_ms": detail.expires_ms,
            "in_flight": detail.in_flight,
            "dropped": detail.dropped,
            "will": detail.will_topic,
        }
        rows += [
            {
                **common,
                "filter": entry.topic_filter,
                "qos": entry.qos,
                "behind": entry.behind,
                "is_wide": entry.is_wide,
                "is_exclusive": entry.is_exclusive,
            }
            for entry in detail.filters
        ] or [common]
    columns = (
        "broker", "front_end", "is_kept", "filter", "qos", "behind", "is_wide", "is_exclusive",
        "in_flight", "dropped",
        "left_ms", "expires_ms", "will",
    )  # fmt: skip
    return Table(rows, columns=columns)


async def shared(session: Session, options: argparse.Namespace) -> Result:
    """List shared subscriptions: a row for each member, and one for a group without connected members."""
    rows: list[dict[str, object]] = []
    async for broker, found in SessionAdmin(session.client).shares():
        group = {
            "broker": broker,
            "share": found.share,
            "strategy": found.strategy,
            "kept": found.kept_sessions,
            "members": found.member_count,
            "behind": found.behind,
        }
        rows += [
            {
                **group,
                "client_id": member.client_id,
                "front_end": member.front_end,
                "in_flight": member.in_flight,
                "credit": member.credit,
                "is_slow": member.is_slow,
            }
            for member in found.members
        ] or [{**group, "in_flight": found.in_flight}]
    columns = (
        "broker", "share", "strategy", "kept", "members", "behind", "client_id", "front_end", "in_flight",
        "credit", "is_slow",
    )  # fmt: skip
    return Table(rows, columns=columns, nothing="there is no shared subscription")


async def kick(session: Session, options: argparse.Namespace) -> Result:
    """Have a client disconnected; it may come back at once."""
    brokers = await SessionAdmin(session.client).kick(options.client_id)
    if not brokers:
        raise ClientError(f"client {options.client_id} is not connected: `iotmq sessions show` tells more")
    return Done(
        f"client {options.client_id} is disconnected", {"client_id": options.client_id, "brokers": brokers}
    )


async def purge(session: Session, options: argparse.Namespace) -> Result:
    """End a session with everything that waits for it."""
    brokers = await SessionAdmin(session.client).purge(options.client_id)
    if not brokers:
        raise _unknown(options.client_id)
    return Done(
        f"the session of client {options.client_id} has ended",
        {"client_id": options.client_id, "brokers": brokers},
    )


def _unknown(client_id: str) -> ClientError:
    return ClientError(
        f"no broker has a session of client {client_id}: `iotmq sessions list` shows which are kept"
    )
