"""Decode what a broker says of a topic's queues: the answer to request 30045."""

from __future__ import annotations

import msgspec

from iotmq.bridge.offsets import QueueBounds, QueueKey
from iotmq.bridge.plan import Change, Held
from iotmq.errors import BrokerError


class _Queue(msgspec.Struct, rename="camel"):
    queue_id: int
    min_offset: int
    max_offset: int
    is_removed: bool = False
    changed_offset: int | None = None
    change: str = ""


class _Topic(msgspec.Struct, rename="camel"):
    generation: str
    time_ms: int
    is_deleted: bool
    queues: list[_Queue]


_DECODER = msgspec.json.Decoder(_Topic)


def decode_topic_bounds(body: bytes, topic: str, broker: str) -> Held:
    """Decode an answer; BrokerError for one that is none."""
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        what = f"the bounds of topic {topic} at broker {broker} cannot be read: {error}"
        raise BrokerError(1, what) from error
    bounds: dict[QueueKey, QueueBounds] = {}
    removed: dict[QueueKey, QueueBounds | None] = {}
    changes: dict[QueueKey, Change] = {}
    for queue in answer.queues:
        key = QueueKey(topic, broker, queue.queue_id)
        held = QueueBounds(queue.min_offset, queue.max_offset)
        if answer.is_deleted or queue.is_removed:
            removed[key] = held
        else:
            bounds[key] = held
        if queue.changed_offset is not None:
            changes[key] = Change(queue.changed_offset, queue.change)
    generations = {(topic, broker): answer.generation} if answer.generation else {}
    return Held(bounds, removed, changes, generations, answer.time_ms)
