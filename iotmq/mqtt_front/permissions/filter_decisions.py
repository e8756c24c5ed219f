"""Decide about the filters of a SUBSCRIBE or of a kept session, some in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from iotmq.clock import Clock
from iotmq.mqtt.codec.subscription_options import QOS
from iotmq.mqtt.topics.topics import is_exclusive, is_shared, split_exclusive, split_shared
from iotmq.mqtt_front.permissions.questions import Answer, AskedPolicy, Questions
from iotmq.mqtt_front.permissions.rights import Rights
from iotmq.mqtt_front.permissions.rule import NO_RULE, SUBSCRIBE, Decision, Use
from iotmq.supervised import FAILURES, surviving

# Of one turn, for all that go on in it: a hundred filters or so, and no more than one that takes all the work
# it may.
_TURN_S: Final = 0.001
_FAILURE: Final = "decisions about filters"
_FAILED: Final = Decision(False, NO_RULE, "comparing it with the rules has failed")

Done: TypeAlias = Callable[[list[Decision | None]], None]


class Wanted(NamedTuple):
    """A subscription: its filter as the session has it, and its options."""

    topic_filter: str
    options: int
    is_exclusive: bool = False


class FilterDecisions:
    """Decides about filters, in order; deciders are asked one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, questions: Questions, clock: Clock) -> None:
        self._loop = loop
        self._questions = questions
        self._clock = clock
        # What goes on in the next turn, in order.
        self._waiting: deque[Callable[[], None]] = deque()
        self._has_turn = False

    def decide(self, rights: Rights, wanted: Iterable[Wanted], done: Done) -> None:
        """Call `done`, at once or later, with a decision for each; None for a filter that is none."""
        self._go_on(rights, deque(wanted), [], done)

    def _go_on(self, rights: Rights, left: deque[Wanted], found: list[Decision | None], done: Done) -> None:
        end_s = self._clock.monotonic_s() + _TURN_S
        while left:
            next_one = left[0]
            plain, use = use_of(next_one)
            if plain is None:
                found.append(None)
                left.popleft()
                continue
            policy = rights.policy
            if isinstance(policy, AskedPolicy) and not policy.is_known(SUBSCRIBE, plain):
                told = partial(self._answered, policy, plain, partial(self._go_on, rights, left, found, done))
                self._questions.ask(rights.subject, "subscribe", plain, told)
                return
            try:
                found.append(policy.may_subscribe(plain, use))
            except Exception:
                FAILURES.note(_FAILURE)
                found.append(_FAILED)
            left.popleft()
            if left and self._clock.monotonic_s() >= end_s:
                self._wait(partial(self._go_on, rights, left, found, done))
                return
        done(found)

    def _wait(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)
        self._take_turn()

    def _take_turn(self) -> None:
        if self._waiting and not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Go on with those that wait, as far as one turn goes: their number does not make it longer."""
        self._has_turn = False
        end_s = self._clock.monotonic_s() + _TURN_S
        for _ in range(len(self._waiting)):
            go_on = self._waiting.popleft()
            with surviving(_FAILURE):
                go_on()
            if self._clock.monotonic_s() >= end_s:
                break
        self._take_turn()

    @staticmethod
    def _answered(policy: AskedPolicy, plain: str, go_on: Callable[[], None], answer: Answer) -> None:
        policy.tell(SUBSCRIBE, plain, answer)
        go_on()


def use_of(wanted: Wanted) -> tuple[str | None, Use]:
    """Return the filter that a right is needed for, and how it is used; no filter for what is none."""
    use = Use(SUBSCRIBE, qos=wanted.options & QOS, is_exclusive=wanted.is_exclusive)
    name = wanted.topic_filter
    if name.startswith("\0"):
        return None, use
    try:
        if is_shared(name):
            return split_shared(name)[1], use._replace(is_shared=True)
        if is_exclusive(name):
            return split_exclusive(name), use._replace(is_exclusive=True)
    except ValueError:
        # Refused for what it is.
        return None, use
    return name, use
