"""Find the lowest log position that some group has not consumed; retention may keep the log from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.event_loop import LoopSlice
from iotmq.store.log.queue import Queue
from iotmq.store.store import Store

_LOOK_S: Final = 5.0


class ConsumedPosition:
    """Position of the first stored record that some group has still to consume, as it was seconds ago.

    Of several groups of a queue the one furthest behind counts; of a queue without a committed offset
    nothing was consumed. `delivered` gives queues the broker itself consumes, with the next offset it takes;
    `ignored_topics` are the broker's own and nobody's to consume; nor is a queue anybody's that `is_read`
    says no to, because it was removed with what is in it.
    """

    def __init__(
        self,
        store: Store,
        offsets: ConsumerOffsets,
        *,
        delivered: Callable[[], Iterable[tuple[Queue, int]]] = tuple,
        ignored_topics: Collection[str] = (),
        is_read: Callable[[Queue], bool] = lambda queue: True,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._delivered = delivered
        self._ignored_topics = ignored_topics
        self._is_read = is_read
        #: Nothing counts as consumed before it has been looked.
        self.position = 0

    async def look_repeatedly(self) -> None:
        """Look every few seconds while the store asks for it, some queues in each turn of the loop."""
        while True:
            if self._store.settings.protect_unconsumed:
                turn = LoopSlice()
                for _ in self.look():
                    if not turn.take():
                        await asyncio.sleep(0)
                        turn = LoopSlice()
            else:
                self.position = 0
            await asyncio.sleep(_LOOK_S)

    def look(self) -> Iterator[None]:
        """Find the position anew, in small steps; what is appended meanwhile counts as not consumed."""
        lowest = self._store.confirmed_position
        next_offsets: dict[tuple[str, int], int] = {}
        for topic, queues in self._offsets.each_topic():
            for queue_id, offset in queues.items():
                key = topic, queue_id
                next_offsets[key] = min(offset, next_offsets.get(key, offset))
            yield
        for queue, offset in self._delivered():
            next_offsets[queue.topic, queue.queue_id] = offset
        for queue in self._store.queues():
            yield
            if queue.min_offset == queue.max_offset or queue.topic in self._ignored_topics:
                continue
            # A topic may have been deleted since, with its queues.
            if self._store.find_queue(queue.topic, queue.queue_id) is not queue or not self._is_read(queue):
                continue
            offset = next_offsets.get((queue.topic, queue.queue_id), 0)
            position = self._store.position_of(queue, offset)
            if position is not None:
                lowest = min(lowest, position)
        self.position = lowest
