"""Remember what each attempt to pop was given, so that the same attempt made again gets the same messages.

A client makes it again when no answer came. What it was given and is not done becomes ready as if nobody had
had it, so the pop that follows gets it, with the same number of times. Only this process remembers: after a
restart the messages come again when their time is over.
"""

from __future__ import annotations

from typing import NamedTuple

from iotmq import limits
from iotmq.broker.pop.pop_queue import PopQueue
from iotmq.broker.pop.pops import Pops
from iotmq.broker.pop.states import Place

Held = tuple[Place, PopQueue, bytes]
"""A queue with the offsets that are held of it, as `hand_out` returns them."""


class Attempt(NamedTuple):
    """Name an attempt of a group to pop from a topic's queue, -1 for any."""

    group: str
    topic: str
    queue_id: int
    attempt_id: str


class _Given(NamedTuple):
    pop_ms: int
    due_ms: int
    held: list[Held]


class PopAttempts:
    """The attempts whose messages have time left; of too many the last ones. For the event loop's thread."""

    def __init__(self, pops: Pops) -> None:
        self._pops = pops
        # In the order in which they were answered.
        self._given: dict[Attempt, _Given] = {}

    def __len__(self) -> int:
        return len(self._given)

    def note(self, attempt: Attempt, held: list[Held], *, pop_ms: int, due_ms: int) -> None:
        """Remember what an attempt was given."""
        while self._given:
            oldest = next(iter(self._given))
            if len(self._given) < limits.POP_ATTEMPTS_MAX and self._given[oldest].due_ms > pop_ms:
                break
            del self._given[oldest]
        self._given[attempt] = _Given(pop_ms, due_ms, held)

    def take_back(self, attempt: Attempt) -> set[Place]:
        """Have ready what an attempt was given and still holds; returns the queues."""
        given = self._given.pop(attempt, None)
        places: set[Place] = set()
        if given is None:
            return places
        for place, queue, offsets in given.held:
            if self._pops.find(place) is queue:
                queue.give_back(offsets, given.pop_ms)
                self._pops.note(place, queue)
                places.add(place)
        return places

    def clear(self) -> None:
        """Forget all: another broker may be master."""
        self._given.clear()
