"""Limit the bytes that all queues of a consumer have fetched."""

from __future__ import annotations

import asyncio
from typing import Final

# One Columns object is handed over at a time, so a pull of many inflated bodies comes in several.
COLUMN_BYTES_MAX: Final = 64 * 1024 * 1024


class CacheRoom:
    """Counts the bytes that all queues of a consumer have fetched and not consumed, and limits them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._freed = asyncio.Event()
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether queues that have something cached must not fetch more."""
        return self.bytes >= self._bytes_max

    def add(self, size: int) -> None:
        """Count `size` fetched bytes."""
        self.bytes += size

    def free(self, size: int) -> None:
        """Release `size` bytes that are consumed or dropped."""
        self.bytes -= size
        self._freed.set()

    async def wait_for_less(self) -> None:
        """Return after the next `free`."""
        self._freed.clear()
        await self._freed.wait()
