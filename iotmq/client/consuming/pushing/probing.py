"""Rest after failures, and try one message before the rest: what fails for all fails for few."""

from __future__ import annotations

import asyncio

from iotmq.backoff import Backoff
from iotmq.clock import Clock
from iotmq.event_loop import happens_within


class Probing:
    """One consumer's pauses. A failed call makes all its queues rest; then one call with one message, the
    probe, decides: when it succeeds everything goes on, when it fails the next rest is twice as long.
    """

    def __init__(self, clock: Clock, *, rest_s_min: float, rest_s_max: float) -> None:
        """`rest_s_max` 0 never rests."""
        self._clock = clock
        self._rests = Backoff(min_s=rest_s_min, max_s=rest_s_max) if rest_s_max else None
        self._until_s = 0.0
        self._is_probing = False
        self._changed = asyncio.Event()

    @property
    def is_resting(self) -> bool:
        """Return whether a call failed and no probe has succeeded since."""
        return self._rests is not None and self._rests.failures > 0

    async def turn(self) -> bool:
        """Wait until a call may be made; True when it must be a probe, of which `ended` has to be told."""
        while self.is_resting:
            rest_s = self._until_s - self._clock.monotonic_s()
            if not self._is_probing and rest_s <= 0:
                self._is_probing = True
                return True
            self._changed.clear()
            # A probe that runs ends by itself, and wakes those that wait.
            if self._is_probing:
                await self._changed.wait()
            else:
                await happens_within(self._changed, rest_s)
        return False

    def ended(self, *, is_probe: bool, has_failed: bool | None) -> None:
        """Note how a call ended; None for one that was cancelled."""
        if self._rests is None:
            return
        if is_probe:
            self._is_probing = False
            if has_failed is False:
                self._rests.reset()
        # Calls that began before the rest say nothing new.
        if has_failed and (is_probe or not self.is_resting):
            self._until_s = self._clock.monotonic_s() + self._rests.next_s()
        self._changed.set()
