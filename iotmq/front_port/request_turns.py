"""Limit the requests under way at a broker; the others wait in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class RequestTurns:
    """Requests in turns: `request` sends now or later, `end` reports each answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, under_way_max: int) -> None:
        self._loop = loop
        self._under_way_max = under_way_max
        self._waiting: deque[Callable[[], None]] = deque()
        self.under_way = 0
        """Requests that are asked and not answered."""

    @property
    def waiting_count(self) -> int:
        """Return the number of requests that wait for their turn."""
        return len(self._waiting)

    def request(self, ask: Callable[[], None]) -> None:
        """Send a request now, or when its turn has come."""
        if self.under_way < self._under_way_max:
            self.under_way += 1
            ask()
        else:
            self._waiting.append(ask)

    def end(self) -> None:
        """Report that a request was answered, or will not be."""
        if self._waiting:
            self._loop.call_soon(self._waiting.popleft())
        else:
            self.under_way -= 1
