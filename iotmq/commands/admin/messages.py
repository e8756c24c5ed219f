"""Find single messages and track them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import msgspec

from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.commands.admin.output import Done, Fields, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError
from iotmq.message.bodies import body_field
from iotmq.message.errors import MessageFormatError


async def show_by_id(session: Session, options: argparse.Namespace) -> Result:
    """Show the message of an offset message id."""
    return Fields(_fields(await session.admin.messages.by_id(options.message_id)))


async def find_by_key(session: Session, options: argparse.Namespace) -> Result:
    """Find messages by a key, or by their sender's id."""
    if options.is_unique:
        found = await session.admin.messages.by_unique_key(options.topic, options.key)
    else:
        limits = {} if options.end_ms is None else {"end_ms": options.end_ms}
        found = await session.admin.messages.by_key(
            options.topic, options.key, begin_ms=options.begin_ms or 0, **limits
        )
    return table_of(found, f"no message of topic {options.topic} has {options.key}")


async def show_by_offset(session: Session, options: argparse.Namespace) -> Result:
    """Show the message with an offset."""
    queue = MessageQueue(options.topic, options.broker, options.queue)
    message = await session.admin.messages.at_offset(queue, options.offset)
    if message is None:
        raise ClientError(
            f"queue {options.queue} of topic {options.topic} at {options.broker} has no message with offset "
            f"{options.offset}: see `topic status {options.topic}` for what it has"
        )
    return Fields(_fields(message))


async def consume(session: Session, options: argparse.Namespace) -> Result:
    """Have one consumer consume a stored message now; nothing of its group's offsets changes."""
    message = await session.admin.messages.by_id(options.message_id)
    result = await session.admin.groups.consume_directly(
        options.group, options.client, options.message_id, broker_name=message.queue.broker_name
    )
    return Fields(msgspec.to_builtins(result))


async def resume_transaction(session: Session, options: argparse.Namespace) -> Result:
    """Have a producer asked again about a transaction that was given up."""
    await session.admin.changes.resume_transaction(options.message_id)
    return Done(
        f"the producer of {options.message_id} will be asked again", {"message_id": options.message_id}
    )


async def track(session: Session, options: argparse.Namespace) -> Result:
    """Track a message in every group."""
    message = await session.admin.messages.by_id(options.message_id)
    rows = [
        {"group": track.group, "state": track.state.value}
        for track in await session.admin.messages.track(message)
    ]
    return Table(rows, nothing=f"no group consumes topic {message.record.topic}")


def table_of(messages: Iterable[ReceivedMessage], nothing: str) -> Result:
    """Make a table with a line per message; programs get all fields."""
    rows = [_fields(message) for message in messages]
    columns = ("offset_message_id", "broker", "queue", "offset", "store_timestamp_ms", "keys", "tags", "body")
    return Table(rows, columns=columns, nothing=nothing)


def _fields(message: ReceivedMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "redeliveries": message.redeliveries,
        "keys": message.keys,
        "tags": message.tags,
        "properties": message.properties,
    }
    try:
        fields |= body_field(message.body)
    except MessageFormatError as error:
        fields["body_error"] = str(error)
    return fields
