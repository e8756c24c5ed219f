"""Time out sends: one timer for all that have the usual timeout."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from iotmq.client.sending.pending_send import PendingSend


class SendDeadlines:
    """Calls `time_out` for each send that has no result in time."""

    def __init__(self, *, usual_s: float, time_out: Callable[[PendingSend], None]) -> None:
        self._usual_s = usual_s
        self._time_out = time_out
        self._deadlines: deque[PendingSend] = deque()
        """Sends with the usual time, so the first ends first; done ones are dropped from the left."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, send: PendingSend, since_s: float | None = None) -> None:
        """Start the timeout of a send, or go on with one that began at `since_s` in loop time."""
        loop = asyncio.get_running_loop()
        send.deadline_s = (loop.time() if since_s is None else since_s) + send.timeout_s
        is_last = not self._deadlines or self._deadlines[-1].deadline_s <= send.deadline_s
        if send.timeout_s != self._usual_s or not is_last:
            timer = loop.call_at(send.deadline_s, self._expire, send)
            # It would keep the message until then.
            send.future.add_done_callback(lambda _: timer.cancel())
            return
        self._deadlines.append(send)
        if self._timer is None:
            self._timer = loop.call_at(send.deadline_s, self._check)

    def tidy(self) -> None:
        """Forget sends that are done."""
        deadlines = self._deadlines
        while deadlines and deadlines[0].future.done():
            deadlines.popleft()

    def stop(self) -> None:
        """Stop the timer: no send times out any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        deadlines = self._deadlines
        while deadlines and (deadlines[0].future.done() or deadlines[0].deadline_s <= now_s):
            self._expire(deadlines.popleft())
        if deadlines:
            self._timer = asyncio.get_running_loop().call_at(deadlines[0].deadline_s, self._check)

    def _expire(self, send: PendingSend) -> None:
        if not send.future.done():
            self._time_out(send)
