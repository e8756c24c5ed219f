"""The checker of histories of locks and replaced values: it finds what was planted, and nothing else."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from linearizability import (
    Call,
    Forget,
    Held,
    LeaseLock,
    Lock,
    Model,
    Read,
    Register,
    Replace,
    SearchGivenUpError,
    Unlock,
    Version,
    contradiction,
    describe,
)

LOCK = LeaseLock(least_s=60, most_s=65)
# Of calls without an answer, in histories by chance.
LATE_S = 20.0


def lock(client: str, since_s: float, until_s: float, result: bool | None) -> Call:
    """A call without an answer for None, which may take effect later, too."""
    if result is None:
        return Call(client, since_s, math.inf, Lock(client), is_answered=False)
    return Call(client, since_s, until_s, Lock(client), result)


def unlock(client: str, since_s: float, until_s: float) -> Call:
    return Call(client, since_s, until_s, Unlock(client), is_answered=until_s != math.inf)


def forget(since_s: float, until_s: float) -> Call:
    return Call("", since_s, until_s, Forget(), is_answered=False)


def read(since_s: float, until_s: float, number: int, value: bytes) -> Call:
    return Call("r", since_s, until_s, Read(), Version(number, value))


def replace(since_s: float, until_s: float, version: int, value: bytes, result: int | None) -> Call:
    is_answered = until_s != math.inf
    return Call("w", since_s, until_s, Replace(version, value), result, is_answered=is_answered)


# What is planted, with the number of answers until it shows -------------------------------------------------

PLANTED: dict[str, tuple[Model[Any], list[Call], int]] = {
    "two holders": (LOCK, [lock("a", 0, 1, True), lock("b", 2, 3, True), lock("a", 4, 5, True)], 2),
    "two holders at once": (LOCK, [lock("a", 0, 5, True), lock("b", 1, 4, True)], 2),
    "granted by a deposed master": (
        LOCK,
        [lock("a", 0, 1, True), unlock("a", 2, 3), lock("b", 4, 5, True), lock("a", 6, 7, True)],
        4,
    ),
    "granted by a deposed master for as long as it is cut off": (
        LOCK,
        [
            *(lock("a", at_s, at_s + 1, True) for at_s in range(0, 80, 20)),
            lock("b", 60.5, 62, True),
            lock("b", 81, 82, True),
        ],
        5,
    ),
    "refused because of nobody": (
        LOCK,
        [lock("a", 0, 1, True), unlock("a", 2, 3), lock("b", 4, 5, False)],
        3,
    ),
    "refused long after the end": (LOCK, [lock("a", 0, 1, True), lock("b", 70, 71, False)], 2),
    "taken before the end": (LOCK, [lock("a", 0, 1, True), lock("b", 50, 59, True)], 2),
    "an unlock is lost": (
        LOCK,
        [lock("a", 0, 1, True), unlock("a", 2, 3), lock("b", 4, 5, None), lock("c", 3.2, 3.8, False)],
        3,
    ),
    "forgotten at another time": (
        LOCK,
        [lock("a", 0, 1, True), forget(1, 2), lock("a", 3, 4, True), lock("b", 5, 6, True)],
        3,
    ),
    "taken by who did not wait": (
        LOCK,
        [lock("a", 0, 1, True), lock("b", 2, 3, None), lock("a", 50, 59, True), lock("c", 52, 53, False),
         unlock("a", 70, 71), lock("c", 72, 73, True), lock("b", 74, 75, True)],
        6,
    ),
    "lost update": (
        Register(),
        [replace(0, 1, 0, b"a", 5), replace(2, 3, 5, b"b", 6), replace(2, 3, 5, b"c", 7)],
        3,
    ),
    "stale read": (
        Register(),
        [replace(0, 1, 0, b"a", 5), replace(2, 3, 5, b"b", 6), read(4, 5, 5, b"a")],
        3,
    ),
    "two reads in turn": (
        Register(),
        [replace(0, 1, 0, b"a", 5), replace(2, math.inf, 5, b"b", None), read(3, 4, 6, b"b"),
         read(5, 6, 5, b"a")],
        3,
    ),
    "refused without a reason": (Register(), [replace(0, 1, 0, b"a", 5), replace(2, 3, 5, b"b", None)], 2),
    "refused, and there all the same": (
        Register(),
        [replace(0, 1, 0, b"a", 5), replace(2, 3, 4, b"b", None), read(4, 5, 6, b"b")],
        3,
    ),
    "a version twice": (
        Register(has_others=True),
        [read(0, 1, 5, b"a"), read(2, 3, 7, b"b"), read(2, 3, 7, b"c")],
        3,
    ),
    "back to an earlier state": (
        Register(has_others=True),
        [read(0, 1, 5, b"a"), read(2, 3, 7, b"b"), read(4, 5, 6, b"c")],
        3,
    ),
    "an open replacement takes place twice": (
        Register(),
        [
            replace(0, 1, 0, b"a", 5), replace(2, math.inf, 5, b"b", None), read(3, 4, 6, b"b"),
            replace(5, 6, 6, b"c", 7), read(7, 8, 8, b"b"),
        ],
        4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_what_was_planted_is_found_with_its_shortest_beginning(kind: str) -> None:
    model, calls, count = PLANTED[kind]
    found = contradiction(calls, model)
    assert found is not None
    assert sum(call.is_answered for call in found) == count
    assert f"after {count} answers no order fits" in describe(found)


ACCEPTED: dict[str, tuple[Model[Any], list[Call]]] = {
    "nothing": (LOCK, []),
    "one after the other": (LOCK, [lock("a", 0, 1, True), unlock("a", 2, 3), lock("b", 4, 5, True)]),
    "at the same time": (LOCK, [lock("a", 0, 5, True), unlock("a", 1, 4), lock("b", 2, 3, True)]),
    "a lock without an answer is held": (LOCK, [lock("a", 0, 1, None), lock("b", 2, 3, False)]),
    "a lock without an answer is not held": (LOCK, [lock("a", 0, 1, None), lock("b", 2, 3, True)]),
    "a lock without an answer comes late": (
        LOCK,
        [lock("a", 0, 1, None), lock("b", 2, 3, True), unlock("b", 4, 5), lock("b", 6, 7, False)],
    ),
    "a lock without an answer is renewed": (
        LOCK,
        [lock("a", 0, 1, True), lock("a", 2, 3, None), lock("b", 90, 91, False)],
    ),
    "an unlock without an answer": (
        LOCK,
        [lock("a", 0, 1, True), unlock("a", 2, math.inf), lock("b", 3, 4, False), lock("b", 5, 6, True)],
    ),
    "taken after the end": (LOCK, [lock("a", 0, 1, True), lock("b", 60, 61, True), lock("a", 62, 63, False)]),
    "not taken within the grace": (LOCK, [lock("a", 0, 1, True), lock("b", 64, 65, False)]),
    "forgotten": (
        LOCK,
        [lock("a", 0, 1, True), forget(2, 3), lock("b", 2, 4, True), lock("a", 5, 6, False)],
    ),
    "forgotten twice": (
        LOCK,
        [lock("a", 0, 1, True), forget(2, 3), lock("b", 2, 4, True),
         forget(5, 6), lock("a", 5, 7, True)],
    ),
    "replaced without an answer": (
        Register(),
        [replace(0, math.inf, 0, b"a", None), replace(2, 3, 0, b"b", None), read(4, 5, 9, b"a")],
    ),
    "replaced without an answer, unseen": (
        Register(),
        [replace(0, math.inf, 0, b"a", None), replace(2, 3, 0, b"b", 4), read(4, 5, 4, b"b")],
    ),
    "a chain without answers": (
        Register(),
        [replace(0, 1, 0, b"a", 5), replace(2, math.inf, 5, b"b", None), read(3, 4, 5, b"a"),
         read(5, 6, 6, b"b"), replace(7, math.inf, 6, b"c", None), replace(8, 9, 6, b"d", None)],
    ),
    "others replace": (
        Register(has_others=True),
        [read(0, 1, 5, b"a"), read(2, 3, 5, b"a"), read(3, 6, 9, b"c"), read(4, 5, 7, b"b")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_history_that_fits_some_order_is_accepted(kind: str) -> None:
    model, calls = ACCEPTED[kind]
    assert contradiction(calls, model) is None


def test_a_search_that_takes_too_long_is_no_success() -> None:
    calls = [lock(f"c{number}", 0, 1, None) for number in range(12)]
    calls += [lock("x", 2, 3, True), lock("y", 4, 5, True)]
    with pytest.raises(SearchGivenUpError, match="after 1000 steps"):
        contradiction(calls, LeaseLock(least_s=1e9, most_s=2e9), steps_max=1_000)


# By chance ------------------------------------------------------------------------------------------------


def lock_history(source: random.Random, count: int, *, names: str = "abc", lost: float = 0.1) -> list[Call]:
    """Return calls of a lock that is as it should be: each takes effect at some time between its two."""
    calls: list[Call] = []
    holder, renewed_s, now_s = "", 0.0, 0.0
    free_s = dict.fromkeys(names, 0.0)
    for _ in range(count):
        client = source.choice(names)
        now_s = max(now_s, free_s[client]) + source.choice([0.01, 0.3, 0.3, 0.3, 30.0])
        since_s = max(free_s[client], now_s - source.random())
        done_s = free_s[client] = now_s + source.random()
        is_lost = source.random() < lost
        is_done = not is_lost or source.random() < 0.5
        result: bool | None = None
        if source.random() < 0.3:
            action: Lock | Unlock = Unlock(client)
            if is_done and holder == client:
                holder = ""
        else:
            action = Lock(client)
            result = holder in ("", client) or now_s - renewed_s > 60
            if is_done and result:
                holder, renewed_s = client, now_s
        calls.append(
            Call(client, since_s, now_s + LATE_S, action, is_answered=False)
            if is_lost
            else Call(client, since_s, done_s, action, result)
        )
    return calls


def register_history(source: random.Random, count: int) -> list[Call]:
    calls: list[Call] = []
    state, now_s = Version(0, b""), 0.0
    for number in range(count):
        now_s += 0.3
        since_s, done_s = now_s - source.random(), now_s + source.random()
        if source.random() < 0.5:
            calls.append(Call("r", since_s, done_s, Read(), state))
            continue
        is_lost = source.random() < 0.2
        action = Replace(source.choice([state.number, state.number, 3]), b"%d" % number)
        result = None
        if action.version == state.number and (not is_lost or source.random() < 0.5):
            result = state.number + source.randint(1, 3)
            state = Version(result, action.value)
        calls.append(
            Call("w", since_s, now_s + LATE_S, action, is_answered=False)
            if is_lost
            else Call("w", since_s, done_s, action, result)
        )
    return calls


@pytest.mark.parametrize("seed", range(50))
def test_a_history_of_what_is_as_it_should_be_is_accepted(seed: int) -> None:
    assert contradiction(lock_history(random.Random(seed), 300), LOCK) is None
    assert contradiction(register_history(random.Random(seed), 300), Register()) is None


def orders(calls: Sequence[Call]) -> Iterator[tuple[Call, ...]]:
    """Every order of the answered calls, and of any of the others among them."""
    answered = [call for call in calls if call.is_answered]
    others = [call for call in calls if not call.is_answered]
    for count in range(len(others) + 1):
        for chosen in itertools.combinations(others, count):
            for order in itertools.permutations([*answered, *chosen]):
                if all(a.invoked_s <= b.done_s for a, b in itertools.combinations(order, 2)):
                    yield order


def fits(calls: Sequence[Call], model: Model[Held]) -> bool:
    for order in orders(calls):
        state: Held | None = model.initial
        now_s = 0.0
        for call in order:
            now_s = max(now_s, call.invoked_s)
            state = None if state is None else model.step(state, call, now_s)
        if state is not None:
            return True
    return False


@pytest.mark.parametrize("seed", range(150))
def test_the_search_says_what_trying_every_order_says(seed: int) -> None:
    """Histories of six calls, in half of which an answer was changed."""
    source = random.Random(seed)
    calls = lock_history(source, 6, lost=0.25)
    at = source.randrange(len(calls))
    if seed % 2 and isinstance(calls[at].action, Lock) and calls[at].is_answered:
        calls[at] = calls[at]._replace(result=not calls[at].result)
    assert (contradiction(calls, LOCK) is None) == fits(calls, LOCK)


@pytest.mark.parametrize("change", [lambda call: call._replace(result=not call.result)])
def test_changed_answers_are_found_in_long_histories(change: Callable[[Call], Call]) -> None:
    found = 0
    for seed in range(30):
        source = random.Random(seed)
        calls = lock_history(source, 200, lost=0.03)
        at = source.choice([n for n, call in enumerate(calls) if call.result is not None])
        calls[at] = change(calls[at])
        found += contradiction(calls, LOCK) is not None
    # A lock that was taken instead of refused may be explained by one without an answer.
    assert found >= 20
