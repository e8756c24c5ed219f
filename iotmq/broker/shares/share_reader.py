"""Read the light queues of groups: which messages come next, from memory or once the disk has given them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from iotmq.broker.session_store.projection import QueueEntries
from iotmq.broker.session_store.queue_reader import LightQueueReader
from iotmq.broker.shares.share_group import Handout, ShareGroup
from iotmq.broker.shares.strategies import Strategy
from iotmq.errors import RequestError
from iotmq.message.properties import MQTT_CLIENT_ID, MQTT_TOPIC
from iotmq.message.records.record import decode_record, property_value
from iotmq.store.queues.cold_steps import Steps
from iotmq.store.queues.residency import ColdRead
from iotmq.store.store import Store

# Messages that came while a group could not take them are remembered up to here; past it they are read.
_FRESH_MAX: Final = 4_096
# So often what is next is brought in when it has left the memory each time; after that a second is waited.
_LOADS_MAX: Final = 4
# Most records are no longer, where only their place is known.
_FIRST_BYTES: Final = 4_096


class ShareQueue:
    """Say how far the light queue of a group was read, and what of it is waited for."""

    __slots__ = ("fresh", "generation", "group", "is_current", "is_loading", "loads", "queue_id", "search",
                 "share")  # fmt: skip

    def __init__(self, share: str, group: ShareGroup) -> None:
        self.share = share
        self.group = group
        self.queue_id = -1
        # That of the queues in which its queue has this number and is attached.
        self.generation = -1
        # Everything past the group's next position is in `fresh`: (position, size).
        self.is_current = False
        self.fresh: list[tuple[int, int]] = []
        # True while the disk is waited for, for the messages that come next; and how often it was for those.
        self.is_loading = False
        self.loads = 0
        # What looks for them, where that needs the disk.
        self.search: Steps[QueueEntries] | None = None

    def begin(self, queue_id: int, generation: int) -> None:
        """Read a queue from the group's next position on: at first, and when it has got another number."""
        self.queue_id, self.generation = queue_id, generation
        self.search = None
        self._forget_fresh()

    def add(self, position: int, size: int) -> None:
        """Note a message that has come into the queue."""
        if self.is_current:
            self.fresh.append((position, size))
            if len(self.fresh) > _FRESH_MAX:
                self._forget_fresh()

    def _forget_fresh(self) -> None:
        self.is_current = False
        self.fresh.clear()


