"""Keep how far a group, or a member that is alone with its offsets, has come in its queues."""

from __future__ import annotations

from pathlib import Path

from iotmq.client.consuming.offsets.offsets import (
    commit_offset,
    max_offset,
    min_offset,
    offset_at_time,
    stored_offset,
)
from iotmq.client.consuming.offsets.offsets_file import OffsetsFile
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import RETRY_PREFIX
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PullConsumerSettings, PushConsumerSettings
from iotmq.errors import ClientError


class GroupOffsets:
    """The offsets of a group at its brokers; in broadcasting those of this member, in memory or a file."""

    def __init__(
        self, client: ClientTransport, group: str, settings: PushConsumerSettings | PullConsumerSettings
    ) -> None:
        self._client = client
        self._group = group
        self._settings = settings
        self.are_shared = settings.model == "clustering"
        """True when other members of the group may commit, too."""
        is_manual = isinstance(settings, PullConsumerSettings) and not settings.auto_commit
        self._is_start_committed = not is_manual or settings.consume_from != "first"
        """False when only the application commits, and nobody who takes over can begin behind this one."""
        self._own: dict[MessageQueue, int] = {}
        """Broadcasting: how far each queue is consumed."""
        if settings.offsets_file and self.are_shared:
            raise ClientError(
                "offsets_file is for broadcasting: the brokers keep the offsets of a group that shares"
            )
        self._file = OffsetsFile(Path(settings.offsets_file), group) if settings.offsets_file else None

    def open(self) -> None:
        """Read the offsets that an earlier life left in the file; ClientError when that cannot be done."""
        if self._file is not None:
            self._own = self._file.open()

    def close(self) -> None:
        """Leave the file to others."""
        if self._file is not None:
            self._file.close()

    async def save(self) -> None:
        """Write the file when offsets were committed; a disk that refuses is logged."""
        if self._file is not None:
            await self._file.save(self._own)

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the offset that was committed; None when none ever was."""
        if self.are_shared:
            return await stored_offset(self._client, self._group, queue)
        return self._own.get(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the offset of a queue."""
        if self.are_shared:
            await commit_offset(self._client, self._group, queue, offset)
        else:
            self._own[queue] = offset

    async def start(self, queue: MessageQueue) -> int:
        """Return the offset to begin at: the stored one, or what `consume_from` says."""
        stored = await self.stored(queue)
        if stored is not None:
            return stored
        first = await self._first(queue)
        if self._is_start_committed:
            # Now, or who takes over before the first commit begins behind what has come meanwhile.
            await self.commit(queue, first)
            await self.save()
        return first

    async def _first(self, queue: MessageQueue) -> int:
        settings = self._settings
        if queue.topic.startswith(RETRY_PREFIX) or settings.consume_from == "first":
            return await min_offset(self._client, queue)
        if settings.consume_from == "timestamp":
            return await offset_at_time(self._client, queue, settings.consume_from_timestamp_ms)
        return await max_offset(self._client, queue)
