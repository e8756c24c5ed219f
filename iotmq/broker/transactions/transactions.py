"""The transactions that are neither committed nor rolled back yet, and what the log says about them.

The log decides: a transaction is pending when the last copy of its half (half_messages.py) has no op record.
This table is that, kept up to date as records are written. Two cursors in the offset table (group
CID_RMQ_SYS_TRANS) say where a start begins to read: no half below the one of the half queue is pending, and
all op records below the other are about such halves. They are moved only over what is on the disk, so that
neither a killed process nor a power cut can make them pass a half whose op record is lost.

A commit writes the message, then the op record. After a crash between the two the half is pending again.
Before anything is done with such a one, the message is looked for by its unique key; where there is no key
index, or no unique key, the producer is asked, and the message is delivered a second time: at least once.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.tables.topics import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_CHECKS_MAX_TOPIC,
)
from iotmq.broker.transactions.half_messages import (
    COMMIT,
    COPY_PROPERTIES_BYTES,
    ROLLBACK,
    TYPE_MASK,
    Half,
    copied_properties,
    encode_op,
    half_properties,
    parse_half,
    read_half,
    read_op,
    resumed_properties,
)
from iotmq.broker.writing.message_writer import Done, RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import RequestError
from iotmq.event_loop import DeadlineTimer
from iotmq.message.records.record import Record, decode_record, iter_records, property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.store.log.queue import Queue
from iotmq.store.queues.cold_steps import Steps

logger = logging.getLogger(__name__)

CURSOR_GROUP = "CID_RMQ_SYS_TRANS"
# Ended otherwise: too many checks, or too old.
GIVEN_UP = -1

_PROGRESS_S = 5.0
_READ_RECORDS_MAX = 1_024
_READ_BYTES_MAX = 1 << 20
# Places the op cursor may stop at. Fewer cost a start some reading, never more.
_MARKS_MAX = 1_024

# Where a message goes and with which properties, when it may have to wait for its time first.
# Raises RequestError when it cannot.
Divert = Callable[[str, int, bytes], tuple[str, int, bytes]]


class State(enum.Enum):
    """Name the states of a pending transaction."""

    OPEN = enum.auto()
    COPYING = enum.auto()
    """The half is being written again; an end waits for that."""
    ENDING = enum.auto()
    OP_OWED = enum.auto()
    """The transaction has ended, but the op record that says so could not be written yet."""


# From each state to those that may follow. A transaction leaves the table from ENDING, when its op record is
# stored, and from any state when the log has lost its half.
_FOLLOWING: Final[dict[State, frozenset[State]]] = {
    # OP_OWED: a former process has delivered the message.
    State.OPEN: frozenset({State.COPYING, State.ENDING, State.OP_OWED}),
    State.COPYING: frozenset({State.OPEN}),
    # OPEN: the message, or the op record of a rollback, was refused.
    State.ENDING: frozenset({State.OPEN, State.OP_OWED}),
    State.OP_OWED: frozenset({State.ENDING}),
}


class Pending:
    """One transaction without an end. `offset` and `position` are those of the last copy of its half."""

    __slots__ = ("begun_s", "check_times", "first_offset", "half_end", "immunity_ms", "may_be_delivered",
                 "offset", "outcome", "position", "state")  # fmt: skip

    def __init__(
        self, half: Half, *, offset: int, position: int, begun_s: float, may_be_delivered: bool = False
    ) -> None:
        # Found at the start, and not looked for yet.
        self.may_be_delivered = may_be_delivered
        self.first_offset = half.first_offset
        self.check_times = half.check_times
        self.immunity_ms = half.immunity_ms
        self.offset = offset
        self.position = position
        # Monotonic; of one found at the start, when its last copy was written.
        self.begun_s = begun_s
        self.state = State.OPEN
        # The end that came while the half was being written again.
        self.half_end: Callable[[], None] | None = None
        # Set with OP_OWED.
        self.outcome = 0

    def move_to(self, state: State) -> None:
        """Change the state to one that may follow (`_FOLLOWING`)."""
        assert state in _FOLLOWING[self.state], f"{self.state} -> {state}"
        self.state = state


class _Cursors(NamedTuple):
    """Where a start may begin to read, once everything below `position` is on the disk."""

    half_offset: int
    op_offset: int
    position: int


class Transactions:
    """The table, and everything that is written for it. The owner's thread calls all of it."""

    def __init__(
        self,
        parts: BrokerParts,
        divert: Divert,
        *,
        ended_max: int = limits.TRANSACTIONS_ENDED_REMEMBERED_MAX,
    ) -> None:
        """`divert` says where a committed message goes first."""
        self._store = parts.store
        self._writer = parts.writer
        self._offsets = parts.offsets
        self._clock = parts.clock
        # Op records are born there.
        self._host = parts.host
        self._divert = divert
        self._pending_max = parts.settings.transactions_pending_max
        self._ended_max = ended_max
        self._timer = DeadlineTimer(parts.clock, self.note_progress)
        # By the offset of the first half.
        self._pending: dict[int, Pending] = {}
        # Halves handed to the writer and not confirmed yet.
        self._preparing_count = 0
        # How the last ones ended, oldest first, by the offset of the first half.
        self._ended: dict[int, int] = {}
        # Set by start(): queues know their offsets only once the store is recovered.
        self._half_queue: Queue | None = None
        self._op_queue: Queue | None = None
        # All ops below the first of a pair are about halves below its second.
        self._marks: deque[tuple[int, int]] = deque()
        # What is in the offset table, and what goes there when the disk has it.
        self._half_offset = 0
        self._op_offset = 0
        self._next_cursors: _Cursors | None = None
        self.prepared_count = 0
        self.committed_count = 0
        self.rolled_back_count = 0
        self.given_up_count = 0
        self.refused_count = 0

    def __len__(self) -> int:
        return len(self._pending)

    def start(self) -> None:
        """Find out from the log what is pending."""
        half_queue = self._half_queue = self._store.queue(HALF_TOPIC, 0)
        op_queue = self._op_queue = self._store.queue(OP_HALF_TOPIC, 0)
        self._half_offset = self._cursor(half_queue)
        self._op_offset = self._cursor(op_queue)
        # One byte for each half: most have ended, and their number has no limit.
        ended = bytearray(half_queue.max_offset - self._half_offset)
        ended_before: set[int] = set()
        for record in self._records(op_queue, self._op_offset):
            for offset in read_op(record):
                if offset < self._half_offset:
                    ended_before.add(offset)
                elif offset < half_queue.max_offset:
                    ended[offset - self._half_offset] = 1

        def is_ended(offset: int) -> bool:
            at = offset - self._half_offset
            return bool(ended[at]) if at >= 0 else offset in ended_before

        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        for record in self._records(half_queue, self._half_offset):
            half = read_half(record)
            if half is None:
                logger.warning("the half message at position %d has no real topic", record.position)
                continue
            self._pending.pop(half.first_offset, None)
            # Brokers of the Java kind write the op record of the first half, whatever copies there are.
            if not is_ended(record.queue_offset) and not is_ended(half.first_offset):
                age_s = max(0, now_ms - record.store_timestamp_ms) / 1000
                self._pending[half.first_offset] = Pending(
                    half,
                    offset=record.queue_offset,
                    position=record.position,
                    begun_s=now_s - age_s,
                    may_be_delivered=True,
                )
        if self._pending:
            logger.info("%d transactions are pending", len(self._pending))
        self._progress_soon()

    def stop(self) -> None:
        self.note_progress()
        self._timer.cancel()

    def find(self, first_offset: int) -> Pending | None:
        return self._pending.get(first_offset)

    def pending(self) -> list[Pending]:
        return list(self._pending.values())

    def outcome_of(self, first_offset: int) -> int | None:
        """COMMIT, ROLLBACK or GIVEN_UP for one of the last transactions that ended, else None."""
        return self._ended.get(first_offset)

    def prepare(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        batch_properties: bytes = b"",
        done: Done,
    ) -> None:
        """Store the half of a message to `topic`; refused with 14 past the maximum of pending ones.

        Always answered after the flush that is promised: before, it could not be ended.
        """
        if len(self._pending) + self._preparing_count >= self._pending_max:
            self.refused_count += 1
            done(
                RefusedBatch(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"{len(self._pending)} transactions wait for their end, the maximum of this broker is "
                    f"{self._pending_max}; commit or roll back some",
                )
            )
            return
        properties = half_properties(topic, queue_id, properties)
        size = len(properties) + len(batch_properties) + COPY_PROPERTIES_BYTES
        if size > limits.PROPERTIES_BYTES_MAX:
            done(
                RefusedBatch(
                    ResponseCode.MESSAGE_ILLEGAL,
                    "the properties of the message have no room for those of a transaction",
                )
            )
            return
        self._preparing_count += 1
        begun_s = self._clock.monotonic_s()

        def stored(result: StoredBatch | RefusedBatch) -> None:
            self._preparing_count -= 1
            if isinstance(result, StoredBatch):
                self.prepared_count += 1
                if result.status == ResponseCode.SLAVE_NOT_AVAILABLE:
                    # Java clients roll back any transaction whose half has not the status 0.
                    result.status = ResponseCode.SUCCESS
                self._begin(result, properties, begun_s)
            done(result)

        self._writer.append(
            HALF_TOPIC,
            0,
            encode_element(body, properties, flag),
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            sys_flag=sys_flag & ~TYPE_MASK,
            batch_properties=batch_properties,
            done=stored,
            is_internal=True,
        )

    def end(self, pending: Pending, record: Record, outcome: int, done: Done) -> None:
        """Commit (COMMIT) or roll back (ROLLBACK) a pending transaction whose half is `record`.

        Whoever calls has looked for its delivery. Refused with 1 when another end of it is under way.
        """
        if pending.state is State.COPYING and pending.half_end is None:
            pending.half_end = lambda: self.end(pending, record, outcome, done)
        elif pending.state is State.OP_OWED and pending.outcome == outcome:
            self.settle(pending, done)
        elif pending.state is not State.OPEN:
            done(RefusedBatch(ResponseCode.SYSTEM_ERROR, "this transaction is being ended already"))
        elif outcome == COMMIT:
            self._deliver(pending, record, done)
        else:
            pending.move_to(State.ENDING)
            self._write_op(pending, outcome, done)

    def copy(self, pending: Pending, record: Record, *, check_times: int, done: Done) -> None:
        """Write the half of an open transaction again; the copy stands for it from then on."""
        pending.move_to(State.COPYING)

        def copied(result: StoredBatch | RefusedBatch) -> None:
            pending.move_to(State.OPEN)
            if isinstance(result, StoredBatch):
                pending.offset = result.first_offset
                pending.position = result.appended.start_position
                pending.check_times = check_times
                self._progress_soon()
            half_end, pending.half_end = pending.half_end, None
            if half_end is not None:
                half_end()
            done(result)

        properties = copied_properties(
            record.properties, first_offset=pending.first_offset, check_times=check_times
        )
        self._append_half_of(record, HALF_TOPIC, properties, copied)

    def give_up(self, pending: Pending, record: Record, done: Done) -> None:
        """Put the half of an open transaction where an operator finds it, and ask about it no more."""
        pending.move_to(State.ENDING)

        def stored(result: StoredBatch | RefusedBatch) -> None:
            if isinstance(result, StoredBatch):
                self._write_op(pending, GIVEN_UP, done)
            else:
                pending.move_to(State.OPEN)
                done(result)

        self._append_half_of(record, TRANSACTION_CHECKS_MAX_TOPIC, record.properties, stored)

    def resume(self, record: Record, done: Done) -> None:
        """Begin anew with a half that was given up, with all its checks before it."""
        properties = resumed_properties(record.properties)
        begun_s = self._clock.monotonic_s()

        def stored(result: StoredBatch | RefusedBatch) -> None:
            if isinstance(result, StoredBatch):
                self._begin(result, properties, begun_s)
            done(result)

        self._append_half_of(record, HALF_TOPIC, properties, stored)

    def look_for_delivery(self, pending: Pending, record: Record) -> Steps[None]:
        """Find out whether a former process has delivered the message, but not written the op record.

        Then that is owed. `record` is a half of the transaction.
        """
        if not pending.may_be_delivered:
            return
        is_delivered = yield from self.is_delivered(pending.first_offset, record)
        # Somebody else may have found out while this waited for the disk.
        if not pending.may_be_delivered:
            return
        pending.may_be_delivered = False
        if is_delivered:
            logger.info("the message of the half at position %d was delivered before", pending.position)
            pending.move_to(State.OP_OWED)
            pending.outcome = COMMIT

    def is_delivered(self, first_offset: int, record: Record) -> Steps[bool]:
        """Yield whether the log has the message of the transaction of which `record` is a half."""
        half = read_half(record)
        key = property_value(record.properties, b"UNIQ_KEY")
        if half is None or not key or not self._store.settings.index_enabled:
            return False
        # A committed message may have to wait for its time first.
        for topic in (half.topic, SCHEDULE_TOPIC, TIMER_TOPIC):
            views = yield from self._store.query_steps(topic, key.decode("utf-8", "replace"))
            for view in views:
                if (yield from self._is_commit_of(first_offset, decode_record(view))):
                    return True
        return False

    def forget(self, pending: Pending) -> None:
        """Give up a pending transaction whose half the log has lost."""
        self._pending.pop(pending.first_offset, None)
        self._progress_soon()

    def settle(self, pending: Pending, done: Done) -> None:
        """Write the op record that is owed."""
        assert pending.state is State.OP_OWED
        pending.move_to(State.ENDING)
        self._write_op(pending, pending.outcome, done)

    def note_progress(self) -> None:
        """Move the cursors as far as they may go; runs by itself every few seconds while they may."""
        if self._half_queue is None or self._op_queue is None:
            return
        following = self._next_cursors
        # A follower that becomes master may have no more than what is confirmed.
        kept_position = min(self._store.flushed_position, self._store.confirmed_position)
        if following is not None and kept_position >= following.position:
            self._publish(following)
            self._next_cursors = following = None
        if following is None:
            self._next_cursors = self._find_cursors(self._half_queue, self._op_queue)
        if self._next_cursors is not None:
            self._progress_soon()

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("pending", "Transactions without an end.", len(self._pending)),
            ("prepared_total", "Prepared messages of transactions stored.", self.prepared_count),
            ("committed_total", "Transactions committed.", self.committed_count),
            ("rolled_back_total", "Transactions rolled back.", self.rolled_back_count),
            ("given_up_total", "Transactions that were not ended in time.", self.given_up_count),
            ("refused_total", "Halves refused because too many are pending.", self.refused_count),
            prefix="iotmq_broker_transactions_",
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when what is pending and what has ended disagree."""
        for first_offset, pending in self._pending.items():
            assert pending.first_offset == first_offset <= pending.offset
            assert first_offset not in self._ended
            assert not (pending.may_be_delivered and pending.state is State.OP_OWED)
            assert pending.half_end is None or pending.state is State.COPYING
        assert len(self._ended) <= self._ended_max
        assert self._preparing_count >= 0
        assert len(self._marks) <= _MARKS_MAX

    def _begin(self, stored: StoredBatch, properties: bytes, begun_s: float) -> None:
        offset, position = stored.first_offset, stored.appended.start_position
        half = parse_half(properties, offset)
        assert half is not None
        self._pending[offset] = Pending(half, offset=offset, position=position, begun_s=begun_s)
        self._progress_soon()

    def _is_commit_of(self, first_offset: int, record: Record) -> Steps[bool]:
        """Yield whether a record is a transaction's message, whichever copy of the half was committed."""
        if record.sys_flag & TYPE_MASK != COMMIT:
            return False
        view = yield from self._store.record_steps(record.prepared_position)
        half_record = None if view is None else decode_record(view)
        if half_record is None or half_record.topic != HALF_TOPIC:
            return False
        half = read_half(half_record)
        return half is not None and half.first_offset == first_offset

    def _deliver(self, pending: Pending, record: Record, done: Done) -> None:
        half = read_half(record)
        assert half is not None
        try:
            # All properties of the half stay: Java consumers take the transaction id from TRAN_MSG.
            topic, queue_id, properties = self._divert(half.topic, half.queue_id, record.properties)
        except RequestError as error:
            done(RefusedBatch(error.code, str(error)))
            return
        pending.move_to(State.ENDING)

        def stored(result: StoredBatch | RefusedBatch) -> None:
            if isinstance(result, StoredBatch):
                self._write_op(pending, COMMIT, done)
            else:
                pending.move_to(State.OPEN)
                done(result)

        self._writer.append(
            topic,
            queue_id,
            encode_element(record.body, properties, record.flag),
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            sys_flag=record.sys_flag & ~TYPE_MASK | COMMIT,
            reconsume_times=record.reconsume_times,
            prepared_position=record.position,
            done=stored,
            is_internal=True,
        )

    def _write_op(self, pending: Pending, outcome: int, done: Done) -> None:
        """Store the op record of a transaction that is ENDING."""

        def stored(result: StoredBatch | RefusedBatch) -> None:
            if isinstance(result, StoredBatch):
                self._end(pending, outcome)
            elif outcome == ROLLBACK:
                # Nothing has happened yet.
                pending.move_to(State.OPEN)
            else:
                pending.move_to(State.OP_OWED)
                pending.outcome = outcome
            done(result)

        now_ms = self._clock.now_ms()
        self._writer.append(
            OP_HALF_TOPIC,
            0,
            encode_op(pending.offset),
            born_timestamp_ms=now_ms,
            born_host=self._host,
            done=stored,
            is_internal=True,
        )

    def _end(self, pending: Pending, outcome: int) -> None:
        del self._pending[pending.first_offset]
        if len(self._ended) >= self._ended_max:
            del self._ended[next(iter(self._ended))]
        self._ended[pending.first_offset] = outcome
        if outcome == COMMIT:
            self.committed_count += 1
        elif outcome == ROLLBACK:
            self.rolled_back_count += 1
        else:
            self.given_up_count += 1
        self._progress_soon()

    def _append_half_of(self, record: Record, topic: str, properties: bytes, done: Done) -> None:
        self._writer.append(
            topic,
            0,
            encode_element(record.body, properties, record.flag),
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
            done=done,
            is_internal=True,
        )

    def _cursor(self, queue: Queue) -> int:
        stored = self._offsets.find(CURSOR_GROUP, queue.topic, queue.queue_id) or 0
        return max(queue.min_offset, min(stored, queue.max_offset))

    def _find_cursors(self, half_queue: Queue, op_queue: Queue) -> _Cursors | None:
        """Return where the cursors can go now; None where they are."""
        # A half that is not confirmed yet is not in its queue either.
        half_end = half_queue.max_offset
        half_offset = min((pending.offset for pending in self._pending.values()), default=half_end)
        half_offset = max(self._half_offset, min(half_offset, half_end))
        marks = self._marks
        if op_queue.max_offset > (marks[-1][0] if marks else self._op_offset):
            # An op is written after its half was read, so all are about halves before this end.
            marks.append((op_queue.max_offset, half_end))
            if len(marks) > _MARKS_MAX:
                self._marks = marks = deque(mark for at, mark in enumerate(marks) if at % 2)
        op_offset = self._op_offset
        while marks and marks[0][1] <= half_offset:
            op_offset = marks.popleft()[0]
        if (half_offset, op_offset) == (self._half_offset, self._op_offset):
            return None
        return _Cursors(half_offset, op_offset, self._store.appended_position)

    def _publish(self, cursors: _Cursors) -> None:
        self._half_offset, self._op_offset = cursors.half_offset, cursors.op_offset
        try:
            self._offsets.commit(CURSOR_GROUP, HALF_TOPIC, 0, cursors.half_offset)
            self._offsets.commit(CURSOR_GROUP, OP_HALF_TOPIC, 0, cursors.op_offset)
        except RequestError as error:
            # The next start reads more than it would have to.
            logger.warning("the progress of transactions is not kept: %s", error)

    def _progress_soon(self) -> None:
        self._timer.arm(self._clock.monotonic_s() + _PROGRESS_S)

    def _records(self, queue: Queue, offset: int) -> Iterator[Record]:
        """Everything in a queue from `offset` on, as far as the log still has it."""
        while offset < queue.max_offset:
            read = self._store.read(
                queue,
                offset,
                records_max=_READ_RECORDS_MAX,
                bytes_max=_READ_BYTES_MAX,
                with_expired=True,
            )
            for view in read.views:
                yield from iter_records(view)
            if read.next_offset <= offset:
                logger.error("queue %s cannot be read from offset %d on", queue.topic, offset)
                return
            offset = read.next_offset
