"""Stop asking what fails again and again, and try now and then whether it is back."""

from __future__ import annotations

import threading

from iotmq.clock import Clock


class Breaker:
    """Counts failures in a row, of any thread."""

    def __init__(self, clock: Clock, *, failures_max: int, pause_s: float) -> None:
        """0 failures: ask always."""
        self._clock = clock
        self._failures_max = failures_max
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._failures = 0
        # When one may try; None while all may ask.
        self._tries_at_s: float | None = None
        self.opened_total = 0

    @property
    def is_open(self) -> bool:
        return self._tries_at_s is not None

    def may_ask(self) -> bool:
        """Return whether to ask now; who was let through reports how it went."""
        with self._lock:
            if self._tries_at_s is None:
                return True
            now_s = self._clock.monotonic_s()
            if now_s < self._tries_at_s:
                return False
            # One tries; the next one does when it has not reported after as long.
            self._tries_at_s = now_s + self._pause_s
            return True

    def succeeded(self) -> None:
        """There was an answer, whatever it is."""
        with self._lock:
            self._failures = 0
            self._tries_at_s = None

    def failed(self) -> bool:
        """There was none. True when it is left alone from now on because of that."""
        with self._lock:
            self._failures += 1
            if not self._failures_max or self._failures < self._failures_max:
                return False
            was_open = self._tries_at_s is not None
            self._tries_at_s = self._clock.monotonic_s() + self._pause_s
            self.opened_total += not was_open
            return not was_open
