"""The queues of a push consumer: a reader for each, and how far it is consumed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

from iotmq.client.consuming.cache_room import CacheRoom
from iotmq.client.consuming.members.held_locks import HeldLocks
from iotmq.client.consuming.offsets.group_offsets import GroupOffsets
from iotmq.client.consuming.pulls import PollBackoff, QueuePulls
from iotmq.client.consuming.pushing.listener_calls import ListenerCalls
from iotmq.client.consuming.pushing.queue_reader import QueueReader
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PushConsumerSettings
from iotmq.client.transport.subscriptions import Subscription
from iotmq.errors import ClientError, IotmqError

_log = logging.getLogger(__name__)

# A broker that answers "nothing new" at once, instead of holding the pull, is asked with pauses.
_POLL_BACKOFF_S_MIN: Final = 0.02
_POLL_BACKOFF_S_MAX: Final = 1.0


class PushQueues:
    """Readers for the queues of one member of a group; each calls the listener."""

    def __init__(
        self,
        client: ClientTransport,
        calls: ListenerCalls,
        offsets: GroupOffsets,
        settings: PushConsumerSettings,
        freed: Callable[[], None],
    ) -> None:
        """`freed` is called when a queue that was given up can be read again."""
        self.readers: dict[MessageQueue, QueueReader] = {}
        self.room = CacheRoom(settings.cached_bytes_max)
        """The bytes that all queues have fetched."""
        self._client = client
        self._calls = calls
        self._offsets = offsets
        self._settings = settings
        self._freed = freed
        self.locks = HeldLocks(client, calls.group, self._lost) if settings.orderly else None
        """Set for an orderly consumer."""
        if self.locks is not None:
            calls.until_allowed = self.locks.until_held
        self._closing: dict[MessageQueue, asyncio.Task[None]] = {}
        """Queues we lost whose listener calls are still running."""

    async def close(self) -> None:
        """End all readers and commit what they have done."""
        closing = (self._close(reader) for reader in self.readers.values())
        await asyncio.gather(*closing, *self._closing.values())
        # Not of queues that the broker has moved meanwhile: their offsets are set by what closes them.
        await self.commit(tuple(self.readers.values()))
        if self.locks is not None:
            await asyncio.gather(*(self.locks.release(queue) for queue in self.readers))
        self.readers.clear()
        await asyncio.gather(*self._closing.values())

    def are_worked_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task is one of those that call the listener."""
        return any(task in reader.workers for reader in self.readers.values())

    @property
    def held(self) -> Collection[MessageQueue]:
        """Return the queues that have a reader; those of the retry topic, too."""
        return self.readers.keys()

    def open(self, queue: MessageQueue, subscription: Subscription) -> bool:
        """Begin to read a queue; False while its last calls still run here."""
        if queue in self._closing:
            return False
        backoff = PollBackoff(shortest_s=_POLL_BACKOFF_S_MIN, longest_s=_POLL_BACKOFF_S_MAX)
        pulls = QueuePulls(self._client, self._calls.group, queue, subscription, self._settings, backoff)
        self.readers[queue] = QueueReader(
            pulls,
            self._settings,
            self.room,
            as_columns=self._calls.wants_columns,
            start_offset=self._start,
            handle=self._calls.handle,
        )
        return True

    async def _start(self, queue: MessageQueue) -> int:
        # The former member commits before it unlocks.
        if self.locks is not None:
            await self.locks.hold(queue)
        return await self._offsets.start(queue)

    def _lost(self, queue: MessageQueue) -> None:
        if queue in self.readers:
            self._give_up(queue, self._close(self.readers.pop(queue)))

    def pause(self, queues: Collection[MessageQueue], *, is_paused: bool) -> None:
        """Hand over nothing of these queues, or messages again."""
        for queue in queues:
            if queue not in self.readers:
                raise ClientError(f"queue {queue} is not assigned to this member")
            self.readers[queue].pause(is_paused=is_paused)

    async def release(self, queue: MessageQueue) -> None:
        """Read a queue no more; what runs may end in the background."""
        self._give_up(queue, self._close_reader(self.readers.pop(queue)))

    def refilter(self, subscription: Subscription) -> None:
        """Read the queues of a topic with another subscription, from their next pulls on."""
        for queue, reader in self.readers.items():
            if queue.topic == subscription.topic:
                reader.subscribe(subscription)

    def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in this member's queues; fetched messages of them are dropped."""
        for queue, offset in offsets.items():
            if queue in self.readers:
                self._give_up(queue, self._move_reader(self.readers.pop(queue), offset))

    def _give_up(self, queue: MessageQueue, closing: Coroutine[None, None, None]) -> None:
        """Free the queue for a new reader, here or elsewhere, when `closing` has ended."""
        task = asyncio.ensure_future(closing)
        self._closing[queue] = task

        def closed(_: asyncio.Task[None]) -> None:
            self._closing.pop(queue, None)
            self._freed()

        task.add_done_callback(closed)

    async def _close(self, reader: QueueReader) -> None:
        self._calls.left_total += await reader.close()

    async def _close_reader(self, reader: QueueReader) -> None:
        await self._finish_reader(reader)
        if self.locks is not None:
            await self.locks.release(reader.queue)

    async def _finish_reader(self, reader: QueueReader) -> None:
        # At once, because the new owner asks for the offset now.
        await self.commit([reader])
        await self._close(reader)
        if reader.committable == reader.committed or not self._offsets.are_shared:
            await self.commit([reader])
            return
        # What the last calls finished counts only if no new owner has committed meanwhile.
        try:
            if await self._offsets.stored(reader.queue) == reader.committed:
                await self.commit([reader])
        except IotmqError as error:
            _log.info("the last offset of %s is not committed: %s", reader.queue, error)

    async def _move_reader(self, reader: QueueReader, offset: int) -> None:
        await self._close(reader)
        try:
            await self._offsets.commit(reader.queue, offset)
            _log.info("group %s goes on at offset %d of %s", self._calls.group, offset, reader.queue)
        except IotmqError as error:
            _log.warning(
                "group %s is not moved to %d of %s: %s", self._calls.group, offset, reader.queue, error
            )

    async def commit_forever(self) -> None:
        """Commit every `commit_ms`: work for `supervise`."""
        while True:
            await asyncio.sleep(self._settings.commit_ms / 1000)
            await self.commit(tuple(self.readers.values()))

    async def commit(self, readers: Iterable[QueueReader]) -> None:
        """Commit how far these readers have come, where that is news; refusals are logged."""

        async def one(reader: QueueReader, offset: int) -> None:
            try:
                await self._offsets.commit(reader.queue, offset)
                reader.committed = offset
            except IotmqError as error:
                _log.info("offset %d of %s is not committed now: %s", offset, reader.queue, error)

        await asyncio.gather(
            *(
                one(reader, reader.committable)
                for reader in readers
                if reader.committable is not None and reader.committable != reader.committed
            )
        )
        await self._offsets.save()
