"""Limit what a producer has in flight, and let senders wait for room."""

from __future__ import annotations

import asyncio
from collections import deque

from iotmq.errors import ProducerBusyError


class SendRoom:
    """Counts sends in flight and their bytes; one send may go past the maxima."""

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._waiting_for_drain: list[asyncio.Future[None]] = []
        self.count = 0
        """Sends without a result yet."""

    def add(self, size: int, count: int = 1) -> None:
        """Count sends that begin."""
        self.count += count
        self._bytes += size

    def remove(self, size: int, count: int = 1) -> None:
        """Discount sends that have ended, and wake waiting senders."""
        self.count -= count
        self._bytes -= size
        if self._waiting:
            self._wake()
        if not self.count and self._waiting_for_drain:
            for waiter in self._waiting_for_drain:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting_for_drain.clear()

    def refuse_when_full(self) -> None:
        """Raise ProducerBusyError while there is no room."""
        if self.is_full:
            raise ProducerBusyError(
                f"{self.count} sends with {self._bytes} bytes wait for their answers: await room() first, or "
                "raise in_flight_max / in_flight_bytes_max"
            )

    async def wait(self) -> None:
        """Wait until there is room."""
        loop = asyncio.get_running_loop()
        while self.is_full:
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                # The room it was given while being cancelled is for the next one.
                self._wake()
                raise
            # So it is when the sender does not take it now: what it has to send may be refused.
            loop.call_soon(self._wake)

    async def drain(self) -> None:
        """Wait until nothing is in flight."""
        if self.count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_drain.append(future)
            await future

    @property
    def is_full(self) -> bool:
        """Return whether senders have to wait."""
        return self.count >= self._count_max or self._bytes >= self._bytes_max

    def _wake(self) -> None:
        """Let as many waiting senders go on as there is room for."""
        free = 0 if self.is_full else self._count_max - self.count
        while self._waiting and free > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1
