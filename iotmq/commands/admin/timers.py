"""List scheduled messages, and cancel one."""

from __future__ import annotations

import argparse

from iotmq.commands.admin.output import Done, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError


async def list_waiting(session: Session, options: argparse.Namespace) -> Result:
    """List the delayed messages, at each broker those that are due first."""
    rows: list[dict[str, object]] = []
    async for message in session.waiting.list(options.topic or "", broker_names=options.broker_names):
        if len(rows) == options.count_max:
            break
        rows.append(
            {
                "broker": message.broker_name,
                "topic": message.topic,
                "due_ms": message.due_ms,
                "level": message.level,
                "message_id": message.unique_key,
                "stored_ms": message.store_timestamp,
                "bytes": message.body_size,
            }
        )
    columns = ("broker", "topic", "due_ms", "level", "message_id", "bytes")
    return Table(rows, columns=columns, nothing="no message waits")


async def cancel(session: Session, options: argparse.Namespace) -> Result:
    """Cancel a scheduled message."""
    if not await session.waiting.cancel(options.topic, options.message_id, broker_names=options.broker_names):
        raise ClientError(
            f"no message {options.message_id} waits for topic {options.topic}: `timer list --topic "
            f"{options.topic}` shows what does; what is delivered cannot be taken back"
        )
    return Done(
        f"message {options.message_id} for topic {options.topic} is taken back",
        {"topic": options.topic, "message_id": options.message_id},
    )
