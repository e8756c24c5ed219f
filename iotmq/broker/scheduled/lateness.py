"""The most of the last minute or two, for any number of readers."""

from __future__ import annotations

from typing import Final

from iotmq.clock import Clock

_WINDOW_S: Final = 60.0


class Lateness:
    """How late messages came: the last one, and the latest of the last minute or two."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last_ms = 0
        # The most of the present minute and of the one before, and when the present one ends.
        self._most_ms = 0
        self._before_ms = 0
        self._ends_s = clock.monotonic_s() + _WINDOW_S

    def add(self, late_ms: int) -> None:
        """Count a message."""
        self._turn()
        self.last_ms = late_ms
        self._most_ms = max(self._most_ms, late_ms)

    @property
    def most_ms(self) -> int:
        """Return the most of the last minute at least, and of two at most."""
        self._turn()
        return max(self._most_ms, self._before_ms)

    def _turn(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._ends_s:
            return
        # The present minute is of no use any more when another one has passed since it ended.
        self._before_ms = self._most_ms if now_s < self._ends_s + _WINDOW_S else 0
        self._most_ms = 0
        self._ends_s = now_s + _WINDOW_S
