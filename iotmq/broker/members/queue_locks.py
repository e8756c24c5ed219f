"""Queues locked by one client of a group, for consumers that keep order (codes 41 and 42)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from iotmq import limits
from iotmq.clock import Clock
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
        # By (group, broker, topic), in the order in which `expire` looks at them: claims by queue id.
        self._tables: OrderedDict[tuple[str, str, str], dict[int, _Claim]] = OrderedDict()

    @property
    def count(self) -> int:
        """Return how many queues are locked, or were by who has not renewed since."""
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Take or renew; returns the queues the client holds now."""
        now_s = self._clock.monotonic_s()
        horizon_s = now_s - self._expiry_s
        claim = _Claim(client_id, now_s)
        held: list[MessageQueue] = []
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
            table[queue.queue_id] = claim
            held.append(queue)
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

    def _invariants(self) -> None:
        """Raise AssertionError when what is counted is not what is held."""
        assert all(self._tables.values()), "a table without a lock is still there"
        assert self._count == sum(map(len, self._tables.values())) <= self._locks_max
