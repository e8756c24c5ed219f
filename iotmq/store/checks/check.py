"""Finding what does not agree: a slow and plain second opinion on everything the compiled code wrote."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from iotmq.files import data_end
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import check_record, decode_record
from iotmq.store.log.marker import lost_offsets
from iotmq.store.log.queue import FILLER_SIZE
from iotmq.store.log.timer_record import record_tags_code
from iotmq.store.recovery.damage import is_blank

if TYPE_CHECKING:
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.log.segment import Segment
    from iotmq.store.queues.consume_queue import ConsumeQueue

_HEAD = struct.Struct(">II")
_BLANK_MAGIC = 0xCBD43194
_TRANSACTION_MASK = 12
_PREPARED = 4
_ROLLBACK = 12


def check_store(
    log: CommitLog,
    queues: ConsumeQueue,
    *,
    confirmed_position: int,
    hidden: Mapping[str, int] | None = None,
) -> list[str]:
    """Return every inconsistency as a sentence. Reads the whole log, record by record.

    `hidden` are the positions before which the records of a topic are kept from readers.
    """
    return _Check(log, queues, confirmed_position, hidden or {}).run()


class _Check:
    def __init__(
        self, log: CommitLog, queues: ConsumeQueue, confirmed_position: int, hidden: Mapping[str, int]
    ) -> None:
        self.problems: list[str] = []
        self._log = log
        self._queues = queues
        self._confirmed_position = confirmed_position
        self._hidden = hidden
        # (topic, queue id) -> offset the next record of the queue must have.
        self._next_offsets: dict[tuple[str, int], int] = {}
        # The same for records that are not confirmed yet: where appending goes on.
        self._record_counts: dict[tuple[str, int], int] = {}
        # Offsets that damage has left without a record.
        self._lost_counts: dict[tuple[str, int], int] = {}
        # Of each queue, where its last record stands.
        self._last_positions: dict[tuple[str, int], int] = {}
        # The start of the markers in a row that are looked at, and the end of their file.
        self._marked_positions: tuple[int, int] | None = None
        self._last_marker_position = -1

    def run(self) -> list[str]:
        log = self._log
        if not log.min_position <= self._confirmed_position <= log.appended_position:
            self._say(
                f"confirmed position {self._confirmed_position} is outside the log "
                f"{log.min_position}..{log.appended_position}"
            )
        if self._queues.applied_position != self._confirmed_position:
            self._say(
                f"the queues have applied {self._queues.applied_position}, "
                f"confirmed is {self._confirmed_position}"
            )
        previous_end: int | None = None
        for segment in log.segment_list():
            if previous_end is not None and segment.start_position != previous_end:
                self._say(f"a file is missing between {previous_end} and {segment.start_position}")
            previous_end = segment.end_position
            self._marked_positions = None
            self._check_segment(segment)
        self._check_queues()
        return self.problems

    def _say(self, problem: str) -> None:
        self.problems.append(problem)

    def _check_segment(self, segment: Segment) -> None:
        position = segment.start_position
        allocated_position = segment.start_position + segment.allocated_bytes
        view = segment.view(position, allocated_position)
        end_position = min(segment.end_position, self._log.appended_position)
        while position < end_position:
            at = position - segment.start_position
            if len(view) - at < _HEAD.size:
                self._say(f"position {position}: the file's data ends before the log does")
                return
            size, magic = _HEAD.unpack_from(view, at)
            if magic == _BLANK_MAGIC:
                left = segment.end_position - position
                if size != left:
                    self._say(f"position {position}: a blank of {size} bytes with {left} left")
                if self._log.appended_position < segment.end_position:
                    self._say(f"position {position}: a blank in the middle of the log")
                return
            try:
                check_record(view, at, position=position)
            except MessageFormatError as error:
                self._say(f"position {position}: {error}")
                return
            if position + size > segment.end_position - _HEAD.size:
                self._say(f"position {position}: a record on the last 8 bytes of the file")
            self._check_record(view, at, position, segment.end_position)
            position += size
        if self._log.appended_position < position and position > segment.start_position:
            self._say(f"a record ends at {position}, past the end of the log {self._log.appended_position}")
        if end_position == segment.end_position:
            self._say(f"{segment.path} has no blank at its end")
        data_bytes = data_end(Path(segment.path), segment.allocated_bytes)
        if not is_blank(view[position - segment.start_position : data_bytes]):
            self._say(f"there are bytes behind the end of the log at {position}")

    def _check_record(self, view: memoryview, at: int, position: int, segment_end: int) -> None:
        record = decode_record(view, at)
        lost = lost_offsets(view, at)
        if lost is not None:
            self._last_marker_position = position
            start_position = position if self._marked_positions is None else self._marked_positions[0]
            self._marked_positions = start_position, segment_end
            self._check_marker(*lost, position)
            return
        self._marked_positions = None
        where = (
            f"position {position} "
            f"(topic {record.topic!r} queue {record.queue_id} offset {record.queue_offset})"
        )
        if record.sys_flag & _TRANSACTION_MASK in (_PREPARED, _ROLLBACK):
            if record.queue_offset != 0:
                self._say(f"{where}: a prepared or rolled back record has an offset")
            return
        key = (record.topic, record.queue_id)
        queue = self._queues.find_queue(record.topic, record.queue_id)
        if queue is None:
            self._say(f"{where}: there is no such queue")
            return
        is_hidden = position < self._hidden.get(record.topic, 0)
        expected = self._next_offsets.get(key, record.queue_offset if is_hidden else queue.min_offset)
        if record.queue_offset > expected and self._last_marker_position > self._last_positions.get(key, -1):
            # Nobody knew any more that they were in what was damaged.
            if not is_hidden:
                self._lose(key, record.queue_offset - max(expected, queue.min_offset))
        elif record.queue_offset != expected:
            self._say(f"{where}: expected offset {expected}")
        self._next_offsets[key] = record.queue_offset + 1
        self._last_positions[key] = position
        if position >= self._confirmed_position:
            return
        if is_hidden:
            if queue.min_offset <= record.queue_offset:
                self._say(f"{where}: is to be hidden, but the queue begins at {queue.min_offset}")
            return
        self._record_counts[key] = self._record_counts.get(key, 0) + 1
        if not queue.min_offset <= record.queue_offset < queue.max_offset:
            self._say(f"{where}: the queue has only {queue.min_offset}..{queue.max_offset}")
            return
        entry = queue.entry(record.queue_offset)
        wanted = (position, record.size, record_tags_code(view[at : at + record.size]))
        if entry != wanted:
            self._say(f"{where}: the queue's entry is {entry}, not {wanted}")

    def _check_marker(self, topic: str, queue_id: int, first: int, end: int, position: int) -> None:
        """Check that a marker's lost records are fillers in the queue, or entries that lead to markers."""
        if first == end or position >= self._confirmed_position:
            return
        where = (
            f"position {position} (marker for topic {topic!r} queue {queue_id} offsets {first}..{end - 1})"
        )
        queue = self._queues.find_queue(topic, queue_id)
        if queue is None:
            self._say(f"{where}: there is no such queue")
            return
        key = (topic, queue_id)
        expected = self._next_offsets.get(key, max(queue.min_offset, min(first, end)))
        assert self._marked_positions is not None
        start_position, end_position = self._marked_positions
        for offset in range(max(expected, queue.min_offset), min(end, queue.max_offset)):
            entry = queue.entry(offset)
            if entry is None or entry[1] == FILLER_SIZE or start_position <= entry[0] < end_position:
                continue
            self._say(f"{where}: the queue has an entry for {offset}: {entry}")
            break
        if queue.max_offset < end:
            self._say(f"{where}: the queue has only {queue.min_offset}..{queue.max_offset}")
        self._next_offsets[key] = max(expected, end)
        self._lose(key, max(0, end - max(expected, queue.min_offset)))

    def _lose(self, key: tuple[str, int], count: int) -> None:
        self._lost_counts[key] = self._lost_counts.get(key, 0) + count

    def _check_queues(self) -> None:
        for queue in self._queues.queues():
            key = (queue.topic, queue.queue_id)
            where = f"topic {queue.topic!r} queue {queue.queue_id}"
            if not 0 <= queue.min_offset <= queue.max_offset <= queue.next_offset:
                self._say(
                    f"{where}: offsets min {queue.min_offset}, max {queue.max_offset}, "
                    f"next {queue.next_offset}"
                )
            logged = self._next_offsets.get(key, queue.next_offset)
            if logged != queue.next_offset:
                self._say(f"{where}: next offset is {queue.next_offset}, the log says {logged}")
            count = self._record_counts.get(key, 0) + self._lost_counts.get(key, 0)
            if count != queue.max_offset - queue.min_offset:
                self._say(f"{where}: {queue.max_offset - queue.min_offset} entries for {count} records")
