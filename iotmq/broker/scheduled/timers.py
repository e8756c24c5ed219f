"""Messages that wait for a time: handed over when it has come, taken back, listed.

Operations: a message is stored to wait; the next one that is due is known without a look at the disk; a
thousand or ten thousand that are due within a second go to their topics in slices short enough for the loop;
one is found by its key. What waits stands in the store's timer index, a function of the log, so nothing here
has to be saved: a delivery is one record that both is the message and ends its waiting.

Time: a message is due by the wall clock. The loop's timers do not see when that is set, so it is looked at
again every second. Set forward, it makes what it passed over due at once. Set back, it holds up what has a
time of its own until that time comes; a delay level is a length of time, and nothing waits longer than that
from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.scheduled.delay_levels import DelayLevels
from iotmq.broker.scheduled.delivery_time import (
    CANCELLED_KEY,
    REAL_TOPIC,
    UNIQUE_KEY,
    DeliveryTime,
    Diverted,
    check_room,
    read_delivery_time,
    waiting_until,
)
from iotmq.broker.scheduled.lateness import Lateness
from iotmq.broker.scheduled.recall_handle import RecallHandle
from iotmq.broker.scheduled.unflushed_deliveries import UnflushedDeliveries
from iotmq.broker.tables.topics import TIMER_TOPIC
from iotmq.broker.writing.message_writer import Done, RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import RequestError, StoreError
from iotmq.event_loop import DeadlineTimer
from iotmq.message.records.record import Record, decode_record, property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.store.kv.timer_index import NEVER_MS, Timer, TimerIndex
from iotmq.store.log.timer_record import is_for, mark_of, restored_message

logger = logging.getLogger(__name__)

# One turn of the loop hands over no more than this: some milliseconds of work.
TURN_TIMERS_MAX: Final = 128
TURN_BYTES_MAX: Final = 1 << 20
# Records looked at for one page of a list.
PAGE_BYTES_MAX: Final = 8 << 20
# Handed over and not confirmed yet, which takes a group commit; more wait for these.
UNCONFIRMED_MAX: Final = 4_096
# Between looks, so that many due times close together are one look.
PACE_S: Final = 0.005
LOOK_AGAIN_S: Final = 1.0
# While the clock is behind, a delay level takes longer by about this share of its length.
LATE_LOOK_SHARE: Final = 1 / 16
RETRY_S: Final = 1.0
# What falls due so soon is brought into memory, so much of it.
AHEAD_MS: Final = 2_000
AHEAD_TIMERS_MAX: Final = 1_024
# Of one key; each is a message of the same topic with the same unique key.
CANCELLED_MAX: Final = 64
# Clocks of different machines, and one clock from look to look, are not more exact than this.
CLOCK_SLACK_MS: Final = 1_000


class Timers:
    """Every message that waits. All methods belong to the event loop's thread."""

    def __init__(
        self, parts: BrokerParts, levels: DelayLevels, ended: UnflushedDeliveries, cold_reads: ColdReads
    ) -> None:
        self._broker_name = parts.settings.name
        self._store = parts.store
        self._writer = parts.writer
        self._levels = levels
        self._ended = ended
        self._cold_reads = cold_reads
        self._clock = parts.clock
        # Records of the broker's own are born there.
        self._host = parts.host
        self._pending_max = parts.settings.timers_pending_max
        self._index: TimerIndex = parts.store.timers()
        self._timer = DeadlineTimer(parts.clock, self.deliver)
        # True from start() to stop().
        self._is_running = False
        # While the records of a slice are fetched from the disk nothing else is delivered.
        self._is_fetching = False
        # Set when deliveries are refused: when to try again, in monotonic seconds.
        self._blocked_until_s = 0.0
        self._ahead_at_s = 0.0
        self._checked_at_s = 0.0
        self._has_failed = False
        # Level -> (position, monotonic seconds): what stands before it was stored when the clock was ahead
        # of what it is now, and is delivered then at the latest.
        self._late_levels: dict[int, list[tuple[int, float]]] = {}
        self.delivered_count = 0
        self.skipped_count = 0
        self.cancelled_count = 0
        self.refused_count = 0
        self.lateness = Lateness(parts.clock)
        parts.writer.add_confirmed_listener(self._confirmed)

    def start(self) -> None:
        """Deliver what fell due meanwhile, and everything else from now on."""
        self._is_running = True
        self._index.on_earlier = self._arm
        self.deliver()

    def stop(self) -> None:
        self._is_running = False
        self._index.on_earlier = None
        self._timer.cancel()

    # What waits -----------------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """Return how many messages wait."""
        return self._index.estimated_count

    def read_delivery_time(self, properties: bytes) -> DeliveryTime:
        """Read the delivery time of a message; raises RequestError (13) when it cannot be understood."""
        return read_delivery_time(properties, self._levels, now_ms=self._clock.now_ms())

    def divert(
        self,
        topic: str,
        queue_id: int,
        properties: bytes,
        delivery_time: DeliveryTime,
        *,
        is_counted: bool = True,
        also_waiting: int = 0,
    ) -> Diverted:
        """Return how a message is stored to wait for a level or until a time, and then to go on.

        Raises RequestError: 13 when its properties are too long for that, 14 when too many wait already,
        which is not asked unless `is_counted`; `also_waiting` are on their way and not known yet.
        """
        if is_counted and self.pending_count + also_waiting >= self._pending_max:
            self.refused_count += 1
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{self._pending_max} messages wait for their time already (broker.timers_pending_max)",
            )
        if delivery_time.level:
            waiting = Diverted(*self._levels.divert(topic, queue_id, properties, delivery_time.level), 0)
            check_room(waiting.properties)
            return waiting
        return waiting_until(topic, queue_id, properties, delivery_time.due_ms)

    def recall_handle(self, topic: str, properties: bytes, delivery_time: DeliveryTime) -> str | None:
        """Make the handle that recalls a message; None for a delay level, and without a plain key."""
        unique_key = property_value(properties, UNIQUE_KEY)
        if not unique_key or b" " in unique_key or not delivery_time.due_ms:
            return None
        key = unique_key.decode("utf-8", "replace")
        return RecallHandle(topic, self._broker_name, str(delivery_time.due_ms), key).encode()

    def schedule(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        due_ms: int,
        done: Done,
    ) -> None:
        """Store a message of the broker's own to be delivered at a time; a past one delivers at once.

        With a UNIQ_KEY among its properties it can be cancelled. `done` is called once, as by the writer.
        """
        prepared_topic, prepared_queue = topic, queue_id
        if due_ms > self._clock.now_ms():
            try:
                waiting = self.divert(topic, queue_id, properties, DeliveryTime(due_ms=due_ms))
            except RequestError as error:
                done(RefusedBatch(error.code, str(error)))
                return
            prepared_topic, prepared_queue, properties = waiting[:3]
        self._writer.append(
            prepared_topic,
            prepared_queue,
            encode_element(body, properties, 0),
            born_timestamp_ms=self._clock.now_ms(),
            born_host=self._host,
            done=done,
            is_internal=True,
        )

    def cancel(self, topic: str, unique_key: str, done: Done) -> None:
        """Take back every message that waits for `topic` with that unique key.

        `done` is called once: when that is stored, or with code 22 when nothing waits under this name
        (any more).
        """
        key = unique_key.encode()
        timers = [
            timer
            for timer in self._index.find(topic.encode(), key, timers_max=CANCELLED_MAX)
            if timer.position not in self._ended.unconfirmed
        ]

        def ready(error: OSError | RequestError | None) -> None:
            if error is not None:
                code = error.code if isinstance(error, RequestError) else ResponseCode.SYSTEM_ERROR
                done(RefusedBatch(code, str(error)))
                return
            named = [timer for timer in timers if self._is_named(timer, topic.encode(), key)]
            if not named:
                done(
                    RefusedBatch(
                        ResponseCode.QUERY_NOT_FOUND,
                        f"no message for topic {topic} waits under the unique key {unique_key}",
                    )
                )
                return
            for timer in named[1:]:
                self._end(timer, CANCELLED_KEY + b"\x01%s\x02" % key, self._ignore_cancelled)
            self._end(named[0], CANCELLED_KEY + b"\x01%s\x02" % key, partial(self._cancelled, done))

        self.with_records(timers, ready)

    def page(
        self,
        *,
        topic: str = "",
        after: tuple[int, int] = (-1, -1),
        timers_max: int,
        ready: Callable[[Sequence[tuple[Timer, Record]], tuple[int, int] | None], None],
        failed: Callable[[OSError | RequestError], None],
    ) -> None:
        """Give `ready` what waits (for `topic`), first things first, and where to go on; None at the end.

        Looks at no more than `timers_max`, so a page for one topic may be empty and not the last.
        """
        waiting = self._index.waiting(after=after, timers_max=timers_max)
        timers = first_of_size(waiting, PAGE_BYTES_MAX)

        def read(error: OSError | RequestError | None) -> None:
            if error is not None:
                failed(error)
                return
            found = []
            for timer in timers:
                view = self._store.read_record(timer.position)
                if view is None or timer.position in self._ended.unconfirmed:
                    continue
                record = decode_record(view)
                if not topic or property_value(record.properties, REAL_TOPIC) == topic.encode():
                    found.append((timer, record))
            is_last = len(waiting) < timers_max and len(timers) == len(waiting)
            ready(found, None if is_last else (timers[-1].due_ms, timers[-1].position))

        self.with_records(timers, read)

    def with_records(
        self, timers: Sequence[Timer], ready: Callable[[OSError | RequestError | None], None]
    ) -> None:
        """Call `ready` once the records are in memory: at once, or when the disk gave them."""
        plan = self._store.plan_records([(timer.position, timer.size) for timer in timers])
        if plan is None:
            ready(None)
            return
        try:
            self._cold_reads.start(plan, ready)
        except RequestError as error:
            ready(error)

    # What is due ----------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Hand over a slice of what is due, and see to being called again for the next."""
        if not self._is_running or self._is_fetching:
            return
        try:
            self._deliver()
            self._has_failed = False
        except StoreError as error:
            # The index is behind for a moment, or its disk refuses; the log has everything.
            if not self._has_failed:
                logger.warning("messages that are due have to wait: %s", error)
            self._has_failed = True
            self._timer.arm(self._clock.monotonic_s() + RETRY_S)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("", "Messages waiting for their time.", self.pending_count),
            ("_delivered_total", "Delayed messages moved to their topics.", self.delivered_count),
            ("_skipped_total", "Delayed messages that no topic takes.", self.skipped_count),
            ("_cancelled_total", "Delayed messages taken back.", self.cancelled_count),
            ("_refused_total", "Messages refused because too many wait.", self.refused_count),
            ("_late_ms", "Milliseconds the last delayed message came too late.", self.lateness.last_ms),
            ("_late_ms_max", "Most milliseconds too late in the last minute or two.", self.lateness.most_ms),
            prefix="iotmq_broker_delayed_messages",
        )

    def _deliver(self) -> None:
        self._ended.settle()
        now_s = self._clock.monotonic_s()
        if now_s < self._blocked_until_s or len(self._ended.unconfirmed) >= UNCONFIRMED_MAX:
            self._arm()
            return
        if self._index.applied_position < self._store.confirmed_position:
            self._store.catch_up()
            if self._index.applied_position < self._store.confirmed_position:
                # It may not know what was delivered.
                raise StoreError(f"the index of waiting messages is at {self._index.applied_position}")
        now_ms = self._clock.now_ms()
        if now_s >= self._checked_at_s:
            self._checked_at_s = now_s + LOOK_AGAIN_S
            self._look_for_late_levels(now_ms, now_s)
        due = self._index.due(now_ms, timers_max=TURN_TIMERS_MAX, besides=self._ended.unconfirmed)
        due = due or self._late_of_levels(now_s)
        self._look_ahead(now_ms, now_s)
        chosen = first_of_size(due, TURN_BYTES_MAX)
        if chosen:
            self._fetch(chosen)
        if not self._is_fetching:
            self._arm(is_more=len(due) == TURN_TIMERS_MAX or len(chosen) < len(due))

    def _fetch(self, due: Sequence[Timer]) -> None:
        """Hand them over once their records are in memory."""
        self._is_fetching = True
        is_late = False

        def ready(error: OSError | RequestError | None) -> None:
            self._is_fetching = False
            if error is not None:
                logger.warning("messages that are due cannot be read: %s", error)
                self._block()
            else:
                with self._writer.gathered():
                    self._hand_over_all(due, is_late=is_late)
            if is_late and self._is_running:
                self._arm(is_more=True)

        self.with_records(due, ready)
        is_late = True

    def _hand_over_all(self, due: Sequence[Timer], *, is_late: bool) -> None:
        for timer in due:
            # In the meantime it may have been taken back.
            if is_late and not self._is_pending(timer):
                continue
            if not self._hand_over(timer):
                break

    def _is_pending(self, timer: Timer) -> bool:
        if timer.position in self._ended.unconfirmed:
            return False
        return self._index.at(timer.kind, timer.position) is not None

    def _hand_over(self, timer: Timer) -> bool:
        """Return False when nothing is taken now, and the rest of the slice must wait, too."""
        view = self._store.read_record(timer.position)
        if view is None:
            return self.skip(timer, "its record is not in the log any more")
        message = restored_message(view, timer.kind == 0)
        if not message.topic or message.queue_id < 0:
            return self.skip(timer, "it does not say which topic it is for")
        self._ended.storing(timer)
        self._writer.append(
            message.topic,
            message.queue_id,
            message.element,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times,
            prepared_position=mark_of(timer.position, timer.kind),
            done=partial(self._delivered, timer),
            is_patient=True,
            is_internal=True,
        )
        return not self._is_blocked

    def _delivered(self, timer: Timer, result: StoredBatch | RefusedBatch) -> None:
        if isinstance(result, StoredBatch):
            self._ended.stored(timer, result.appended.end_position)
            self.delivered_count += 1
            self.lateness.add(max(0, result.appended.store_timestamp_ms - timer.due_ms))
            return
        self._ended.refused(timer)
        self._index.look_again()
        if result.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._block()
        else:
            # Would be refused for ever, and be looked at every time.
            self.skip(timer, result.remark)

    def skip(self, timer: Timer, reason: str) -> bool:
        """Give up a message that cannot be delivered; False when that cannot be stored now."""
        logger.warning("delayed message at position %d is skipped: %s", timer.position, reason)
        self._end(timer, CANCELLED_KEY + b"\x01\x02", self._skipped)
        return not self._is_blocked

    def _end(self, timer: Timer, properties: bytes, done: Done) -> None:
        """Store a record that ends the waiting of another, and does nothing else."""

        def ended(result: StoredBatch | RefusedBatch) -> None:
            if isinstance(result, StoredBatch):
                self._ended.stored(timer, result.appended.end_position)
            else:
                self._ended.refused(timer)
                self._index.look_again()
            done(result)

        self._ended.storing(timer)
        self._writer.append(
            TIMER_TOPIC,
            0,
            encode_element(b"", properties, 0),
            born_timestamp_ms=self._clock.now_ms(),
            born_host=self._host,
            prepared_position=mark_of(timer.position, timer.kind),
            done=ended,
            is_internal=True,
        )

    def _skipped(self, result: StoredBatch | RefusedBatch) -> None:
        if isinstance(result, StoredBatch):
            self.skipped_count += 1
        else:
            self._block()

    def _cancelled(self, done: Done, result: StoredBatch | RefusedBatch) -> None:
        self._ignore_cancelled(result)
        done(result)

    def _ignore_cancelled(self, result: StoredBatch | RefusedBatch) -> None:
        self.cancelled_count += isinstance(result, StoredBatch)

    def _is_named(self, timer: Timer, topic: bytes, unique_key: bytes) -> bool:
        view = self._store.read_record(timer.position)
        return view is not None and self._is_pending(timer) and is_for(view, topic, unique_key)

    # When to look ---------------------------------------------------------------------------------------

    @property
    def _is_blocked(self) -> bool:
        return self._clock.monotonic_s() < self._blocked_until_s

    def _block(self) -> None:
        self._blocked_until_s = self._clock.monotonic_s() + RETRY_S

    def _confirmed(self) -> None:
        if self._ended.has_unconfirmed:
            self._ended.settle()
            self._arm()

    def _arm(self, *, is_more: bool = False) -> None:
        """Look again when something may be due; not at all while nothing waits."""
        if not self._is_running:
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._blocked_until_s:
            self._timer.arm(self._blocked_until_s)
            return
        if len(self._ended.unconfirmed) >= UNCONFIRMED_MAX:
            self._timer.arm(now_s + LOOK_AGAIN_S)
            return
        next_ms = self._index.next_due_ms
        if next_ms == NEVER_MS and not self._late_levels:
            return
        wait_s = min((next_ms - self._clock.now_ms()) / 1000, LOOK_AGAIN_S)
        self._timer.arm(now_s + (0.0 if is_more else max(wait_s, PACE_S)))

    def _look_ahead(self, now_ms: int, now_s: float) -> None:
        """Have the records of what falls due soon in memory; those of the last minutes are."""
        if now_s < self._ahead_at_s or self._store.confirmed_position <= self._store.settings.hot_bytes:
            return
        self._ahead_at_s = now_s + AHEAD_MS / 2000
        soon = self._index.soon(now_ms, now_ms + AHEAD_MS, timers_max=AHEAD_TIMERS_MAX)
        self.with_records(soon, lambda error: None)

    def _look_for_late_levels(self, now_ms: int, now_s: float) -> None:
        """Notice that the clock was set back, by the levels: nothing waits longer than its level."""
        delays_ms = self._levels.delays_ms
        position = self._index.applied_position
        for kind in self._index.kinds():
            if not 0 < kind <= len(delays_ms):
                continue
            notes = self._late_levels.get(kind, [])
            delay_s = delays_ms[kind - 1] / 1000
            # What comes while the clock is behind is as late; a few looks in the time of a level are enough.
            if notes and (notes[-1][0] == position or notes[-1][1] > now_s + delay_s * (1 - LATE_LOOK_SHARE)):
                continue
            first = self._index.first_of(kind)
            if first is not None and first.due_ms > now_ms + delays_ms[kind - 1] + CLOCK_SLACK_MS:
                self._late_levels.setdefault(kind, []).append((position, now_s + delay_s))

    def _late_of_levels(self, now_s: float) -> list[Timer]:
        """Find messages that wait only because the clock was set back, and have waited long enough."""
        for kind, notes in list(self._late_levels.items()):
            while notes and notes[0][1] <= now_s:
                found = []
                for timer in self._index.before(notes[0][0], kinds=(kind,)):
                    if timer.position not in self._ended.unconfirmed:
                        found.append(timer)
                    if len(found) == TURN_TIMERS_MAX:
                        return found
                if found:
                    return found
                notes.pop(0)
            if not notes:
                del self._late_levels[kind]
        return []


def first_of_size(timers: Sequence[Timer], bytes_max: int) -> Sequence[Timer]:
    """Return the first of them, at least one, as many as have so many bytes."""
    total_bytes = 0
    for number, timer in enumerate(timers):
        total_bytes += timer.size
        if total_bytes > bytes_max and number:
            return timers[:number]
    return timers
