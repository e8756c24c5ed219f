"""Give questions to a service their turns: so many at one time, so many a second, and the others wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Pace:
    """The turns at one service, in the order in which they were asked for. On one event loop."""

    def __init__(self, *, at_once_max: int, per_s_max: float, waiting_max: int) -> None:
        """0 for `per_s_max`: without that limit."""
        self._at_once_max = at_once_max
        self._interval_s = 1.0 / per_s_max if per_s_max else 0.0
        # What a second allows may begin at once after a pause.
        self._burst_s = max(1.0, self._interval_s) if per_s_max else 0.0
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[asyncio.Future[bool], Callable[[], bool]]] = deque()
        self._under_way = 0
        # When the next question may begin, in seconds of the loop; long ago after a pause.
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def under_way_count(self) -> int:
        return self._under_way

    async def turn(self, is_wanted: Callable[[], bool], *, wait_s: float) -> bool:
        """Wait for a turn, which `done` ends. False when the device has gone by then.

        TimeoutError when so many wait that there is no room, or when it has waited for `wait_s`.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting and self._begin(loop.time()):
            return True
        if len(self._waiting) >= self._waiting_max:
            raise TimeoutError
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((future, is_wanted))
        self._wake(loop)
        try:
            async with asyncio.timeout(wait_s):
                return await future
        except BaseException:
            if future.done() and not future.cancelled() and future.result():
                self.done()  # its turn came in the moment in which it gave up
            # All wait for the same time, so that those who gave up stand in front.
            while self._waiting and self._waiting[0][0].done():
                self._waiting.popleft()
            raise

    def done(self) -> None:
        """The question is answered."""
        self._under_way -= 1
        if self._waiting:
            self._wake(asyncio.get_running_loop())

    def close(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, now_s: float) -> bool:
        if self._under_way >= self._at_once_max or self._next_s > now_s:
            return False
        self._under_way += 1
        if self._interval_s:
            self._next_s = max(self._next_s, now_s - self._burst_s) + self._interval_s
        return True

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        while self._waiting:
            future, is_wanted = self._waiting[0]
            if future.done():  # it has waited for too long
                self._waiting.popleft()
            elif not is_wanted():
                self._waiting.popleft()
                future.set_result(False)
            elif self._begin(now_s):
                self._waiting.popleft()
                future.set_result(True)
            else:
                break
        if self._waiting and self._next_s > now_s and (self._timer is None or self._timer.cancelled()):
            self._timer = loop.call_later(self._next_s - now_s, self._woken, loop)

    def _woken(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._wake(loop)
