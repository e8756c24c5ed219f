"""Decode tables whose keys are queues: JSON with objects as keys (docs/reference/wire-protocol.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ClientError, RequestError
from iotmq.limits import FRAME_BYTES_MAX
from iotmq.remoting import lenient_json
from iotmq.remoting.command import Body

T = TypeVar("T")
V = TypeVar("V")

# A queue as a key, in the order every broker writes its fields in.
_QUEUE_KEY: Final = re.compile(rb'([{,])(\{"brokerName":"[^"\\]*","queueId":\d+,"topic":"[^"\\]*"\}):')


class WireQueue(msgspec.Struct):
    """A queue as brokers write it."""

    brokerName: str = ""  # noqa: N815 - the wire's spelling
    queueId: int = 0  # noqa: N815
    topic: str = ""


def decode_answer(body: Body, shape: type[T], *, doing: str) -> T:
    """Decode a broker's JSON answer; queues as keys become texts. ClientError when it is invalid, which says
    what was asked for."""
    data = b"".join(body) if isinstance(body, list) else bytes(body)
    quoted = _QUEUE_KEY.sub(_quote, data)
    try:
        return msgspec.json.decode(quoted, type=shape, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return lenient_json.decode(data, shape, lenient_bytes_max=FRAME_BYTES_MAX)
    except RequestError as error:
        raise ClientError(f"{doing}: the broker's answer cannot be read: {error}") from error


def by_queue(table: Mapping[str, V]) -> dict[MessageQueue, V]:
    """Turn the keys of a decoded table into queues, sorted; ClientError for a key that is no queue."""
    try:
        rows = {queue_of(msgspec.json.decode(key, type=WireQueue)): value for key, value in table.items()}
    except msgspec.DecodeError as error:
        raise ClientError(f"the broker's answer has a queue that cannot be read: {error}") from error
    return {queue: rows[queue] for queue in sorted(rows)}


def queue_of(queue: WireQueue) -> MessageQueue:
    """Convert a queue from the wire's form."""
    return MessageQueue(queue.topic, queue.brokerName, queue.queueId)


def _quote(match: re.Match[bytes]) -> bytes:
    return match[1] + b'"' + match[2].replace(b'"', b'\\"') + b'":'
