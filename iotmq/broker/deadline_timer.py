"""One loop timer for a part that keeps many deadlines itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iotmq.clock import Clock


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
