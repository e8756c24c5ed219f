"""Decide which waiting messages a session past its queue limits loses, by searching positions of the log."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from iotmq.broker.session_store.cursor import Cursor
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.settings import QueueLimits
from iotmq.message.records.record import decode_record
from iotmq.store.queues.cold_steps import Steps
from iotmq.store.store import Store

# No record is smaller: so many bytes have no more records than this allows.
RECORD_BYTES_MIN: Final = 91


class SessionQueue(NamedTuple):
    """One filter of a session, and how far the session has come with it."""

    topic_filter: str
    queue_id: int
    cursor: Cursor


class Backlogs(Protocol):
    """Count the records that a queue has from a position on."""

    def backlog(self, queue_id: int, position: int) -> int: ...


class Trimmed(NamedTuple):
    """The messages of a queue in [start, end) that a session does not get."""

    topic_filter: str
    queue_id: int
    start: int
    end: int
    messages: int
    # True when they have waited too long, False when there are too many.
    is_old: bool


def waiting_count(queues: Backlogs, queue_id: int, cursor: Cursor, position: int = 0) -> int:
    """Return how many messages from `position` on a session was not sent yet."""
    count = 0
    for start, end in cursor.waiting():
        first = max(start, position)
        if end is None:
            count += queues.backlog(queue_id, first)
        elif first < end:
            count += queues.backlog(queue_id, first) - queues.backlog(queue_id, end)
    return count


class Trimmer:
    """Holds what waits in the queues of one session to the limits."""

    def __init__(
        self, limits: QueueLimits, projection: SessionProjection, store: Store, queues: list[SessionQueue]
    ) -> None:
        self._limits = limits
        self._projection = projection
        self._store = store
        self._queues = queues
        self._end = projection.applied_position
        self._trimmed: list[Trimmed] = []

    def trim(self, now_ms: int) -> Steps[list[Trimmed]]:
        """Yield what the session loses; how old a message is may stand on the disk."""
        if self._limits.age_s_max:
            for number in range(len(self._queues)):
                yield from self._trim_old(number, now_ms - self._limits.age_s_max * 1000)
        if self._limits.messages_max or self._limits.bytes_max:
            # Empty ones would be looked at in every step.
            self._queues = [queue for queue in self._queues if self._waiting(queue)]
            if self._limits.policy == "drop-oldest":
                self._drop_oldest()
            else:
                self._refuse_new()
        return self._trimmed

    # By age

    def _trim_old(self, number: int, oldest_ms: int) -> Steps[None]:
        queue = self._queues[number]
        start = queue.cursor.waiting()[0][0]
        if (yield from self._is_young(queue.queue_id, start, oldest_ms)):
            return
        # The first position from which on the next message is young, as it is from there on.
        low, end = start + 1, self._end
        while low < end:
            middle = (low + end) // 2
            if (yield from self._is_young(queue.queue_id, middle, oldest_ms)):
                end = middle
            else:
                low = middle + 1
        rest = self._queues[number] = queue._replace(cursor=queue.cursor.skipping(start, end))
        self._skip(queue, start, end, self._waiting(queue) - self._waiting(rest), is_old=True)

    def _is_young(self, queue_id: int, position: int, oldest_ms: int) -> Steps[bool]:
        """Yield whether the next message from a position on is young enough, or there is none."""
        found = next(self._projection.entries(queue_id, position), None)
        if found is None:
            return True
        record = yield from self._store.record_steps(found[0])
        # What the log has lost is older than what it has.
        return record is not None and decode_record(record).store_timestamp_ms >= oldest_ms

    # By count and bytes

    def _drop_oldest(self) -> None:
        total = self._count(0)
        start = 0
        if 0 < self._limits.messages_max < total:
            start = self._first_with_at_most(self._limits.messages_max)
        if self._limits.bytes_max:
            count_max = self._limits.bytes_max // RECORD_BYTES_MIN
            if count_max < total:
                start = max(start, self._first_with_at_most(count_max))
            size = 0
            for position, record_bytes in reversed(list(self._entries(start))):
                size += record_bytes
                if size > self._limits.bytes_max:
                    start = position + 1
                    break
        for queue in self._queues:
            count = self._waiting(queue) - self._waiting(queue, start)
            if count:
                self._skip(queue, queue.cursor.waiting()[0][0], start, count)

    def _refuse_new(self) -> None:
        total = self._count(0)
        start = self._end
        if 0 < self._limits.messages_max < total:
            start = self._first_with_at_most(total - self._limits.messages_max - 1) - 1
        if self._limits.bytes_max:
            size = 0
            for position, record_bytes in self._entries(0):
                if position >= start:
                    break
                size += record_bytes
                if size > self._limits.bytes_max:
                    start = position
                    break
        for queue in self._queues:
            count = self._waiting(queue, start)
            if count:
                self._skip(queue, max(start, queue.cursor.waiting()[0][0]), self._end, count)

    def _waiting(self, queue: SessionQueue, position: int = 0) -> int:
        return waiting_count(self._projection, queue.queue_id, queue.cursor, position)

    def _count(self, position: int) -> int:
        return sum(self._waiting(queue, position) for queue in self._queues)

    def _first_with_at_most(self, count_max: int) -> int:
        """Return the first position from which on no more than `count_max` messages wait."""
        lowest = min(queue.cursor.waiting()[0][0] for queue in self._queues)
        positions = range(lowest, self._end)
        return lowest + bisect_left(positions, True, key=lambda position: self._count(position) <= count_max)

    def _entries(self, position: int) -> Iterator[tuple[int, int]]:
        """(position, size) of all that waits from a position on, in the order of the log."""
        return heapq.merge(*(self._entries_of(queue, position) for queue in self._queues))

    def _entries_of(self, queue: SessionQueue, position: int) -> Iterator[tuple[int, int]]:
        for start, end in queue.cursor.waiting():
            for place, size in self._projection.entries(queue.queue_id, max(start, position)):
                if end is not None and place >= end:
                    break
                yield place, size

    def _skip(self, queue: SessionQueue, start: int, end: int, count: int, *, is_old: bool = False) -> None:
        self._trimmed.append(Trimmed(queue.topic_filter, queue.queue_id, start, end, count, is_old))
