"""The queues of a pull consumer: a line of those that have something, and how far each is consumed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from iotmq.client.consuming.asked_calls import AskedCalls
from iotmq.client.consuming.cache_room import CacheRoom
from iotmq.client.consuming.members.held_locks import HeldLocks
from iotmq.client.consuming.offsets.group_offsets import GroupOffsets
from iotmq.client.consuming.pulling.queue_fetch import QueueFetch
from iotmq.client.consuming.pulls import PollBackoff, QueuePulls
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PullConsumerSettings
from iotmq.client.transport.subscriptions import Subscription
from iotmq.errors import ClientClosedError, ClientError, IotmqError
from iotmq.event_loop import happens_within

_log = logging.getLogger(__name__)

# A broker that answers "nothing new" at once, instead of holding the pull, is asked with pauses.
_POLL_BACKOFF_S_MIN: Final = 0.01
_POLL_BACKOFF_S_MAX: Final = 0.5
# So long a queue with order that goes waits for the program to come back from its last messages.
_ASKED_WITHIN_S: Final = 60


class PullQueues:
    """Queues that were assigned by the application, or divided to it as a member of its group."""

    def __init__(
        self, client: ClientTransport, group: str, offsets: GroupOffsets, settings: PullConsumerSettings
    ) -> None:
        self.fetches: dict[MessageQueue, QueueFetch] = {}
        self.room = CacheRoom(settings.cached_bytes_max)
        """The bytes that all queues have fetched."""
        self.locks = HeldLocks(client, group, self._lost) if settings.orderly else None
        """Set for an orderly consumer."""
        if self.locks is not None:
            self.locks.on_renewed = self._list_again
        self.calls = AskedCalls(client.interceptors, group)
        """Told of what is returned, and when it is consumed."""
        self._client = client
        self._group = group
        self._offsets = offsets
        self._settings = settings
        self._ready: deque[QueueFetch] = deque()
        """Queues with something to return, in the order it came, each at most once."""
        self._has_ready = asyncio.Event()
        self._returned: QueueFetch | None = None
        """The queue whose messages were returned last, and are consumed when more is asked for."""
        self._was_asked = asyncio.Event()
        self._is_closed = False

    def reopen(self) -> None:
        """Allow queues, after `close`, too."""
        self._is_closed = False

    async def close(self) -> None:
        """End all fetches and what waits for one."""
        self._is_closed = True
        self._has_ready.set()
        self.calls.finish(ClientClosedError("the consumer was stopped before it was asked for more"))
        await asyncio.gather(*(fetch.stop() for fetch in self.fetches.values()))
        if self.locks is not None:
            await asyncio.gather(*(self.locks.release(queue) for queue in self.fetches))
        self.fetches.clear()
        self._ready.clear()

    def read(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        start: int | Callable[[], Awaitable[int]],
        *,
        is_followed: bool = False,
    ) -> None:
        """Begin to read a queue, as QueueFetch says."""
        backoff = PollBackoff(shortest_s=_POLL_BACKOFF_S_MIN, longest_s=_POLL_BACKOFF_S_MAX)
        pulls = QueuePulls(self._client, self._group, queue, subscription, self._settings, backoff)
        self.fetches[queue] = QueueFetch(pulls, self.room, start, self._became_ready, is_followed=is_followed)

    def fetch_of(self, queue: MessageQueue) -> QueueFetch:
        """Find the queue; ClientError when it is not read here."""
        fetch = self.fetches.get(queue)
        if fetch is None:
            raise ClientError(f"queue {queue} is not assigned: call assign() with it first, or subscribe()")
        return fetch

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset; what was fetched is dropped."""
        fetch = self.fetch_of(queue)
        await fetch.stop()
        if self.fetches.get(queue) is fetch:
            is_free = self.locks is None or self.locks.is_held(queue)
            self._read_again(fetch, offset if is_free else partial(self._locked, queue, offset))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return nothing of these queues."""
        for queue in queues:
            self.fetch_of(queue).is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again."""
        for queue in queues:
            self.fetch_of(queue).is_paused = False
        self._list_again()

    # --- the line -----------------------------------------------------------------------------------

    async def next_ready(self, timeout_ms: int | None) -> QueueFetch | None:
        """Return the next queue with messages, raise its failure, or return None when the time is over."""
        self.finish_returned()
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        while not self._is_closed:
            while self._ready:
                fetch = self._ready.popleft()
                if not self.may_return(fetch) or not fetch.has_something:
                    fetch.is_listed = False
                    continue
                # Messages that came before a failure are returned before it is raised.
                if fetch.failure is not None and not fetch.has_messages:
                    failure = fetch.take_failure()
                    self.still_ready(fetch)
                    raise failure
                return fetch
            self._has_ready.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._has_ready.wait()
            except TimeoutError:
                return None
        return None

    def may_return(self, fetch: QueueFetch) -> bool:
        """Return whether the queue is still read, in this way, not paused, and nobody else can have it."""
        return (
            self.fetches.get(fetch.queue) is fetch
            and not fetch.is_paused
            and not fetch.is_leaving
            and (self.locks is None or self.locks.is_held(fetch.queue))
        )

    def still_ready(self, fetch: QueueFetch) -> None:
        """Put a queue that has more to the end of the line, so that it does not keep the others waiting."""
        if fetch.has_something:
            self._ready.append(fetch)
        else:
            fetch.is_listed = False

    def returned(self, fetch: QueueFetch) -> None:
        """Note that messages of the queue were returned."""
        self._returned = fetch

    def finish_returned(self) -> None:
        """Count what was returned last as consumed."""
        fetch, self._returned = self._returned, None
        self._was_asked.set()
        if fetch is not None:
            fetch.consumed = fetch.position
            self.calls.finish()

    def _list_again(self) -> None:
        """List what could not be returned for a while, and has something."""
        for fetch in self.fetches.values():
            if fetch.has_something and not fetch.is_listed and not fetch.is_paused:
                fetch.is_listed = True
                self._became_ready(fetch)

    def _became_ready(self, fetch: QueueFetch) -> None:
        self._ready.append(fetch)
        self._has_ready.set()

    # --- commits ------------------------------------------------------------------------------------

    async def commit_forever(self) -> None:
        """Commit what is consumed every `commit_ms`: work for `supervise`."""
        while True:
            await asyncio.sleep(self._settings.commit_ms / 1000)
            await self.commit_consumed()

    async def commit_consumed(self) -> None:
        """Commit how far each queue is consumed, where that is news; refusals are logged."""
        await asyncio.gather(*(self._commit_one(fetch) for fetch in tuple(self.fetches.values())))
        await self._offsets.save()

    async def _commit_one(self, fetch: QueueFetch) -> None:
        offset = fetch.consumed
        if offset is None or offset == fetch.committed:
            return
        try:
            await self._offsets.commit(fetch.queue, offset)
            fetch.committed = offset
        except IotmqError as error:
            _log.info("offset %d of %s is not committed now: %s", offset, fetch.queue, error)

    # --- as a member of a group ---------------------------------------------------------------------

    @property
    def held(self) -> Collection[MessageQueue]:
        """Return the queues that are read."""
        return self.fetches.keys()

    def open(self, queue: MessageQueue, subscription: Subscription) -> bool:
        """Begin to read a queue at the group's offset."""
        self.read(queue, subscription, partial(self._start, queue), is_followed=True)
        return True

    async def _start(self, queue: MessageQueue) -> int:
        # The former member commits before it unlocks.
        if self.locks is not None:
            await self.locks.hold(queue)
        return await self._offsets.start(queue)

    async def _locked(self, queue: MessageQueue, offset: int) -> int:
        assert self.locks is not None
        await self.locks.hold(queue)
        return offset

    def _lost(self, queue: MessageQueue) -> None:
        """Begin again where the group is: another member may have had the queue."""
        fetch = self.fetches.get(queue)
        if fetch is not None:
            self._read_again(fetch, partial(self._restarted, fetch))

    async def _restarted(self, fetch: QueueFetch) -> int:
        await fetch.stop()
        return await self._start(fetch.queue)

    async def release(self, queue: MessageQueue) -> None:
        """Read a queue no more and commit how far it is consumed."""
        fetch = self.fetches[queue]
        # It stays here until all is done: when this is cancelled, `close` does the rest.
        fetch.is_leaving = True
        if self._settings.auto_commit:
            if self.locks is not None and self._returned is fetch:
                await self._until_asked()
            await self._commit_one(fetch)
        await fetch.stop()
        if self.locks is not None:
            await self.locks.release(queue)
        if self.fetches.get(queue) is fetch:
            del self.fetches[queue]

    async def _until_asked(self) -> None:
        """Wait until what was returned last is done with: until more is asked for."""
        self._was_asked.clear()
        if not await happens_within(self._was_asked, _ASKED_WITHIN_S):
            _log.warning("group %s: nothing was asked for in %d s", self._group, _ASKED_WITHIN_S)

    def refilter(self, subscription: Subscription) -> None:
        """Read the queues of a topic with another subscription, from their next pulls on."""
        for queue, fetch in self.fetches.items():
            if queue.topic == subscription.topic:
                fetch.pulls.subscription = subscription

    def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the queues that are read, and store them."""
        for queue, offset in offsets.items():
            fetch = self.fetches.get(queue)
            if fetch is not None:
                self._read_again(fetch, partial(self._moved, fetch, offset))

    async def _moved(self, fetch: QueueFetch, offset: int) -> int:
        await fetch.stop()
        await self._offsets.commit(fetch.queue, offset)
        return offset

    def _read_again(self, fetch: QueueFetch, start: int | Callable[[], Awaitable[int]]) -> None:
        if fetch.is_leaving:
            return
        self.read(fetch.queue, fetch.pulls.subscription, start, is_followed=fetch.is_followed)
        self.fetches[fetch.queue].is_paused = fetch.is_paused
