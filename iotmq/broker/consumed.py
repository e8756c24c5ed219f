"""Up to where the log was consumed, for a store that keeps what nobody has consumed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from iotmq.broker.consumer_offsets import ConsumerOffsets
from iotmq.store.queue import Queue
from iotmq.store.store import Store


def lowest_consumed_position(
    store: Store,
    offsets: ConsumerOffsets,
    *,
    delivered: Iterable[tuple[Queue, int]] = (),
    ignored_topics: Collection[str] = (),
    is_read: Callable[[Queue], bool] = lambda queue: True,
) -> int | None:
    """Position of the first stored record that some group has still to consume; None when there is none.

    Of several groups of a queue the one furthest behind counts; of a queue without a committed offset
    nothing was consumed. `delivered` are queues the broker itself consumes, with the next offset it takes;
    `ignored_topics` are the broker's own and nobody's to consume; nor is a queue anybody's that `is_read`
    says no to, because it was removed with what is in it.
    """
    next_offsets = offsets.lowest()
    for queue, offset in delivered:
        next_offsets[queue.topic, queue.queue_id] = offset
    lowest: int | None = None
    for queue in store.queues():
        if queue.min_offset == queue.max_offset or queue.topic in ignored_topics or not is_read(queue):
            continue
        offset = next_offsets.get((queue.topic, queue.queue_id), 0)
        position = store.position_of(queue, offset)
        if position is not None and (lowest is None or position < lowest):
            lowest = position
    return lowest
