"""Waiting messages whose end is stored but not yet as safe as their record was.

A message is delivered by a record that also ends its waiting. Until that record is confirmed the timer index
does not know of it, and the message must not be handed over again; until it is on the disk a power cut may
take it, and then the waiting record must still be there: its file must not go, and no offset saved for others
may pass it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from iotmq.store.kv.timer_index import Timer
from iotmq.store.store import Store

_SETTLE_EVERY = 256


class UnflushedDeliveries:
    """Remember the timers that ended lately, in the order of their ends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Positions of the records that something was stored for, or is about to be, and is not confirmed.
        self.unconfirmed: set[int] = set()
        # End of the ending record, position of the waiting one.
        self._stored: deque[tuple[int, int]] = deque()
        # End of the ending record, and the waiting message.
        self._unflushed: deque[tuple[int, Timer]] = deque()
        # What a former process, or a former master, stored last may not be on the disk either.
        self._former_position = store.appended_position

    def start(self) -> None:
        """Take everything that is in the log for stored by others."""
        self._former_position = self._store.appended_position

    @property
    def has_unconfirmed(self) -> bool:
        """Return whether something waits for its confirmation."""
        return bool(self._stored)

    @property
    def is_former_flushed(self) -> bool:
        """Return whether everything that others have stored before is on the disk."""
        return self._store.flushed_position >= self._former_position

    def storing(self, timer: Timer) -> None:
        """Note a timer whose end is about to be stored."""
        self.unconfirmed.add(timer.position)

    def refused(self, timer: Timer) -> None:
        """Note that the end was not stored: the message goes on waiting."""
        self.unconfirmed.discard(timer.position)

    def stored(self, timer: Timer, end_position: int) -> None:
        """Note that the end is stored, in a record that ends at `end_position`."""
        self._unflushed.append((end_position, timer))
        if len(self._unflushed) % _SETTLE_EVERY == 0:
            self.settle()
        if self._store.confirmed_position >= end_position:
            self.unconfirmed.discard(timer.position)
        else:
            self._stored.append((end_position, timer.position))

    def settle(self) -> None:
        """Forget what is confirmed, and what is on the disk."""
        confirmed_position = self._store.confirmed_position
        while self._stored and self._stored[0][0] <= confirmed_position:
            self.unconfirmed.discard(self._stored.popleft()[1])
        flushed_position = self._store.flushed_position
        while self._unflushed and self._unflushed[0][0] <= flushed_position:
            self._unflushed.popleft()

    def unflushed(self) -> Iterator[Timer]:
        """Yield those whose end is not on the disk."""
        self.settle()
        for _, timer in self._unflushed:
            yield timer
