"""Pauses between tries of something that fails: doubling, bounded, and spread by chance."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Pauses that double with each failure until `reset`.

    Each pause is drawn from the upper half of its step, so that a thousand clients that lost one
    broker together do not come back together.
    """

    __slots__ = ("_chance", "_failures", "_max_s", "_min_s")

    def __init__(self, *, min_s: float, max_s: float, chance: Callable[[], float] = random.random) -> None:
        self._min_s = min_s
        self._max_s = max(min_s, max_s)
        self._chance = chance
        self._failures = 0

    def next_s(self) -> float:
        """Count one more failure and return how long to wait."""
        # The exponent is capped because a float overflows after a thousand failures in a row.
        step_s = min(self._max_s, self._min_s * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return step_s * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """Forget the failures: the next pause is the shortest again."""
        self._failures = 0

    @property
    def failures(self) -> int:
        """Return the number of failures in a row."""
        return self._failures
