"""Whether what clients saw of one object fits one order of their calls, each between start and answer.

The search of Wing and Gong with the memory of Lowe: calls are put in order one after the other, each that
no other one has to precede, and no pair of (calls in order, state of the object) is looked at twice. A call
without an answer may have taken effect at any time since its start, or not at all.

Objects are a value that is replaced by its version, and a lock that runs out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

# Of pairs of calls and state, for one object: more is given up.
STEPS_MAX: Final = 200_000
_SHOWN_MAX: Final = 12


class SearchGivenUpError(Exception):
    """The search took too long: nothing is known about the history."""


class Call(NamedTuple):
    """What a client asked for, and was answered; times are of one monotonic clock."""

    client: str
    invoked_s: float
    done_s: float
    """When it was answered; for one without an answer when it may have taken effect at the latest."""
    action: Hashable
    result: object = None
    is_answered: bool = True


class Model(Protocol[S]):
    """An object that does one call at a time."""

    initial: S

    def step(self, state: S, call: Call, now_s: float) -> S | None:
        """Return the state behind a call, or None where it cannot have been answered so.

        It took effect at `now_s` or later, and at `call.done_s` or before.
        """


def contradiction(
    calls: Sequence[Call], model: Model[S], *, steps_max: int = STEPS_MAX
) -> Sequence[Call] | None:
    """Return None for a history that fits some order, else the shortest beginning of it that fits none.

    It ends with an answer. Calls that were answered later are in it as calls without an answer.
    SearchGivenUpError.
    """
    if _Search(calls, model, steps_max).finds_order():
        return None
    ends = sorted(call.done_s for call in calls if call.is_answered)
    fits, fits_not = 0, len(ends)
    while fits_not - fits > 1:
        middle = (fits + fits_not) // 2
        if _Search(_until(calls, ends[middle - 1]), model, steps_max).finds_order():
            fits = middle
        else:
            fits_not = middle
    return _until(calls, ends[fits_not - 1])


def describe(calls: Sequence[Call]) -> str:
    """Return the end of a history, a line for each call."""
    ordered = sorted(calls, key=lambda call: (call.done_s, call.invoked_s))
    answered = [call for call in ordered if call.is_answered]
    lines = [
        f"  {call.invoked_s:.3f} to {call.done_s:.3f} {call.client}: {call.action} -> {call.result}"
        for call in answered[-_SHOWN_MAX:]
    ]
    lines += [
        f"  {call.invoked_s:.3f} {call.client}: {call.action}, no answer"
        for call in ordered[len(answered) :][-_SHOWN_MAX:]
    ]
    return "\n".join([f"after {len(answered)} answers no order fits; the last of them:", *lines])


def _until(calls: Sequence[Call], end_s: float) -> list[Call]:
    return [
        call if call.done_s <= end_s else call._replace(result=None, is_answered=False)
        for call in calls
        if call.invoked_s <= end_s
    ]


class _Search(Generic[S]):
    """Look for one order; sets of calls are numbers with a bit for each."""

    def __init__(self, calls: Sequence[Call], model: Model[S], steps_max: int) -> None:
        ordered = sorted(calls, key=lambda call: call.invoked_s)
        self._answered = [call for call in ordered if call.is_answered]
        self._open = [call for call in ordered if not call.is_answered]
        self._model = model
        self._steps_max = steps_max
        # When open calls are over, and the set of those that are over by then.
        self._overs: list[tuple[float, int]] = [(-math.inf, 0)]
        for done_s, index in sorted((call.done_s, index) for index, call in enumerate(self._open)):
            self._overs.append((done_s, self._overs[-1][1] | 1 << index))

    def finds_order(self) -> bool:
        whole = (1 << len(self._answered)) - 1
        first = (0, 0, self._model.initial)
        seen = {first}
        # With the earliest time at which the next call can have taken effect.
        stack = [(*first, -math.inf)]
        while stack:
            answered, unanswered, state, since_s = stack.pop()
            if answered == whole:
                return True
            for step in self._steps(answered, unanswered, state, since_s):
                # Whether a call took effect that is over by then does not matter.
                over = self._overs[bisect_left(self._overs, (step[3], 0)) - 1][1]
                known = (step[0], step[1] | over, step[2])
                if known not in seen:
                    seen.add(known)
                    stack.append((*known, step[3]))
            if len(seen) > self._steps_max:
                raise SearchGivenUpError(f"no order found and none excluded after {self._steps_max} steps")
        return False

    def _steps(
        self, answered: int, unanswered: int, state: S, since_s: float
    ) -> list[tuple[int, int, S, float]]:
        """Return what can be next, the likeliest last: the call that is answered first."""
        index = (~answered & (answered + 1)).bit_length() - 1
        end_s = math.inf
        nexts: list[tuple[float, int, Call]] = []
        # Whoever began after another one's answer comes behind it.
        while index < len(self._answered) and (call := self._answered[index]).invoked_s <= end_s:
            if not answered >> index & 1:
                nexts.append((call.done_s, index, call))
                end_s = min(end_s, call.done_s)
            index += 1
        steps = self._open_steps(answered, unanswered, state, since_s=since_s, end_s=end_s)
        for _done_s, index, call in sorted(nexts, reverse=True):
            if call.invoked_s <= end_s:
                now_s = max(since_s, call.invoked_s)
                after = self._model.step(state, call, now_s)
                if after == state and now_s == since_s:
                    # It changes nothing for any other one, so it may as well be here.
                    return [(answered | 1 << index, unanswered, state, since_s)]
                if after is not None:
                    steps.append((answered | 1 << index, unanswered, after, now_s))
        return steps

    def _open_steps(
        self, answered: int, unanswered: int, state: S, *, since_s: float, end_s: float
    ) -> list[tuple[int, int, S, float]]:
        steps: list[tuple[int, int, S, float]] = []
        tried: set[Hashable] = set()
        for index, call in enumerate(self._open):
            if call.invoked_s > end_s:
                break
            # Of equal ones the first: it may be at each place where a later one may be.
            now_s = max(since_s, call.invoked_s)
            if unanswered >> index & 1 or call.done_s < now_s or (call.action, call.done_s) in tried:
                continue
            tried.add((call.action, call.done_s))
            after = self._model.step(state, call, now_s)
            # One that changes nothing may as well not have happened.
            if after is not None and after != state:
                steps.append((answered, unanswered | 1 << index, after, now_s))
        return steps


# A value that is replaced by its version ------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """Read the value; answered with a `Version`."""


@dataclass(frozen=True)
class Replace:
    """Replace the value if it has this version; answered with the new version, or with None for a refusal."""

    version: int
    value: bytes


class Version(NamedTuple):
    """A value and its number, which grows with each change; 0 before the first one."""

    number: int
    value: bytes
    is_known: bool = True
    """False: the number is not known yet, but that it is larger than this one."""


class Register:
    """A value that is replaced by its version. No two calls write equal values."""

    initial = Version(0, b"")

    def __init__(self, *, has_others: bool = False) -> None:
        """`has_others`: somebody whose calls are not in the history replaces the value, too."""
        self._has_others = has_others

    def step(self, state: Version, call: Call, now_s: float) -> Version | None:
        if isinstance(call.action, Read):
            found = call.result
            if not isinstance(found, Version):
                return state
            is_later = found.number > state.number
            if found.value == state.value and (is_later if not state.is_known else found == state):
                return found
            return found if self._has_others and is_later else None
        assert isinstance(call.action, Replace)
        version, value = call.action.version, call.action.value
        may_fit = version == state.number if state.is_known else version > state.number
        if not call.is_answered:
            return Version(version, value, is_known=False) if may_fit else state
        if call.result is None:
            # One whose number is not known may be refused.
            return None if may_fit and state.is_known else state
        assert isinstance(call.result, int)
        return Version(call.result, value) if may_fit and call.result > version else None


# A lock that runs out -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lock:
    """Take or renew the lock; answered with whether the client has it."""

    client: str


@dataclass(frozen=True)
class Unlock:
    """Release the lock if the client has it; answered with anything."""

    client: str


@dataclass(frozen=True)
class Forget:
    """Lose the lock, as who keeps it in memory does with its process: a call without an answer."""


class Held(NamedTuple):
    """Who has a lock, nobody for an empty text, and when this became so: at some time between these two."""

    client: str
    earliest_s: float
    latest_s: float


class LeaseLock:
    """A lock that others may take some time after it was renewed last."""

    initial = Held("", 0.0, 0.0)

    def __init__(self, *, least_s: float, most_s: float) -> None:
        """Nobody else is given it before `least_s`, and nobody is refused because of it after `most_s`."""
        self._least_s = least_s
        self._most_s = most_s

    def step(self, state: Held, call: Call, now_s: float) -> Held | None:
        action = call.action
        # Nobody is free before another one's time was over.
        free = Held("", state.earliest_s, 0.0) if state.earliest_s > now_s else self.initial
        now_s = max(now_s, state.earliest_s)
        if call.done_s < now_s:
            return None
        if isinstance(action, Forget):
            return free if state.client else state
        if isinstance(action, Unlock):
            return free if state.client == action.client else state
        assert isinstance(action, Lock)
        is_free = state.client in ("", action.client)
        if call.is_answered and not call.result:
            # It has to be held by another one, whose time may not be over yet.
            return None if is_free or now_s - state.latest_s > self._most_s else state
        if not is_free:
            now_s = max(now_s, state.earliest_s + self._least_s)
        if now_s <= call.done_s:
            return Held(action.client, now_s, call.done_s)
        return None
