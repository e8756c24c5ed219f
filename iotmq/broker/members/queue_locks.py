"""Queues locked by one client of a group, for consumers that keep order (codes 41 and 42)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import NamedTuple, TypeAlias

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.copied_table import ChangedKeys
from iotmq.clock import Clock
from iotmq.errors import RefusedError
from iotmq.event_loop import LoopSlice

LOCK_EXPIRY_S = 60.0


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """A queue as clients name it."""

    broker_name: str
    queue_id: int
    topic: str


class _Claim(NamedTuple):
    """Hold the queues that one request of a client locks or renews."""

    client_id: str
    renewed_s: float


# Group, broker, topic, queue id.
_LockKey: TypeAlias = tuple[str, str, str, int]


class CopiedLock(NamedTuple):
    """A lock with the time that is left of it, for another machine's clock; 0 for one that is gone."""

    key: _LockKey
    client_id: str
    left_ms: int


class QueueLocks:
    """Lock queues for the clients of groups. A lock not renewed for 60 s may be taken by another client.

    Groups need not be known, and clients choose the name of the broker: past `locks_max` no queue is locked
    that was not before.
    """

    def __init__(
        self, clock: Clock, *, expiry_s: float = LOCK_EXPIRY_S, locks_max: int = limits.QUEUE_LOCKS_MAX
    ) -> None:
        self._clock = clock
        self._expiry_s = expiry_s
        self._locks_max = locks_max
        self._count = 0
        self.changes_count = 0
        """Grows when a queue is given to who did not have it any more, and when it is given back."""
        # It has none.
        self.version = DataVersion()
        # What followers have to be sent: a lock that is taken or renewed, and one that is gone.
        self.changed: ChangedKeys[_LockKey] = ChangedKeys(2 * locks_max)
        self._given_listeners: list[Callable[[], None]] = []
        # By (group, broker, topic), in the order in which `expire` looks at them: claims by queue id.
        self._tables: OrderedDict[tuple[str, str, str], dict[int, _Claim]] = OrderedDict()

    @property
    def count(self) -> int:
        """Return how many queues are locked, or were by who has not renewed since."""
        return self._count

    def add_given_listener(self, listener: Callable[[], None]) -> None:
        """Tell when queues were given to a client that did not have them."""
        self._given_listeners.append(listener)

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Take or renew; returns the queues the client holds now."""
        now_s = self._clock.monotonic_s()
        horizon_s = now_s - self._expiry_s
        claim = _Claim(client_id, now_s)
        held: list[MessageQueue] = []
        changed = self.changed.keys
        is_given = False
        for queue in queues:
            key = group, queue.broker_name, queue.topic
            table = self._tables.get(key)
            current = None if table is None else table.get(queue.queue_id)
            if current is None:
                if self._count >= self._locks_max:
                    continue
                self._count += 1
                if table is None:
                    table = self._tables[key] = {}
            elif current.client_id != client_id and current.renewed_s >= horizon_s:
                continue
            assert table is not None
            is_renewed = (
                current is not None and current.client_id == client_id and current.renewed_s >= horizon_s
            )
            is_given = is_given or not is_renewed
            table[queue.queue_id] = claim
            held.append(queue)
            if changed is not None:
                changed.add((*key, queue.queue_id))
        self.changed.bound()
        if is_given:
            self.changes_count += 1
            for listener in self._given_listeners:
                listener()
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release what the client holds of `queues`."""
        for queue in queues:
            key = group, queue.broker_name, queue.topic
            table = self._tables.get(key, {})
            current = table.get(queue.queue_id)
            if current is not None and current.client_id == client_id:
                del table[queue.queue_id]
                self._count -= 1
                self.changes_count += 1
                self._note_gone(key, (queue.queue_id,))
                if not table:
                    del self._tables[key]

    def expire(self) -> None:
        """Forget locks nobody renews, so that groups that went away cost nothing: some with each call."""
        horizon_s = self._clock.monotonic_s() - self._expiry_s
        turn = LoopSlice(len(self._tables))
        while self._tables and turn.take():
            key, table = next(iter(self._tables.items()))
            late = [queue_id for queue_id, claim in table.items() if claim.renewed_s < horizon_s]
            self._count -= len(late)
            for queue_id in late:
                del table[queue_id]
            self._note_gone(key, late)
            if table:
                self._tables.move_to_end(key)
            else:
                del self._tables[key]

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client that holds the queue; None when free or expired."""
        claim = self._tables.get((group, queue.broker_name, queue.topic), {}).get(queue.queue_id)
        if claim is None or self._clock.monotonic_s() - claim.renewed_s > self._expiry_s:
            return None
        return claim.client_id

    def _note_gone(self, key: tuple[str, str, str], queue_ids: Iterable[int]) -> None:
        if self.changed.keys is not None:
            self.changed.keys.update((*key, queue_id) for queue_id in queue_ids)

    # What followers are sent, and take (copied_table.KeyedTable)

    def copied_entries(self) -> Iterator[CopiedLock]:
        """Yield the locks of this moment that are still there."""
        for key in list(self._tables):
            for queue_id in list(self._tables.get(key, ())):
                if queue_id in self._tables.get(key, ()):
                    yield self._copied((*key, queue_id))

    def entries_of(self, keys: set[_LockKey]) -> Iterator[CopiedLock]:
        """Yield what holds now for the queues, and take them out of `keys`."""
        while keys:
            yield self._copied(keys.pop())

    def new_copy(self) -> QueueLocks:
        return QueueLocks(self._clock, expiry_s=self._expiry_s, locks_max=self._locks_max)

    def apply(self, entries: Sequence[CopiedLock], copy: QueueLocks | None) -> None:
        """Change a copy, or the table. RequestError (1) past `locks_max`, and then nothing has changed."""
        if copy is not None:
            copy.apply(entries, None)
            return
        tables = self._tables
        count = self._count
        locked: dict[_LockKey, CopiedLock] = {lock.key: lock for lock in entries}
        for key, lock in locked.items():
            is_there = key[3] in tables.get(key[:3], ())
            count += (lock.left_ms > 0) - is_there
        if count > self._locks_max:
            raise RefusedError(f"more than {self._locks_max} locked queues, the maximum of this broker")
        now_s = self._clock.monotonic_s()
        for (group, broker, topic, queue_id), lock in locked.items():
            table = tables.setdefault((group, broker, topic), {})
            if lock.left_ms > 0:
                left_s = min(lock.left_ms / 1_000, self._expiry_s)
                table[queue_id] = _Claim(lock.client_id, now_s - self._expiry_s + left_s)
            else:
                table.pop(queue_id, None)
                if not table:
                    del tables[group, broker, topic]
        self._count = count

    def replace(self, copy: QueueLocks) -> None:
        """Hold what a copy has."""
        self._tables = copy._tables
        self._count = copy._count

    def _copied(self, key: _LockKey) -> CopiedLock:
        claim = self._tables.get(key[:3], {}).get(key[3])
        if claim is None:
            return CopiedLock(key, "", 0)
        left_s = claim.renewed_s + self._expiry_s - self._clock.monotonic_s()
        return CopiedLock(key, claim.client_id, max(0, ceil(left_s * 1_000)))

    def check_invariants(self) -> None:
        """Raise AssertionError when what is counted is not what is held."""
        assert all(self._tables.values()), "a table without a lock is still there"
        assert self._count == sum(map(len, self._tables.values())) <= self._locks_max
