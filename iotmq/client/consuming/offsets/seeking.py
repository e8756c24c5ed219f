"""Lag and seeks of consumers that read queues, whether they are asked or call a listener."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from iotmq.client.consuming.offsets import offsets
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.routes import MessageQueue


class SeekingConsumer(Lifetime):
    """A consumer that knows where it is in its queues, and may be moved there."""

    _client: ClientTransport

    @property
    @abstractmethod
    def assigned(self) -> list[MessageQueue]:
        """Return the queues that are read now, sorted."""

    @abstractmethod
    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of each queue below which everything is consumed, where it is known."""

    @abstractmethod
    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue reading `queue` at `offset`; fetched messages of it are dropped."""

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Continue these queues, or all, at the messages stored nearest to a time (as `offset_at_time`)."""
        for queue in queues or self.assigned:
            await self.seek(queue, await self.offset_at_time(queue, timestamp_ms))

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue these queues, or all, at the oldest messages that are still there."""
        for queue in queues or self.assigned:
            await self.seek(queue, await self.begin_offset(queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Skip to now: continue these queues, or all, behind the newest message."""
        for queue in queues or self.assigned:
            await self.seek(queue, await self.end_offset(queue))

    async def lag(self) -> dict[MessageQueue, int]:
        """Ask how many messages of each queue lie between its position and its end."""
        positions = self.positions()
        ends = await asyncio.gather(*(self.end_offset(queue) for queue in positions))
        pairs = zip(positions.items(), ends, strict=True)
        return {queue: max(0, end_offset - position) for (queue, position), end_offset in pairs}

    async def begin_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset of the oldest message that is still there."""
        return await offsets.min_offset(self._client, queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset that the next message will get."""
        return await offsets.max_offset(self._client, queue)

    async def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Ask for the offset of the message stored nearest to a time; the last one's for any later time."""
        return await offsets.offset_at_time(self._client, queue, timestamp_ms)
