"""Have what groups have popped in memory, and write every change to the log: all of a turn are one append.

Operations: find the state of a queue for a group, in agreement with the group's committed offset; store what
has changed and tell when it is stored; wake what waits when times are over. Goals: nothing is answered before
the log has it, so that a message has one holder whatever crashes; one append for all of a turn.

The committed offset of a queue is the first one that is not done. Who commits another one (a consumer that
pulls, an administrator) moves the group: forward, and what is before is done; back, and all from there on
comes again.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable
from typing import Final

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.pop_queue import PopQueue
from iotmq.broker.pop.states import ALL_QUEUES, POP_MODE, Place, PopStates, encode_change
from iotmq.broker.tables.topics import POP_TOPIC
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.clock import SteadyClock
from iotmq.errors import RefusedError
from iotmq.event_loop import DeadlineTimer, LoopSlice, NextTurn
from iotmq.metrics import Metric, samples
from iotmq.store.log.queue import Queue
from iotmq.supervised import surviving

# What is to be in one record; a larger change has one for itself.
_RECORD_BYTES: Final = 256 * 1024
# Due times that the heap keeps though they are out of date, beside as many as there are others.
_OLD_TIMES_KEPT: Final = 64
# What 16 bits can count, without the first one.
_ATTEMPTS_MAX: Final = 65_534

Stored = Callable[[RefusedBatch | None], None]
"""Told that a change is in the log as safely as the broker promises, or why it is not."""

logger = logging.getLogger(__name__)


class Pops:
    """The state of all groups that consume by message. For the event loop's thread."""

    def __init__(self, parts: BrokerParts, states: PopStates) -> None:
        self._store = parts.store
        self._writer = parts.writer
        # Or what is popped would be held for longer by as much as the machine's clock is set back.
        self.clock = SteadyClock(parts.clock)
        self._offsets = parts.offsets
        self._topics = parts.topics
        self._groups = parts.subscription_groups
        self._host = parts.host
        self._states = states
        self._queues: dict[Place, PopQueue] = {}
        # Blocks of each queue as they were counted last.
        self._blocks: dict[Place, int] = {}
        self._block_count = 0
        self._pop_modes: set[tuple[str, str]] = set()
        # What has changed and is not appended: a queue, None for one to be forgotten; and who waits for it.
        self._changed: dict[Place, PopQueue | None] = {}
        self._mode_changes: dict[tuple[str, str], bool] = {}
        self._waiting: list[Stored] = []
        self._turn_end = NextTurn(self.flush)
        # When each queue has something due, and a heap of these times.
        self._due_ms: dict[Place, int] = {}
        self._due_heap: list[tuple[int, Place]] = []
        self._timer = DeadlineTimer(self.clock, self.expire)
        self._listeners: list[Callable[[Place, PopQueue], None]] = []
        parts.topics.add_listener(self._topic_changed)
        parts.subscription_groups.add_listener(self._group_changed)

    def add_listener(self, listener: Callable[[Place, PopQueue], None]) -> None:
        """Tell of each queue that has something ready, or dead, since its time is over."""
        self._listeners.append(listener)

    def restore(self) -> None:
        """Take up what the log says, at a start or as a new master; before requests."""
        self._queues = self._states.queues()
        self._pop_modes = self._states.pop_modes()
        self._blocks.clear()
        self._block_count = 0
        self._changed.clear()
        self._mode_changes.clear()
        self._due_ms.clear()
        self._due_heap.clear()
        self._states.end_append(self._store.appended_position)
        for place, queue in list(self._queues.items()):
            stored = self._store.find_queue(place.topic, place.queue_id)
            if self._topics.find(place.topic) is None or self._groups.find(place.group) is None:
                self._forget(place)
                continue
            queue.cut(0 if stored is None else stored.max_offset)
            committed = self._offsets.find(*place)
            if committed is not None and committed > queue.low_offset:
                queue.advance(committed)
            else:
                # The file of offsets is written now and then; the log knows better.
                self._offsets.commit(*place, queue.low_offset)
            self.clock.raise_to(queue.newest_pop_ms)
            queue.committed_offset = queue.low_offset
            if queue.committed_offset != committed:
                self._offsets.commit(*place, queue.committed_offset)
            self._note(place, queue)

    def start(self) -> None:
        """Write what `restore` has found to be different, and wake what is due from now on."""
        self.flush()
        self.expire()

    def stop(self) -> None:
        self._timer.cancel()

    # What there is

    def find(self, place: Place) -> PopQueue | None:
        """Return the state of a queue; None for one that the group has popped nothing of."""
        return self._queues.get(place)

    def in_flight(self, place: Place) -> int:
        """Return how many messages of a queue were popped by the group and are not done."""
        queue = self._queues.get(place)
        return 0 if queue is None else queue.undone_count

    def open(self, place: Place, stored: Queue, *, from_end: bool) -> PopQueue:
        """Return the state of a queue, made where there is none.

        A group without an offset begins at the first message, or `from_end` behind the last. RefusedError for
        one queue too many.
        """
        queue = self._queues.get(place)
        committed = self._offsets.find(*place)
        if queue is not None and committed is None and queue.committed_offset >= 0:
            # Somebody has deleted the group's offsets.
            self._forget(place)
            queue = None
        if queue is None:
            if len(self._queues) >= limits.POP_QUEUES_MAX:
                raise RefusedError(
                    f"this broker has its maximum of {limits.POP_QUEUES_MAX} queues that groups pop from"
                )
            start = committed
            if start is None:
                start = stored.max_offset if from_end else stored.min_offset
            queue = PopQueue(min(max(start, stored.min_offset), stored.max_offset))
            if committed is None:
                # From here on it has one.
                self._offsets.commit(*place, queue.next_offset)
                committed = queue.next_offset
            queue.committed_offset = committed
            # What is known of a former one goes with its first change.
            queue.mark_changed()
            self._queues[place] = queue
            if place in self._changed:
                self._changed[place] = queue
        elif committed is not None and committed != queue.committed_offset:
            if committed > queue.committed_offset:
                queue.advance(min(committed, stored.max_offset))
            else:
                queue.start_over(max(0, committed))
            queue.committed_offset = committed
            self.note(place, queue)
        return queue

    def expire_queue(self, place: Place, queue: PopQueue, now_ms: int) -> None:
        """Look for what is due in a queue."""
        group = self._groups.find(place.group)
        times_max = _ATTEMPTS_MAX if group is None else min(max(0, group.retry_max_times), _ATTEMPTS_MAX)
        queue.expire(now_ms, attempts_max=times_max + 1)

    @property
    def has_room(self) -> bool:
        """Return whether more may be popped before something is done."""
        return self._block_count < limits.POP_BLOCKS_MAX

    # Modes

    def is_popped(self, group: str, topic: str) -> bool:
        """Return whether the group's consumers are told to consume the topic by message."""
        return (group, topic) in self._pop_modes

    def set_mode(self, group: str, topic: str, stored: Stored, *, is_popped: bool) -> None:
        """Change how the group's consumers are told to consume the topic.

        Consumers by queue go on at the committed offset: nothing of what was popped outlives the change to
        them.
        """
        if is_popped != self.is_popped(group, topic):
            self.flush()
            (self._pop_modes.add if is_popped else self._pop_modes.discard)((group, topic))
            self._mode_changes[group, topic] = is_popped
            if not is_popped:
                for place in [
                    place for place in self._queues if (place.group, place.topic) == (group, topic)
                ]:
                    self._forget(place)
        self._waiting.append(stored)
        self._turn_end.schedule()

    # What changes

    def note(self, place: Place, queue: PopQueue) -> None:
        """Have what has changed in a queue stored at the end of the turn; nothing of a forgotten one."""
        if self._queues.get(place) is not queue:
            return
        self._note(place, queue)
        self._turn_end.schedule()

    def when_stored(self, stored: Stored) -> None:
        """Tell when all that was noted in this turn is stored, or why it is not."""
        self._waiting.append(stored)
        self._turn_end.schedule()

    def flush(self) -> None:
        """Append everything that has changed."""
        changes = [
            encode_change(Place(group, topic, ALL_QUEUES), POP_MODE if is_popped else b"")
            for (group, topic), is_popped in self._mode_changes.items()
        ]
        modes, self._mode_changes = self._mode_changes, {}
        changed, self._changed = self._changed, {}
        floors: list[tuple[Place, PopQueue, int]] = []
        for place, queue in changed.items():
            change = b"" if queue is None else queue.take_change()
            if change is not None:
                changes.append(encode_change(place, change))
            if queue is not None and change is not None:
                floors.append((place, queue, queue.low_offset))
        waiting, self._waiting = self._waiting, []

        def stored(result: StoredBatch | RefusedBatch) -> None:
            refusal = result if isinstance(result, RefusedBatch) else None
            if refusal is None:
                for place, queue, floor in floors:
                    self._commit(place, queue, floor)
            else:
                logger.warning("what groups have popped is not stored: %s", refusal.remark)
                self._mode_changes = modes | self._mode_changes
                for place in changed:
                    present = self._queues.get(place)
                    if present is not None:
                        present.mark_changed()
                    self._changed.setdefault(place, present)
            _tell(waiting, refusal)

        if changes:
            self.append(POP_TOPIC, 0, _elements(changes), stored)
        else:
            # Another append has had it all.
            _tell(waiting, None)

    def append(
        self,
        topic: str,
        queue_id: int,
        elements: bytes,
        done: Callable[[StoredBatch | RefusedBatch], None],
        *,
        reconsume_times: int = 0,
        sys_flag: int = 0,
        born: tuple[int, bytes] | None = None,
    ) -> None:
        """Append records with changes; `born` is the time and host of their maker, by default this broker."""
        born_ms, born_host = born or (self.clock.now_ms(), self._host)
        self._states.begin_append()
        self._writer.append(
            topic,
            queue_id,
            elements,
            born_timestamp_ms=born_ms,
            born_host=born_host,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            done=done,
            is_patient=True,
            is_internal=True,
        )
        self._states.end_append(self._store.appended_position)

    def committed(self, place: Place, queue: PopQueue) -> None:
        """Note that what has changed in a queue is stored in another way."""
        if self._queues.get(place) is queue:
            self._note(place, queue)
            self._commit(place, queue, queue.low_offset)

    def expire(self) -> None:
        """Look for what is due: of very many queues over several turns."""
        now_ms = self.clock.now_ms()
        turn = LoopSlice()
        while self._due_heap and self._due_heap[0][0] <= now_ms and turn.take():
            due_ms, place = heapq.heappop(self._due_heap)
            queue = self._queues.get(place)
            if queue is None or self._due_ms.get(place) != due_ms:
                continue
            del self._due_ms[place]
            self.expire_queue(place, queue, now_ms)
            self._note_due(place, queue)
            if queue.ready_count or queue.dead_count:
                for listener in self._listeners:
                    listener(place, queue)
        self._arm(now_ms)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_pop_queues", "Queues that groups pop from.", len(self._queues)),
            (
                "iotmq_broker_pop_blocks",
                "Blocks of 64 offsets with popped messages that are not done.",
                self._block_count,
            ),
        )

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        for place, queue in self._queues.items():
            queue.check_invariants()
            assert place in self._changed or self._blocks.get(place, 0) == queue.block_count
        assert self._block_count == sum(self._blocks.values())

    def _commit(self, place: Place, queue: PopQueue, offset: int) -> None:
        """Set the group's offset, unless somebody else has moved it meanwhile."""
        if self._queues.get(place) is not queue:
            return
        if self._offsets.find(*place) == queue.committed_offset != offset:
            self._offsets.commit(*place, offset)
            queue.committed_offset = offset

    def _note(self, place: Place, queue: PopQueue) -> None:
        self._changed[place] = queue
        self._block_count += queue.block_count - self._blocks.get(place, 0)
        self._blocks[place] = queue.block_count
        self._note_due(place, queue)

    def _note_due(self, place: Place, queue: PopQueue) -> None:
        due_ms = queue.next_due_ms
        if due_ms is None or due_ms >= self._due_ms.get(place, due_ms + 1):
            return
        self._due_ms[place] = due_ms
        heapq.heappush(self._due_heap, (due_ms, place))
        if len(self._due_heap) > 2 * len(self._due_ms) + _OLD_TIMES_KEPT:
            self._due_heap = sorted((due_ms, place) for place, due_ms in self._due_ms.items())
        if self._due_heap[0] == (due_ms, place):
            self._arm(self.clock.now_ms())

    def _arm(self, now_ms: int) -> None:
        if self._due_heap:
            self._timer.arm(self.clock.monotonic_s() + max(0, self._due_heap[0][0] - now_ms) / 1000)

    def _forget(self, place: Place) -> None:
        self._queues.pop(place, None)
        self._block_count -= self._blocks.pop(place, 0)
        self._due_ms.pop(place, None)
        self._changed[place] = None

    def _forget_all(self, places: list[Place]) -> None:
        for place in places:
            self._forget(place)
        if places:
            self._turn_end.schedule()

    def _topic_changed(self, name: str) -> None:
        if self._topics.find(name) is None:
            self._forget_all([place for place in self._queues if place.topic == name])

    def _group_changed(self, name: str) -> None:
        if self._groups.find(name) is None:
            for mode in [mode for mode in self._pop_modes if mode[0] == name]:
                self._pop_modes.discard(mode)
                self._mode_changes[mode] = False
                self._turn_end.schedule()
            self._forget_all([place for place in self._queues if place.group == name])


def _tell(waiting: Iterable[Stored], refusal: RefusedBatch | None) -> None:
    for each in waiting:
        # What one cannot do is not the others' trouble.
        with surviving("answers to pops"):
            each(refusal)


def _elements(changes: list[bytes]) -> bytes:
    """Make a batch of changes, some in each record."""
    elements: list[bytes] = []
    size = 0
    of_record: list[bytes] = []
    for change in changes:
        if of_record and size + len(change) > _RECORD_BYTES:
            elements.append(encode_element(b"".join(of_record), b"", 0))
            of_record, size = [], 0
        of_record.append(change)
        size += len(change)
    elements.append(encode_element(b"".join(of_record), b"", 0))
    return b"".join(elements)
