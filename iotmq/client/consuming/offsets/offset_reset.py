"""Follow a broker's order to move a group to other offsets (request 220)."""

from __future__ import annotations

import msgspec

from iotmq.client.transport.queue_tables import by_queue
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ClientError, RequestError
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command


class _QueueOffset(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


class _Table(msgspec.Struct, rename="camel"):
    # The second form is the one for clients whose JSON has no objects as keys.
    offset_table: dict[str, int] | list[_QueueOffset] = {}


def read_offsets(command: Command) -> dict[MessageQueue, int]:
    """Read the new offset of each queue from request 220; RequestError for an invalid body."""
    table = lenient_json.decode(command.body, _Table).offset_table
    if isinstance(table, list):
        return {MessageQueue(row.topic, row.broker_name, row.queue_id): row.offset for row in table}
    try:
        return by_queue(table)
    except ClientError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"invalid key of offsetTable: {error}") from None
