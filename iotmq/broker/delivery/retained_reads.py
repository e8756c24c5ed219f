"""Look-ups of retained messages, some of their work in each turn of the loop, whoever asked.

A filter with a wildcard may make the broker look at all there are, and a SUBSCRIBE may have a thousand of
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from iotmq.broker.delivery.retained import RetainedProjection
from iotmq.errors import StoreError
from iotmq.event_loop import NextTurn
from iotmq.limits import RETAINED_TURN_WORK_BYTES_MAX
from iotmq.ports.sessions import Refused, RetainedRead, RetainedRecords
from iotmq.remoting.codes import ResponseCode

Done = Callable[[RetainedRecords | Refused], None]


class RetainedReads:
    """Answers reads in the order they came: at once while the turn has work left, else in a later one."""

    def __init__(self, retained: RetainedProjection) -> None:
        self._retained = retained
        self._left_bytes = RETAINED_TURN_WORK_BYTES_MAX
        self._waiting: deque[tuple[RetainedRead, Done]] = deque()
        self._next_turn = NextTurn(self._begin_turn)

    def read(self, request: RetainedRead, done: Done) -> None:
        """Find a page."""
        self._waiting.append((request, done))
        self._next_turn.schedule()
        self._answer_some()

    def _begin_turn(self) -> None:
        self._left_bytes = RETAINED_TURN_WORK_BYTES_MAX
        if self._waiting:
            self._next_turn.schedule()
            self._answer_some()

    def _answer_some(self) -> None:
        while self._waiting and self._left_bytes > 0:
            request, done = self._waiting.popleft()
            done(self._find(request))

    def _find(self, request: RetainedRead) -> RetainedRecords | Refused:
        try:
            page = self._retained.find(
                request.topic_filter,
                after=request.after,
                records_max=request.records_max,
                bytes_max=request.bytes_max,
                work_bytes_max=self._left_bytes,
            )
        except StoreError as error:
            self._left_bytes = 0
            return Refused(ResponseCode.SYSTEM_ERROR, f"retained messages cannot be read: {error}")
        self._left_bytes -= page.work_bytes
        return RetainedRecords(page.records, page.after)
