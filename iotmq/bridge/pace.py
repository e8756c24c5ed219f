"""When a stream reads its next batch: once enough has come, or it has waited long enough."""

from __future__ import annotations

from iotmq.clock import Clock, SystemClock


class Pace:
    """Holds a stream back until `rows_min` rows are there, for at most `delay_max_s` since its last batch.

    The first batch after a start is not held back.
    """

    def __init__(self, rows_min: int | None, delay_max_s: float, *, clock: Clock | None = None) -> None:
        self._rows_min = rows_min
        self._delay_max_s = delay_max_s
        self._clock = SystemClock() if clock is None else clock
        self._last_s: float | None = None  # when the last batch was let go; None before the first

    def lets_go(self, rows: int) -> bool:
        """Return whether a batch may begin when so many rows are there."""
        if self._rows_min is None or not rows:
            return True
        now_s = self._clock.monotonic_s()
        is_due = self._last_s is None or now_s >= self._last_s + self._delay_max_s
        if rows < self._rows_min and not is_due:
            return False
        self._last_s = now_s
        return True
