"""Dead letters by hand: what a group gave up, sending it again, and taking it out."""

from __future__ import annotations

import argparse
from typing import Any

from iotmq.client.admin.dead_letters import Resent, exported
from iotmq.client.sending.producer import Producer
from iotmq.commands.admin.output import Done, Nothing, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError

_PRODUCER_GROUP = "iotmq-admin"


async def list_all(session: Session, options: argparse.Namespace) -> Result:
    """List the dead letters of a group, oldest first per queue."""
    rows: list[dict[str, object]] = []
    async for letter in session.admin.dead_letters.of_group(options.group, **_chosen(options)):
        if len(rows) == options.count_max:
            break
        message = letter.message
        rows.append(
            {
                "offset_message_id": message.offset_message_id,
                "message_id": message.message_id,
                "original_topic": letter.original_topic,
                "given_up_ms": message.store_timestamp_ms,
                "redeliveries": message.redeliveries,
                "keys": message.keys,
            }
        )
    columns = ("offset_message_id", "original_topic", "given_up_ms", "redeliveries", "keys")
    return Table(rows, columns=columns, nothing=f"group {options.group} has given up nothing in that time")


async def resend(session: Session, options: argparse.Namespace) -> Result:
    """Send dead letters to their original topics: those named, or all."""
    if bool(options.message_ids) == options.is_all:
        raise ClientError("name the ids of the messages to send again (see `dlq list`), or --all")
    resent = Resent()
    async with Producer(session.client, _PRODUCER_GROUP) as producer:
        if options.message_ids:
            resent = await session.admin.dead_letters.resend(options.group, options.message_ids, producer)
        else:
            async for resent in session.admin.dead_letters.resend_all(
                options.group,
                producer,
                is_again=options.is_again,
                per_second=options.per_second,
                **_chosen(options),
            ):
                session.progress(f"{resent.sent_count} sent")
    left = f"; {resent.left_count} cannot be sent" if resent.left_count else ""
    return Done(
        f"{resent.sent_count} messages of group {options.group} sent again{left}",
        {"sent": resent.sent_count, "left": resent.left_message_ids},
    )


async def export(session: Session, options: argparse.Namespace) -> Result:
    """A line of JSON for each dead letter, with all of it."""
    async for letter in session.admin.dead_letters.of_group(options.group, **_chosen(options)):
        session.output.write(exported(letter))
    session.output.flush()
    return Nothing()


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    """Return the letters that the options name, as `of_group` and `resend_all` take them."""
    return {
        "begin_ms": options.begin_ms or 0,
        "end_ms": options.end_ms,
        "original_topic": options.original_topic,
        "key": options.key,
    }
