"""Note what a listener decides about single messages while it has them, and how long it may take."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from iotmq.client.transport.application_calls import TIMED_CALL
from iotmq.client.transport.message import ReceivedMessage, Settlement
from iotmq.errors import ClientError

# The delays brokers have unless they are configured otherwise, level 1 first.
_LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
_DEAD_LETTER_LEVEL: Final = -1


class Delivery:
    """One call of a listener; `async with` bounds its time and ends what its messages may say."""

    __slots__ = ("_timeout", "_timeout_s", "has_timed_out", "settled")

    def __init__(self, messages: list[ReceivedMessage], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timeout: asyncio.Timeout | None = None
        """Set while the listener runs."""
        self.has_timed_out = False
        self.settled: dict[ReceivedMessage, Settlement] = {}
        """The messages that the listener decided about by their methods."""
        for message in messages:
            message.delivery = self

    def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        """Note the decision; the last one counts. ClientError when the listener has returned."""
        self._running()
        self.settled[message] = settlement

    def suspend(self) -> None:
        """Let no time pass until `in_progress`."""
        self._running().reschedule(None)

    def in_progress(self) -> None:
        """Give the listener its whole time again."""
        self._running().reschedule(asyncio.get_running_loop().time() + self._timeout_s)

    def _running(self) -> asyncio.Timeout:
        if self._timeout is None:
            raise ClientError("the listener has returned: what becomes of its messages is decided")
        return self._timeout

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(self._timeout_s)
        TIMED_CALL.set(self)
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timeout = self._running()
        self._timeout = None
        TIMED_CALL.set(None)
        try:
            await timeout.__aexit__(kind, error, trace)
        finally:
            self.has_timed_out = timeout.expired()


def delay_level(settlement: Settlement | None) -> int:
    """Return the delay level that a broker is asked for; 0 leaves it to the broker."""
    if settlement is None or settlement.delay_ms is None:
        return _DEAD_LETTER_LEVEL if settlement is not None and settlement.kind == "term" else 0
    levels = [level for level, delay_s in enumerate(_LEVELS_S, 1) if delay_s * 1_000 >= settlement.delay_ms]
    return levels[0] if levels else len(_LEVELS_S)
