"""Keeping messages that wait longer than the log keeps its files.

A file that retention wants to delete may hold records of messages that still wait. Retention stops before
them (`Store.held_position`), whatever their age and however full the disk is, and says how far it wanted to
go; these messages are then copied to the end of the log, a slice in each turn of the loop, and the file goes
with the next look. The copy ends the waiting of the original in the same record, so at every instant, also
after a crash, exactly one of them waits; the file stays until the copy is on the disk.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from iotmq.broker.scheduled.delivery_time import moved_properties
from iotmq.broker.scheduled.timers import Timers, first_of_size
from iotmq.broker.scheduled.unflushed_deliveries import UnflushedDeliveries
from iotmq.broker.tables.topics import TIMER_TOPIC
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.clock import Clock
from iotmq.errors import RequestError, StoreError
from iotmq.event_loop import DeadlineTimer
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import decode_record
from iotmq.metrics import Metric, samples
from iotmq.store.kv.timer_index import Timer
from iotmq.store.log.timer_record import mark_of
from iotmq.store.store import Store

logger = logging.getLogger(__name__)

TURN_TIMERS_MAX: Final = 128
TURN_BYTES_MAX: Final = 1 << 20
# Copies that are not confirmed; more wait for a flush.
UNCONFIRMED_MAX: Final = 16_384


class TimerRolls:
    """Copies what holds old files back."""

    def __init__(self, store: Store, timers: Timers, ended: UnflushedDeliveries, clock: Clock) -> None:
        self._store = store
        self._timers = timers
        self._ended = ended
        self._index = store.timers()
        self._clock = clock
        self._timer = DeadlineTimer(clock, self.run)
        self._is_fetching = False
        self._has_failed = False
        self.moved_count = 0
        self.moved_bytes = 0

    def held_position(self) -> int | None:
        """Return the position from which on waiting messages need the log; None when nothing waits."""
        self._ended.settle()
        if not self._ended.is_former_flushed:
            return self._store.min_position
        positions = [timer.position for timer in self._ended.unflushed()]
        first = self._index.first_position()
        if first is not None:
            positions.append(first)
        return min(positions, default=None)

    def run(self) -> None:
        """Copy a slice of what retention would like to be rid of; to be called about every second."""
        wanted_position = self._store.wanted_position
        if not wanted_position or self._is_fetching:
            return
        try:
            slice_ = self._next(wanted_position)
        except StoreError as error:
            self._note(error)
            return
        if slice_:
            self._is_fetching = True
            self._timers.with_records(slice_, lambda error: self._move(slice_, error))
        else:
            # All is copied, or was delivered, but not on the disk yet.
            self._store.request_flush()

    def stop(self) -> None:
        self._timer.cancel()

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_broker_delayed_messages_moved_total",
                "Waiting messages copied to the end of the log, so that old files can go.",
                self.moved_count,
            ),
            (
                "iotmq_broker_delayed_messages_moved_bytes_total",
                "Bytes of waiting messages copied to the end of the log.",
                self.moved_bytes,
            ),
        )

    def _next(self, wanted_position: int) -> Sequence[Timer]:
        unconfirmed = self._ended.unconfirmed
        if len(unconfirmed) >= UNCONFIRMED_MAX:
            return ()
        waiting = (
            timer for timer in self._index.before(wanted_position) if timer.position not in unconfirmed
        )
        return first_of_size(list(itertools.islice(waiting, TURN_TIMERS_MAX)), TURN_BYTES_MAX)

    def _move(self, timers: Sequence[Timer], error: OSError | RequestError | None) -> None:
        self._is_fetching = False
        if error is not None:
            self._note(error)
            return
        moved_before = self.moved_count
        try:
            with self._store.taking_moved():
                for timer in timers:
                    self._copy(timer)
        except (StoreError, MessageFormatError) as refusal:
            self._note(refusal)
            return
        self._has_failed = False
        # The file goes once the copies are on the disk.
        self._store.request_flush()
        if self.moved_count > moved_before:
            self._timer.arm(self._clock.monotonic_s())

    def _copy(self, timer: Timer) -> None:
        if self._index.at(timer.kind, timer.position) is None or timer.position in self._ended.unconfirmed:
            return
        view = self._store.read_record(timer.position)
        if view is None:
            self._timers.skip(timer, "its record is not in the log any more")
            return
        record = decode_record(view)
        appended = self._store.append(
            self._store.queue(TIMER_TOPIC, 0),
            encode_element(record.body, moved_properties(record.properties, timer.due_ms), record.flag),
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            sys_flag=record.sys_flag & ~0x0C,
            reconsume_times=record.reconsume_times,
            prepared_position=mark_of(timer.position, timer.kind),
        )
        self._ended.storing(timer)
        self._ended.stored(timer, appended.end_position)
        self.moved_count += 1
        self.moved_bytes += appended.end_position - appended.start_position

    def _note(self, error: Exception) -> None:
        if not self._has_failed:
            logger.warning("waiting messages hold old log files back and cannot be copied: %s", error)
        self._has_failed = True
