"""Actions that wait for a time, and those the key-value database refuses, which wait until it does not."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from iotmq.broker.deadline_timer import DeadlineTimer
from iotmq.clock import Clock
from iotmq.errors import StoreError
from iotmq.loop_slice import LoopSlice

# So long after the database has refused an action it is asked again.
RETRY_S: Final = 1.0
# So many are done in one turn of the loop, unless its time is over before.
PER_TURN: Final = 256
# Cancelled actions that the heap keeps beside as many as there are others.
CANCELLED_KEPT: Final = 64


class DueAction:
    """One of them, to be cancelled. Use `DueActions.do_later`."""

    __slots__ = ("action", "due_s", "order")

    def __init__(self, due_s: float, order: int, action: Callable[[], None]) -> None:
        self.due_s = due_s
        self.order = order
        # None once it was done or cancelled.
        self.action: Callable[[], None] | None = action

    def __lt__(self, other: DueAction) -> bool:
        return (self.due_s, self.order) < (other.due_s, other.order)


class DueActions:
    """Does actions on the running loop when they are due. `refused` hears why one could not be done.

    An action that raises StoreError is done again later, so it must read before it changes anything.
    """

    def __init__(self, clock: Clock, *, refused: Callable[[StoreError], None]) -> None:
        self._clock = clock
        self._refused = refused
        # A cancelled action stays here until it is due, or until there are more of them than of others.
        self._heap: list[DueAction] = []
        self._cancelled_count = 0
        self._order = 0
        self._timer = DeadlineTimer(clock, self.run)

    def __len__(self) -> int:
        """How many are to be done."""
        return len(self._heap) - self._cancelled_count

    def do_later(self, delay_s: float, action: Callable[[], None]) -> DueAction:
        """Do something in so many seconds."""
        self._order += 1
        due = DueAction(self._clock.monotonic_s() + delay_s, self._order, action)
        self._push(due)
        return due

    def do_surely(self, action: Callable[[], None]) -> None:
        """Do something now, or as soon as the database does not refuse it."""
        self._do(DueAction(self._clock.monotonic_s(), 0, action))

    def cancel(self, due: DueAction) -> None:
        """Do not do it; one that was done is ignored."""
        if due.action is None:
            return
        due.action = None
        self._cancelled_count += 1
        if self._cancelled_count > CANCELLED_KEPT + len(self):
            self._heap = [kept for kept in self._heap if kept.action is not None]
            heapq.heapify(self._heap)
            self._cancelled_count = 0

    def run(self) -> None:
        """Do what is due, or the first of very much; the rest in the next turn of the loop."""
        now_s, last_order = self._clock.monotonic_s(), self._order
        # What an action adds is for the next turn of the loop, even when it is due at once.
        turn = LoopSlice(PER_TURN)
        while self._heap and turn.take():
            if self._heap[0].due_s > now_s or self._heap[0].order > last_order:
                break
            due = heapq.heappop(self._heap)
            if due.action is None:
                self._cancelled_count -= 1
            else:
                self._do(due)
        if self._heap:
            self._timer.arm(self._heap[0].due_s)

    def clear(self) -> None:
        """Do nothing of it any more."""
        self._timer.cancel()
        self._heap.clear()
        self._cancelled_count = 0

    def _push(self, due: DueAction) -> None:
        heapq.heappush(self._heap, due)
        self._timer.arm(due.due_s)

    def _do(self, due: DueAction) -> None:
        action, due.action = due.action, None
        assert action is not None
        try:
            action()
        except StoreError as error:
            due.action = action
            due.due_s = self._clock.monotonic_s() + RETRY_S
            self._push(due)
            self._refused(error)

    def _invariants(self) -> None:
        """Raise AssertionError when the books do not agree."""
        cancelled = sum(due.action is None for due in self._heap)
        assert cancelled == self._cancelled_count <= CANCELLED_KEPT + len(self)
        assert all(self._heap[(place - 1) // 2] < due for place, due in enumerate(self._heap) if place)
