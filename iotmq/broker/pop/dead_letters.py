"""Bury what was popped as often as it may be: a copy in the group's dead letters ends the message.

The copy carries the change of the state (POP_DONE), so one record does both, and no crash comes between. What
cannot be stored or read now is tried again a second later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.pop_queue import PopQueue
from iotmq.broker.pop.pops import Pops
from iotmq.broker.pop.states import Place, encode_burial
from iotmq.broker.scheduled.given_back import given_back_properties
from iotmq.broker.tables.topics import DLQ_PREFIX
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import RequestError
from iotmq.event_loop import DeadlineTimer
from iotmq.message.properties import POP_DONE
from iotmq.message.records.record import Record, decode_record
from iotmq.metrics import Metric, samples

# So many messages of a queue are buried in a turn, and read from the disk at a time.
_AT_ONCE: Final = 32
_AGAIN_S: Final = 1.0
# Producers may send a message with as many tries as a record has room for.
_INT32_MAX: Final = 2**31 - 1


class DeadLetters:
    """Buries the dead messages of all queues. For the event loop's thread."""

    def __init__(self, parts: BrokerParts, pops: Pops, on_done: Callable[[Place, PopQueue], None]) -> None:
        """`on_done` is told of each queue of which something was buried: what is behind it may be had."""
        self._store = parts.store
        self._topics = parts.topics
        self._clock = parts.clock
        self._cold_reads = parts.cold_reads
        self._message_ids = parts.message_ids
        self._statistics = parts.statistics
        self._pops = pops
        self._on_done = on_done
        # Queues with dead messages, and which of these are being read.
        self._places: dict[Place, set[int]] = {}
        self._timer = DeadlineTimer(parts.clock, self.bury)
        self.buried_total = 0
        pops.add_listener(self._look)

    def stop(self) -> None:
        self._timer.cancel()
        self._places.clear()

    def bury(self) -> None:
        """Go on with what is dead; a timer does it anyway."""
        for place in list(self._places):
            queue = self._pops.find(place)
            if queue is None or not queue.dead_count:
                del self._places[place]
            else:
                self._bury_some(place, queue)
        if self._places:
            self._timer.arm(self._clock.monotonic_s() + _AGAIN_S)

    def metrics(self) -> Iterable[Metric]:
        text = "Messages that were popped as often as they may be, and are dead letters now."
        return samples(("iotmq_broker_pop_dead_letters_total", text, self.buried_total))

    def _look(self, place: Place, queue: PopQueue) -> None:
        if queue.dead_count and place not in self._places:
            self._places[place] = set()
            self.bury()

    def _bury_some(self, place: Place, queue: PopQueue) -> None:
        being_read = self._places[place]
        stored = self._store.find_queue(place.topic, place.queue_id)
        for offset in queue.dead_offsets():
            if len(being_read) >= _AT_ONCE:
                break
            if offset in being_read:
                continue
            position = None if stored is None else self._store.position_of(stored, offset)
            if position is None:
                self._gone(place, queue, offset)
                continue
            being_read.add(offset)
            self._cold_reads.finish(
                self._store.record_steps(position),
                partial(self._read, place, queue, offset),
                partial(self._not_read, place, offset),
            )

    def _not_read(self, place: Place, offset: int, error: RequestError) -> None:
        self._places.get(place, set()).discard(offset)
        self._timer.arm(self._clock.monotonic_s() + _AGAIN_S)

    def _read(self, place: Place, queue: PopQueue, offset: int, view: memoryview | None) -> None:
        self._places.get(place, set()).discard(offset)
        if self._pops.find(place) is not queue or not queue.is_dead(offset):
            return
        record = None if view is None else decode_record(view)
        if record is None or (record.topic, record.queue_id, record.queue_offset) != (*place[1:], offset):
            self._gone(place, queue, offset)
            return
        # A change has only itself: everything else of the queue is to be in the log before.
        self._pops.flush()
        if queue.is_changed:
            self._timer.arm(self._clock.monotonic_s() + _AGAIN_S)
            return
        self._store_copy(place, queue, offset, record)
        if queue.dead_count and not self._places.get(place):
            self._timer.arm(self._clock.monotonic_s())

    def _store_copy(self, place: Place, queue: PopQueue, offset: int, record: Record) -> None:
        attempts = queue.attempts(offset)
        topic = self._topics.ensure(DLQ_PREFIX + place.group, queues=1).topic_name
        burial = b"%s\x01%s\x02" % (POP_DONE.encode(), encode_burial(place, queue.bury(offset)))
        properties = given_back_properties(record, self._message_ids) + b"DELAY\x010\x02"
        is_one_record = len(properties) + len(burial) <= limits.PROPERTIES_BYTES_MAX
        if is_one_record:
            properties += burial
        elif len(properties) > limits.PROPERTIES_BYTES_MAX:
            properties = record.properties

        def done(result: StoredBatch | RefusedBatch) -> None:
            if isinstance(result, RefusedBatch):
                queue.dig_out(offset, attempts)
                self._pops.note(place, queue)
                self._places.setdefault(place, set())
                self._timer.arm(self._clock.monotonic_s() + _AGAIN_S)
                return
            self.buried_total += 1
            self._on_done(place, queue)
            self._statistics.counters.count_send_back(place.topic, place.group)
            if is_one_record:
                self._pops.committed(place, queue)
            else:
                queue.mark_changed()
                self._pops.note(place, queue)

        self._pops.append(
            topic,
            0,
            encode_element(record.body, properties, record.flag),
            done,
            reconsume_times=min(record.reconsume_times + attempts, _INT32_MAX),
            sys_flag=record.sys_flag,
            born=(record.born_timestamp_ms, record.born_host),
        )

    def _gone(self, place: Place, queue: PopQueue, offset: int) -> None:
        """End a message that nobody can read any more."""
        queue.discard(offset)
        self._pops.note(place, queue)
        self._on_done(place, queue)
