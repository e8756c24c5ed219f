"""Up to where the log was consumed, for a store that keeps what nobody has consumed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from iotmq.broker.consumer_offsets import ConsumerOffsets
from iotmq.store.consume_queue import Queue
from iotmq.store.store import Store


def lowest_consumed_position(
    store: Store,
    offsets: ConsumerOffsets,
    *,
    delivered: Iterable[tuple[Queue, int]] = (),
    ignored_topics: Collection[str] = (),
) -> int | None:
    """Position of the first stored record that some group has still to consume; None when there is none.

    Of several groups of a queue the one furthest behind counts; of a queue without a committed offset
    nothing was consumed. `delivered` are queues the broker itself consumes, with the next offset it takes;
    `ignored_topics` are the broker's own and nobody's to consume.
    """
    next_offsets = offsets.lowest()
    for queue, offset in delivered:
        next_offsets[queue.topic, queue.queue_id] = offset
    lowest: int | None = None
    for queue in store.queues():
        if queue.min_offset == queue.max_offset or queue.topic in ignored_topics:
            continue
        offset = next_offsets.get((queue.topic, queue.queue_id), 0)
        position = store.position_of(queue, offset)
        if position is not None and (lowest is None or position < lowest):
            lowest = position
    return lowest
