"""Waiting for a condition with a deadline: what tests do instead of sleeping for long enough."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Between two looks: first this, and twice as long each time up to that.
_FIRST_STEP_S = 0.001
STEP_S = 0.02
# What a condition may take on a busy machine: nobody waits so long for one that holds.
WITHIN_S = 30.0
# What a stop may take there: its own limits add up to less than two seconds.
STOP_S = 10.0


def eventually(
    condition: Callable[[], T], what: str, *, within_s: float = WITHIN_S, step_s: float | None = None
) -> T:
    """The first truthy value of `condition`; AssertionError naming `what` after `within_s`.

    OSError of a condition counts as "not yet": what is asked may still be starting. With `step_s` all looks
    are so far apart.
    """
    steps_s = _steps_s(step_s)
    deadline_s = time.monotonic() + within_s
    value: T | OSError
    while True:
        try:
            value = condition()
            if value:
                return value
        except OSError as error:
            value = error
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {within_s} s: {what} (last: {value!r})")
        time.sleep(next(steps_s))


async def soon(
    condition: Callable[[], T], what: str, *, within_s: float = WITHIN_S, step_s: float | None = None
) -> T:
    """`eventually` for coroutines."""
    steps_s = _steps_s(step_s)
    deadline_s = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {within_s} s: {what} (last: {value!r})")
        await asyncio.sleep(next(steps_s))


async def until(condition: Callable[[], T]) -> T:
    """`soon` for what happens at once: in the next turns of the loop, or over a socket of this process."""
    return await soon(condition, "what the test waits for", step_s=0.001)


def _steps_s(step_s: float | None) -> Iterator[float]:
    """Yield how long to wait before each further look."""
    if step_s is not None:
        return itertools.repeat(step_s)
    growing = [_FIRST_STEP_S * 2**number for number in range(5)]
    return itertools.chain(growing, itertools.repeat(STEP_S))
