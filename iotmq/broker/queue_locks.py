"""Queues locked by one client of a group, for consumers that keep order (codes 41 and 42)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from iotmq import limits
from iotmq.clock import Clock

LOCK_EXPIRY_S = 60.0


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue as clients name it."""

    broker_name: str
    queue_id: int
    topic: str


class _Lock:
    __slots__ = ("client_id", "renewed_s")

    def __init__(self, client_id: str, renewed_s: float) -> None:
        self.client_id = client_id
        self.renewed_s = renewed_s


class QueueLocks:
    """Who holds which queue for which group. A lock not renewed for 60 s may be taken by another client.

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
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Take or renew; returns the queues the client holds now."""
        now_s = self._clock.monotonic_s()
        locks = self._locks.get(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            current = locks.get(queue)
            if current is None:
                if self._count >= self._locks_max:
                    continue
                self._count += 1
                locks[queue] = _Lock(client_id, now_s)
            elif current.client_id == client_id:
                current.renewed_s = now_s
            elif now_s - current.renewed_s > self._expiry_s:
                current.client_id = client_id
                current.renewed_s = now_s
            else:
                continue
            held.append(queue)
        if locks:
            self._locks[group] = locks
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release what the client holds of `queues`."""
        locks = self._locks.get(group, {})
        for queue in queues:
            current = locks.get(queue)
            if current is not None and current.client_id == client_id:
                self._drop(locks, queue)
        if not locks:
            self._locks.pop(group, None)

    def expire(self) -> None:
        """Forget locks nobody renews, so that groups that went away cost nothing."""
        horizon_s = self._clock.monotonic_s() - self._expiry_s
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, lock in locks.items() if lock.renewed_s < horizon_s]:
                self._drop(locks, queue)
            if not locks:
                del self._locks[group]

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds the queue; None when free or expired."""
        lock = self._locks.get(group, {}).get(queue)
        if lock is None or self._clock.monotonic_s() - lock.renewed_s > self._expiry_s:
            return None
        return lock.client_id

    def _drop(self, locks: dict[MessageQueue, _Lock], queue: MessageQueue) -> None:
        del locks[queue]
        self._count -= 1

    def _invariants(self) -> None:
        """Raise AssertionError when what is counted is not what is held."""
        assert all(self._locks.values()), "a group without a lock is still there"
        assert self._count == sum(map(len, self._locks.values())) <= self._locks_max
