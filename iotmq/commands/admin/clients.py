"""`iotmq admin client`: connected MQTT clients listed, shown and disconnected; subscriptions; refusals."""

from __future__ import annotations

import argparse

from iotmq.client.admin.devices.clients import SLOW_BY, ClientAdmin
from iotmq.commands.admin.output import Done, Fields, Result, Row, Table, printable
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError
from iotmq.message.properties import MQTT_TOPIC
from iotmq.ports.client_pages import (
    PROTOCOL_LEVELS,
    ClientFilter,
    ClientRow,
    RefusedQuestion,
)

_SHOWN = (
    "client_id", "front_end", "address", "user", "version", "connected_ms", "messages_received_per_s",
    "messages_sent_per_s", "in_flight", "queued", "dropped", "latency_ms",
)  # fmt: skip


async def list_clients(session: Session, options: argparse.Namespace) -> Result:
    """List connected clients, with the page behind them when there are more."""
    column, is_descending = options.order
    page = await ClientAdmin(session.client).page(
        _wanted(options),
        sort_by=column,
        is_descending=is_descending,
        limit=options.count_max,
        cursor=options.cursor,
    )
    _tell(session, page.problems)
    if page.next_cursor is not None:
        session.progress(
            f"{page.matched} clients fit; more of them: --cursor {page.next_cursor}", is_last=True
        )
    return Table([_row(row) for row in page.rows], columns=_SHOWN, nothing="no client that fits is connected")


async def show(session: Session, options: argparse.Namespace) -> Result:
    """Show one connected client, with its subscriptions."""
    found = await ClientAdmin(session.client).show(options.client_id)
    if found is None:
        raise _unknown(options.client_id)
    return Fields(
        {
            **_row(found.row),
            "idle_s": found.idle_s,
            "session_expiry_s": found.session_expiry_s,
            "is_resumed": found.is_resumed,
            "is_bridge": found.is_bridge,
            "is_write_paused": found.is_write_paused,
            "server_name": found.server_name,
            "will_topic": found.will_topic,
            "filters": [each.topic_filter for each in found.subscriptions],
        }
    )


async def kick(session: Session, options: argparse.Namespace) -> Result:
    """Disconnect clients by their ids, or those that fit a filter."""
    admin = ClientAdmin(session.client)
    wanted = _wanted(options)
    if bool(options.client_ids) == (wanted != ClientFilter()):
        raise ClientError(
            "name clients, or say which ones by --id, --user, --address, --listener and --where"
        )
    if options.client_ids:
        kicked = await admin.kick(options.client_ids, is_dry_run=options.is_dry_run)
    elif options.is_dry_run:
        kicked = await admin.find_to_kick(wanted)
    else:
        kicked = await admin.kick_all(wanted, limit=options.limit)
        if kicked.matched > options.limit:
            raise ClientError(
                f"{kicked.matched} clients fit, more than --limit {options.limit}: none is disconnected"
            )
    _tell(session, kicked.problems)
    if options.is_dry_run:
        sentence = f"would be disconnected: {kicked.matched}"
    else:
        sentence = f"disconnected: {kicked.kicked}"
    if kicked.client_ids:
        sentence += f" ({', '.join(kicked.client_ids)})"
    if missed := sorted(set(options.client_ids).difference(kicked.client_ids)):
        sentence += f"; not connected: {', '.join(missed)}"
    return Done(
        sentence,
        {"matched": kicked.matched, "kicked": kicked.kicked, "client_ids": kicked.client_ids},
    )


async def list_subscriptions(session: Session, options: argparse.Namespace) -> Result:
    """List subscriptions of connected clients and kept sessions."""
    page = await ClientAdmin(session.client).subscriptions(
        client_id=options.client_id,
        topic_filter=options.topic_filter,
        topic=options.topic,
        limit=options.count_max,
        cursor=options.cursor,
    )
    _tell(session, page.problems)
    if page.next_cursor is not None:
        session.progress(f"more of them: --cursor {page.next_cursor}", is_last=True)
    rows: list[Row] = [
        {
            "client_id": row.client_id,
            "topic_filter": row.topic_filter,
            "qos": row.qos,
            "front_end": row.front_end,
            "no_local": row.no_local,
            "retain_as_published": row.retain_as_published,
            "identifier": row.identifier,
            "is_exclusive": row.is_exclusive,
        }
        for row in page.rows
    ]
    return Table(rows, nothing="no subscription fits")


async def list_queue(session: Session, options: argparse.Namespace) -> Result:
    """List messages that a kept session is not done with."""
    page = await ClientAdmin(session.client).queue(
        options.client_id, options.topic_filter, limit=options.count_max, cursor=options.cursor
    )
    if page is None:
        raise ClientError(
            f"no kept session of {options.client_id} has this filter: `iotmq sessions show` has them"
        )
    _tell(session, page.problems)
    if page.left_out:
        session.progress(f"{page.left_out} messages are too large to be shown", is_last=True)
    if page.next_cursor is not None:
        session.progress(f"{page.behind} messages wait; the next: --cursor {page.next_cursor}", is_last=True)
    rows: list[Row] = [
        {
            "stored_ms": message.store_timestamp_ms,
            "broker": message.queue.broker_name,
            "mqtt_topic": message.properties.get(MQTT_TOPIC, ""),
            "bytes": len(message.record.body),
            "is_in_flight": is_in_flight,
            "message_id": message.offset_message_id,
        }
        for message, is_in_flight in zip(page.messages, page.is_in_flight, strict=True)
    ]
    return Table(rows, nothing="nothing waits")


async def list_slow(session: Session, options: argparse.Namespace) -> Result:
    """List the clients that take their messages slowest."""
    page = await ClientAdmin(session.client).slow(by=options.by, limit=options.count_max)
    _tell(session, page.problems)
    columns = tuple(dict.fromkeys(("client_id", "front_end", "address", options.by, *SLOW_BY)))
    return Table([_row(row) for row in page.rows], columns=columns, nothing="no client is slow")


async def list_refused(session: Session, options: argparse.Namespace) -> Result:
    """List the last ones who were not let in."""
    question = RefusedQuestion(
        client_id=options.client_id,
        user=options.user,
        address=options.address,
        reason=options.reason,
        limit=options.count_max,
    )
    found = await ClientAdmin(session.client).refused(question)
    _tell(session, found.problems)
    rows: list[Row] = [
        {
            "time_ms": each.time_ms,
            "source": each.source,
            "client_id": each.client_id,
            "user": each.user,
            "account": each.account,
            "address": each.address,
            "listener": each.listener,
            "reason": each.reason,
            "detail": each.detail,
        }
        for each in found.refusals
    ]
    return Table(rows, nothing="nobody was refused that is remembered")


def _wanted(options: argparse.Namespace) -> ClientFilter:
    least = {column: value for column, sign, value in options.bounds if sign == ">="}
    most = {column: value for column, sign, value in options.bounds if sign == "<="}
    if options.version:
        least["version"] = most["version"] = PROTOCOL_LEVELS[options.version]
    return ClientFilter(
        client_id=options.pattern,
        user=options.user,
        address=options.address,
        listener=options.listener,
        is_kept=options.is_kept,
        least=least,
        most=most,
    )


def _row(row: ClientRow) -> Row:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _tell(session: Session, problems: dict[str, str]) -> None:
    for name, why in sorted(problems.items()):
        session.progress(printable(f"{name} did not answer: {why}"), is_last=True)


def _unknown(client_id: str) -> ClientError:
    return ClientError(f"client {client_id} is not connected: `iotmq sessions show` has kept sessions")
