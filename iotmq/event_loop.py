"""Do work later on the event loop: in slices of a turn, in the next turn, at a deadline.

`LoopSlice` bounds long work, `Pace` spreads it, `NextTurn` calls something once in the next turn,
`SomePerTurn` does many things, a few in each turn, `DeadlineTimer` is one timer for many deadlines, and
`DueActions` does many things when each of them is due. `happens_within` waits, and `some_at_once` has no more
than a few waits at a time.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from iotmq.clock import Clock
from iotmq.errors import StoreError

# What one kind of work has of a turn: several kinds may come together, and all of it is to stay below 20 ms.
SLICE_S: Final = 0.003
PACE_SLICE_S: Final = 0.0001
PACE_REST_S: Final = 0.001
# So long after the database has refused an action it is asked again.
ACTION_RETRY_S: Final = 1.0
# So many are done in one turn of the loop, unless its time is over before.
ACTIONS_PER_TURN: Final = 256
# Cancelled actions that the heap keeps beside as many as there are others.
CANCELLED_ACTIONS_KEPT: Final = 64

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class LoopSlice:
    """Bound work to some steps and some milliseconds of the processor. The first step is always taken."""

    __slots__ = ("_end_s", "_left", "_steps_max", "_surely_until_s")

    def __init__(self, steps_max: int = sys.maxsize, *, slice_s: float = SLICE_S) -> None:
        self._steps_max = self._left = steps_max
        self._end_s = time.thread_time() + slice_s
        # The thread has not used more than has passed, and its own clock takes four times as long to ask.
        self._surely_until_s = time.monotonic() + slice_s

    @property
    def is_over(self) -> bool:
        """Return whether the next step is one for another turn."""
        if self._left == self._steps_max:
            return False
        if self._left <= 0:
            return True
        return time.monotonic() >= self._surely_until_s and time.thread_time() >= self._end_s

    def take(self) -> bool:
        """Return whether there is room for a step, which counts as taken."""
        if self.is_over:
            return False
        self._left -= 1
        return True


class Pace:
    """Spreads long work that is in no hurry: a short slice, then a rest in which others have the loop.

    A message needs several turns. Slices in all of them would hold it up each time; of these it meets one.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = LoopSlice(slice_s=PACE_SLICE_S)

    async def step(self) -> None:
        """Rest before the next step, when it is time to."""
        if not self._turn.take():
            await asyncio.sleep(PACE_REST_S)
            self._turn = LoopSlice(slice_s=PACE_SLICE_S)


class NextTurn:
    """Calls `action` in the next turn of the running loop: once, however often it was scheduled."""

    __slots__ = ("_action", "_is_scheduled")

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._is_scheduled = False

    def schedule(self) -> None:
        """Call it in the next turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._action()


class SomePerTurn(Generic[_Item]):
    """Calls `action` with one item after the other, for so many of them in a turn of the running loop."""

    __slots__ = ("_action", "_items", "_next_turn", "_per_turn")

    def __init__(self, action: Callable[[_Item], object], per_turn: int) -> None:
        self._action = action
        self._per_turn = per_turn
        self._items: deque[_Item] = deque()
        self._next_turn = NextTurn(self.do_some)

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._items)

    def add(self, item: _Item) -> None:
        """Have it done in the next turn, or in a later one."""
        self._items.append(item)
        self._next_turn.schedule()

    def take_all(self) -> list[_Item]:
        """Return the items that wait, which are nothing to be done any more."""
        items = list(self._items)
        self._items.clear()
        return items

    def do_some(self) -> None:
        """Do so many at once; the others have their turns."""
        try:
            for _ in range(min(len(self._items), self._per_turn)):
                self._action(self._items.popleft())
        finally:
            if self._items:
                self._next_turn.schedule()


class DeadlineTimer:
    """Calls `on_due` on the running loop when the earliest armed deadline has come.

    `on_due` does what is due and arms the next deadline; it may also be called too early, with nothing
    due. Deadlines are monotonic seconds of `clock`.
    """

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._handle: asyncio.TimerHandle | None = None
        # Deadline the handle stands for; meaningless without a handle.
        self._deadline_s = 0.0

    def arm(self, deadline_s: float | None) -> None:
        """See to it that `on_due` is called at `deadline_s` or before; None changes nothing."""
        if deadline_s is None:
            return
        if self._handle is not None:
            if self._deadline_s <= deadline_s:
                return
            self._handle.cancel()
        self._deadline_s = deadline_s
        delay_s = max(0.0, deadline_s - self._clock.monotonic_s())
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._on_due()


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
        self._is_stopped = False
        self._timer = DeadlineTimer(clock, self.run)

    def __len__(self) -> int:
        """Return how many are to be done."""
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
        if due.action is None or self._is_stopped:
            return
        due.action = None
        self._cancelled_count += 1
        if self._cancelled_count > CANCELLED_ACTIONS_KEPT + len(self):
            self._heap = [kept for kept in self._heap if kept.action is not None]
            heapq.heapify(self._heap)
            self._cancelled_count = 0

    def run(self) -> None:
        """Do what is due, or the first of very much; the rest in the next turn of the loop."""
        now_s, last_order = self._clock.monotonic_s(), self._order
        # What an action adds is for the next turn of the loop, even when it is due at once.
        turn = LoopSlice(ACTIONS_PER_TURN)
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

    def stop(self) -> None:
        """Do nothing of it any more, and nothing that is added later."""
        self._is_stopped = True
        self._timer.cancel()
        self._heap.clear()
        self._cancelled_count = 0

    def _push(self, due: DueAction) -> None:
        if self._is_stopped:
            return
        heapq.heappush(self._heap, due)
        self._timer.arm(due.due_s)

    def _do(self, due: DueAction) -> None:
        action, due.action = due.action, None
        assert action is not None
        try:
            action()
        except StoreError as error:
            due.action = action
            due.due_s = self._clock.monotonic_s() + ACTION_RETRY_S
            self._push(due)
            self._refused(error)

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not agree."""
        cancelled = sum(due.action is None for due in self._heap)
        assert cancelled == self._cancelled_count <= CANCELLED_ACTIONS_KEPT + len(self)
        assert all(self._heap[(place - 1) // 2] < due for place, due in enumerate(self._heap) if place)


async def happens_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event; False when it has not happened after so long."""
    try:
        # Not wait_for: in Python 3.11 that loses a cancellation which comes with the event.
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def some_at_once(
    work: Callable[[_Item], Awaitable[_Result]], items: Iterable[_Item], *, count: int
) -> list[_Result]:
    """Return what `work` makes of each item, in their order, with so many of them at work at a time."""
    turns = asyncio.Semaphore(count)

    async def one(item: _Item) -> _Result:
        async with turns:
            return await work(item)

    return await asyncio.gather(*map(one, items))