class ShareReader:
    """Bring messages of their queues to the groups of one broker. On the loop's thread.

    `front_end_of(client id)` names the front end of a publisher, None when it is not known here.
    `loaded(queue, error)` is told when the disk was waited for, `stalled(queue)` when it cannot be now.
    """

    def __init__(
        self,
        store: Store,
        queues: LightQueueReader,
        strategy: Strategy,
        *,
        front_end_of: Callable[[str], str | None],
        loaded: Callable[[ShareQueue, OSError | None], None],
        stalled: Callable[[ShareQueue], None],
    ) -> None:
        self._store = store
        self._queues = queues
        self._strategy = strategy
        self._front_end_of = front_end_of
        self._loaded = loaded
        self._stalled = stalled
        self.lost_records_total = 0

    def offer(self, queue: ShareQueue, wanted: int, now_s: float) -> bool:
        """Bring messages of the queue to its group; False when there are no more, or not in memory yet."""
        group = queue.group
        unread = group.unread(wanted)
        if unread:
            return self._offer_unread(queue, unread, now_s)
        found = self._next_entries(queue, wanted)
        if found is None:
            return False
        # Also where only their entries are needed now: they are handed out next.
        entries = self._in_memory(queue, found.entries)
        if len(entries) < len(found.entries):
            found = QueueEntries(entries, found.entries[len(entries)][0], is_end=False)
            if not entries:
                return False
        queue.loads = 0
        if queue.is_current:
            del queue.fresh[: len(entries)]
        is_keyed = self._strategy not in (Strategy.ROUND_ROBIN, Strategy.STICKY)
        for position, size in entries:
            if not is_keyed:
                group.offer(position, size, "", now_s=now_s)
            elif (record := self.read(position)) is not None:
                group.offer(position, size, self._key_of(record), now_s=now_s)
        queue.is_current = queue.is_current or found.is_end
        group.advance(max(found.next_position, group.next_position))
        # A wide filter's messages may be far from each other.
        return bool(entries) or not found.is_end

    def present_count(self, queue: ShareQueue, handouts: list[Handout]) -> int:
        """Return how many messages, the first of these, are in memory; if none is, they are brought in."""
        entries = self._in_memory(queue, [(handout.position, handout.size) for handout in handouts])
        if entries:
            queue.loads = 0
        return len(entries)

    def read(self, position: int) -> memoryview | None:
        """Return a record; None when the log has lost it."""
        record = self._store.read_record(position)
        if record is None:
            self.lost_records_total += 1
        return record

    def _offer_unread(self, queue: ShareQueue, unread: list[int], now_s: float) -> bool:
        """`offer` of what was read before the start; only the positions are known."""
        first = self._in_memory(queue, [(position, _FIRST_BYTES) for position in unread])
        # The first pages say how many there are.
        entries = self._in_memory(queue, [(position, self._store.size_at(position)) for position, _ in first])
        for position, _ in entries:
            queue.loads = 0
            record = self.read(position)
            if record is None:
                queue.group.gone(position)
            else:
                queue.group.offer(position, len(record), self._key_of(record), now_s=now_s)
        return bool(entries)

    def _next_entries(self, queue: ShareQueue, wanted: int) -> QueueEntries | None:
        """Return where the next messages stand; None when that cannot be said now."""
        next_position = queue.group.next_position
        if queue.is_current:
            fresh = queue.fresh[:wanted]
            return QueueEntries(fresh, fresh[-1][0] + 1 if fresh else next_position, is_end=True)
        search, queue.search = queue.search, None
        if search is None:
            search = self._queues.entry_steps(queue.queue_id, next_position, entries_max=wanted)
        try:
            cold = next(search)
        except StopIteration as finished:
            found: QueueEntries = finished.value
            return found
        except KeyError:
            # The database was opened again, and `Shares.expire` sees to it.
            return None
        assert cold is not None, "a read of a queue only waits for the disk"
        queue.search = search
        self._load(queue, cold)
        return None

    def _in_memory(self, queue: ShareQueue, entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the first of some entries, as many as are in memory; if none is, they are brought in."""
        cold = self._store.plan_records(entries)
        if cold is None:
            return entries
        if queue.loads:
            # They may be more than are brought in, or stay, at one time.
            is_absent = (self._store.plan_records([place]) is not None for place in entries)
            count = next((number for number, absent in enumerate(is_absent) if absent), len(entries))
            if count:
                return entries[:count]
        if queue.loads < _LOADS_MAX:
            queue.loads += 1
            self._load(queue, cold)
        else:
            queue.loads = 0
            self._stalled(queue)
        return []

    def _load(self, queue: ShareQueue, cold: ColdRead) -> None:
        """Wait for the disk off the loop."""

        def ready(error: OSError | None) -> None:
            queue.is_loading = False
            if error is not None:
                queue.search = None
            self._loaded(queue, error)

        try:
            self._queues.load(cold, ready)
        except RequestError:
            # Too many wait for the disk.
            queue.search = None
            self._stalled(queue)
        else:
            queue.is_loading = True

    def _key_of(self, record: memoryview) -> str:
        strategy = self._strategy
        if strategy in (Strategy.ROUND_ROBIN, Strategy.STICKY):
            return ""
        name = MQTT_TOPIC if strategy is Strategy.HASH_TOPIC else MQTT_CLIENT_ID
        value = property_value(decode_record(record).properties, name.encode())
        key = (value or b"").decode("utf-8", "replace")
        return self._front_end_of(key) or "" if strategy is Strategy.LOCAL_FIRST else key
