"""From a time to an offset, by halves; every step of it may have to wait for a page of its own.

Store times in a queue never go back, so the search looks at about log2(n) entries and as many records,
which lie far apart. Hence steps, as in `iotmq.store.queues.cold_steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iotmq.store.log.queue import FILLER_SIZE
from iotmq.store.queues.reads import store_time_at
from iotmq.store.queues.residency import plan_entry, plan_records

if TYPE_CHECKING:
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.log.queue import Queue
    from iotmq.store.queues.cold_steps import Steps

# Up to its store time a record has at most so many bytes (with an address of 20 bytes).
_HEAD_BYTES: Final = 76
# Entries without a record that are passed over before somebody else may go first.
_PASSED_MAX: Final = 1000


def offset_at_time_steps(log: CommitLog, queue: Queue, timestamp_ms: int, *, hot_position: int) -> Steps[int]:
    """Yield the offset whose record was stored at that time, or nearest to it; of equal times the first.

    Earlier than all gives the first offset, later than all the last one (not the one after it), an
    empty queue its first offset to come. Goes by the queue as it is at the first step.
    """
    search = _Search(log, queue, hot_position)
    low, high = queue.min_offset, queue.max_offset
    # Invariant: records below `low` are older, the record at `high` and those behind it are not.
    while low < high:
        middle = (low + high) // 2
        probed = yield from search.next_record(middle, high)
        if probed == high:
            high = middle
        elif (yield from search.time_of(probed)) < timestamp_ms:
            low = probed + 1
        else:
            high = min(middle, probed)
    after = yield from search.next_record(low, search.end_offset)
    before = yield from search.previous_record(after)
    if after == search.end_offset:
        return max(before, queue.min_offset)
    if before < queue.min_offset:
        return max(after, queue.min_offset)
    after_ms = (yield from search.time_of(after)) - timestamp_ms
    before_ms = timestamp_ms - (yield from search.time_of(before))
    return after if after_ms < before_ms or after_ms == 0 else before


class _Search:
    """Looks at entries and records of one queue, once they are in memory."""

    def __init__(self, log: CommitLog, queue: Queue, hot_position: int) -> None:
        self.end_offset = queue.max_offset
        self._log = log
        self._queue = queue
        self._hot_position = hot_position

    def next_record(self, offset: int, end_offset: int) -> Steps[int]:
        """Yield the first offset from `offset` on that has a record, `end_offset` when none below it has."""
        passed = 0
        while offset < end_offset:
            # What retention took meanwhile has no records any more.
            offset = max(offset, self._queue.min_offset)
            if offset >= end_offset:
                break
            yield from self._load_entry(offset)
            entry = self._entry(offset)
            if entry is None:
                offset = max(offset + 1, self._queue.next_file_offset(offset))
            elif entry[1] == FILLER_SIZE:
                offset += 1
            else:
                return offset
            passed += 1
            if passed % _PASSED_MAX == 0:
                yield None
        return end_offset

    def previous_record(self, offset: int) -> Steps[int]:
        """The last offset before `offset` that has a record, one before the queue's first when none has."""
        passed = 0
        offset = self._queue.last_offset_before(offset)
        while offset >= self._queue.min_offset:
            yield from self._load_entry(offset)
            entry = self._entry(offset)
            if entry is not None and entry[1] != FILLER_SIZE:
                return offset
            offset = self._queue.last_offset_before(offset)
            passed += 1
            if passed % _PASSED_MAX == 0:
                yield None
        return self._queue.min_offset - 1

    def time_of(self, offset: int) -> Steps[int]:
        """Store time of the record at an offset that has one; 0 when the log has lost it."""
        entry = self._entry(offset)
        if entry is None:
            return 0
        position, size, _ = entry
        plan = plan_records(self._log, [(position, _HEAD_BYTES)], hot_position=self._hot_position)
        if plan is not None:
            yield plan
        return store_time_at(self._log, position, size)

    def _load_entry(self, offset: int) -> Steps[None]:
        plan = plan_entry(self._queue, offset)
        if plan is not None:
            yield plan

    def _entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return None where there is none, or not any more."""
        return (
            self._queue.entry(offset) if self._queue.min_offset <= offset < self._queue.max_offset else None
        )
