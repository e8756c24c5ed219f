"""Parked pulls and pops: which queue each waits for, and when its time is over.

Operations: park, find all of one queue, remove one, drop all of one connection, take the overdue ones.
Goals: ten thousand and more parked at no cost while nothing happens, an append wakes only those of
its queue, no timer or task per pull. Plan: a dictionary per queue and per connection, and deadlines
rounded up to ticks of 100 ms with one set of pulls per tick and a heap of the ticks in use, of which
there are at most HOLD_MS_MAX / 100.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from iotmq.message.records.record_filter import RecordFilter
from iotmq.metrics import Metric, samples
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.log.queue import Queue

_TICKS_PER_S = 10


class Pull(msgspec.Struct, eq=False):
    """One pull that may be read, and parked. `offset` moves on past records that its filter does not want."""

    connection: ServerConnection
    request: Command
    queue: Queue
    group: str
    offset: int
    tags: frozenset[int] | RecordFilter | None
    records_max: int
    bytes_max: int
    deadline_s: float | None
    """Until when it would wait; None: not at all."""
    is_plain: bool = False
    """True for a pull that came by the fast path, and may be answered so."""
    with_expired: bool = False
    """Whether records whose time to live is over are wanted, too."""
    expired_at_ms: int = 0
    """The time at which a time to live is over; 0: now."""
    tells_gaps: bool = False
    """Whether the answer says which offsets are lost, and how many were passed over."""
    begun_us: int = 0
    is_from_disk: bool = False
    entries_max: int = 0
    """How many entries a read through a filter may look at; 0 as many as any pull."""

    @property
    def tick(self) -> int:
        """Return the tick of the deadline's table at which it is answered at the latest."""
        assert self.deadline_s is not None
        return tick_of(self.deadline_s)


class Watched(Protocol):
    """A queue, or several, that requests wait for."""

    watched: int


class Parked(Protocol):
    """A request that waits."""

    @property
    def connection(self) -> ServerConnection:
        """Return where it came from."""

    @property
    def queue(self) -> Watched:
        """Return what it waits for."""

    @property
    def tick(self) -> int:
        """Return the tick of the deadline's table at which it is answered at the latest."""


_Parked = TypeVar("_Parked", bound=Parked)


def tick_of(deadline_s: float) -> int:
    """Return the tick of a deadline."""
    return math.ceil(deadline_s * _TICKS_PER_S)


class ParkedPulls(Generic[_Parked]):
    """The parked pulls, or pops, of a broker. While a queue has one, it counts in its `watched`."""

    def __init__(self, held_max: Callable[[], int]) -> None:
        self._held_max = held_max
        self._count = 0
        self._by_queue: dict[Watched, dict[_Parked, None]] = {}
        # In the order they came, which they are answered in.
        self._by_connection: dict[ServerConnection, dict[_Parked, None]] = {}
        self._by_tick: dict[int, dict[_Parked, None]] = {}
        # Every key of _by_tick once, smallest first.
        self._ticks: list[int] = []
        self.parked_count = 0
        self.expired_count = 0
        self.refused_count = 0

    @property
    def held_max(self) -> int:
        """Return the number of pulls that may be parked, as the setting is now."""
        return self._held_max()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, parked: _Parked) -> bool:
        return parked in self._by_queue.get(parked.queue, ())

    @property
    def has_room(self) -> bool:
        """Return whether `park` would keep one more."""
        return self._count < self.held_max

    def park(self, parked: _Parked) -> bool:
        """Keep the pull; False when there is no room, and then it has to be answered at once."""
        if self._count >= self.held_max:
            self.refused_count += 1
            return False
        self._count += 1
        self.parked_count += 1
        waiting = self._by_queue.get(parked.queue)
        if waiting is None:
            waiting = self._by_queue[parked.queue] = {}
            parked.queue.watched += 1
        waiting[parked] = None
        self._by_connection.setdefault(parked.connection, {})[parked] = None
        due_together = self._by_tick.get(parked.tick)
        if due_together is None:
            due_together = self._by_tick[parked.tick] = {}
            heapq.heappush(self._ticks, parked.tick)
        due_together[parked] = None
        return True

    def waiting_for(self, queue: Watched) -> list[_Parked]:
        """Return the pulls parked on the queue, longest waiting first."""
        return list(self._by_queue.get(queue, ()))

    def first(self, queue: Watched) -> _Parked | None:
        """Return the one that waits longest for the queue."""
        return next(iter(self._by_queue.get(queue, ())), None)

    def remove(self, parked: _Parked) -> None:
        """Forget a parked pull that is being answered."""
        self._forget(parked)
        of_connection = self._by_connection[parked.connection]
        del of_connection[parked]
        if not of_connection:
            del self._by_connection[parked.connection]

    def drop_connection(self, connection: ServerConnection) -> None:
        """Forget every pull of a connection that ended."""
        for parked in self._by_connection.pop(connection, ()):
            self._forget(parked)

    def take_all(self) -> list[_Parked]:
        """Remove and return every pull."""
        taken = [parked for of_connection in self._by_connection.values() for parked in of_connection]
        self._by_connection.clear()
        for parked in taken:
            self._forget(parked)
        return taken

    def take_overdue(self, now_s: float) -> Iterator[_Parked]:
        """Remove and yield the pulls whose time is over; those that nobody takes stay parked."""
        now_tick = math.floor(now_s * _TICKS_PER_S)
        while self._ticks and self._ticks[0] <= now_tick:
            due_together = self._by_tick[self._ticks[0]]
            while due_together:
                parked = next(iter(due_together))
                self.remove(parked)
                self.expired_count += 1
                yield parked
            del self._by_tick[heapq.heappop(self._ticks)]

    @property
    def next_deadline_s(self) -> float | None:
        """Return when `take_overdue` is to be called next, None while nothing is parked."""
        return self._ticks[0] / _TICKS_PER_S if self._ticks else None

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_held_pulls", "Pulls parked now.", self._count),
            ("iotmq_broker_parked_pulls_total", "Pulls that were parked.", self.parked_count),
            ("iotmq_broker_expired_pulls_total", "Parked pulls that ended empty.", self.expired_count),
            ("iotmq_broker_unheld_pulls_total", "Pulls not parked for want of room.", self.refused_count),
        )

    def _forget(self, parked: _Parked) -> None:
        waiting = self._by_queue[parked.queue]
        del waiting[parked]
        if not waiting:
            del self._by_queue[parked.queue]
            parked.queue.watched -= 1
        # An emptied tick stays until its time, so that the heap and the dictionary agree.
        self._by_tick[parked.tick].pop(parked, None)
        self._count -= 1
