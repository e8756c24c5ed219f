"""Pauses between pulls that bring nothing, for brokers that do not hold them."""

from __future__ import annotations

import asyncio

from iotmq.backoff import Backoff


class PollBackoff:
    """A broker that holds pulls needs no pause; one that answers at once would be asked without end."""

    __slots__ = ("_last_empty_s", "_longest_s", "_pauses")

    def __init__(self, *, shortest_s: float, longest_s: float) -> None:
        self._longest_s = longest_s
        self._pauses = Backoff(min_s=shortest_s, max_s=longest_s)
        self._last_empty_s = 0.0

    def reset(self) -> None:
        """Something came: the next pause is the shortest again."""
        self._pauses.reset()

    async def after_empty(self) -> None:
        """An answer had nothing in it. Returns at once when it took as long as the longest pause."""
        now_s = asyncio.get_running_loop().time()
        last_s, self._last_empty_s = self._last_empty_s, now_s
        if now_s - last_s < self._longest_s:
            await asyncio.sleep(self._pauses.next_s())
        else:
            self._pauses.reset()
