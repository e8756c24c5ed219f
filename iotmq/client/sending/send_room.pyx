"""Limit what a producer has in flight, and let senders wait for room."""

import asyncio
from collections import deque

from iotmq.errors import ProducerBusyError


cdef class SendRoom:
    """Counts sends in flight and their bytes; one send may go past the maxima."""

    def __init__(self, *, Py_ssize_t count_max, Py_ssize_t bytes_max):
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._waiting = deque()
        self._waiting_for_drain = []

    cpdef void add(self, Py_ssize_t size, Py_ssize_t count=1):
        """Count sends that begin."""
        self.count += count
        self._bytes += size

    def remove(self, Py_ssize_t size, Py_ssize_t count=1):
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

    def refuse_when_full(self):
        """Raise ProducerBusyError while there is no room."""
        if self.has_none():
            raise ProducerBusyError(
                f"{self.count} sends with {self._bytes} bytes wait for their answers: await room() first, or "
                "raise in_flight_max / in_flight_bytes_max"
            )

    async def wait(self):
        """Wait until there is room."""
        loop = asyncio.get_running_loop()
        while self.has_none():
            future = loop.create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                # The room it was given while being cancelled is for the next one.
                self._wake()
                raise
            # So it is when the sender does not take it now: what it has to send may be refused.
            loop.call_soon(self._wake)

    async def drain(self):
        """Wait until nothing is in flight."""
        # What a refused request had comes back in the same turn.
        while self.count:
            future = asyncio.get_running_loop().create_future()
            self._waiting_for_drain.append(future)
            await future

    @property
    def is_full(self):
        """Return whether senders have to wait."""
        return self.has_none()

    @property
    def waiting_count(self):
        """Return the number of senders that wait for room."""
        return len(self._waiting)

    cdef bint has_none(self) noexcept:
        return self.count >= self._count_max or self._bytes >= self._bytes_max

    def _wake(self):
        """Let as many waiting senders go on as there is room for, and forget those that have given up."""
        cdef Py_ssize_t free = 0 if self.has_none() else self._count_max - self.count
        while self._waiting and (free > 0 or self._waiting[0].done()):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1
