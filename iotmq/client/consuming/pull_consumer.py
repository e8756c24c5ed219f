"""Read queues at offsets that the application keeps: assign, seek, poll."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from iotmq.client.consuming import offsets
from iotmq.client.consuming.filter_check import check_filter
from iotmq.client.consuming.pulls import PollBackoff, PullStatus, QueuePulls
from iotmq.client.consuming.queue_reader import COLUMN_BYTES_MAX, CacheRoom
from iotmq.client.transport.client import IotmqClient
from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.message import ReceivedMessage, check_group
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import PullConsumerSettings
from iotmq.client.transport.subscriptions import Subscription, parse_subscription
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConnectionClosedError,
    OffsetMovedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.columns import COLUMNS, Columns, decode_columns
from iotmq.message.records.record import decode_record, iter_records
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

DEFAULT_GROUP: Final = "DEFAULT_PULL_CONSUMER"

# A broker that answers "nothing new" at once, instead of holding the pull, is asked with pauses.
_POLL_BACKOFF_S_MIN: Final = 0.01
_POLL_BACKOFF_S_MAX: Final = 0.5

# Worth trying again without telling the application.
_PASSING: Final = (ConnectionClosedError, RequestTimeoutError, RouteNotFoundError)


def _is_passing(error: Exception) -> bool:
    """Return whether the broker is away for a while, or not master any more."""
    if isinstance(error, BrokerError):
        return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, _PASSING)


class PullConsumer(Lifetime):
    """A consumer that reads assigned queues by `poll`; `async with` starts and stops it.

    It is no member of its group: nothing is divided, and nothing is stored unless `commit` is called.
    One answer per queue is fetched ahead. Brokers that are away for a while are waited for; other
    trouble is raised by the next poll.
    """

    def __init__(
        self,
        client: IotmqClient,
        group: str = DEFAULT_GROUP,
        settings: PullConsumerSettings | None = None,
    ) -> None:
        check_group(group)
        self._client = client
        self.group = group
        self.settings = settings or PullConsumerSettings()
        if self.settings.pull_timeout_ms <= self.settings.hold_ms:
            raise ClientError("pull_timeout_ms must be longer than hold_ms, or every empty pull times out")
        self._room = CacheRoom(self.settings.cached_bytes_max)
        self._fetches: dict[MessageQueue, _Fetch] = {}
        self._ready: deque[_Fetch] = deque()
        """Queues with something to return, in the order it came, each at most once."""
        self._has_ready = asyncio.Event()
        self._is_running = False

    async def start(self) -> None:
        """Allow `assign`; the client must be started."""
        self._client.check_running()
        self._is_running = True

    async def stop(self) -> None:
        """Drop all queues and the messages fetched of them."""
        self._is_running = False
        await asyncio.gather(*(fetch.stop() for fetch in self._fetches.values()))
        self._fetches.clear()
        self._ready.clear()

    # --- what to read -------------------------------------------------------------------------------

    async def queues(self, topic: str, *, timeout_ms: int = 1_000) -> tuple[MessageQueue, ...]:
        """List the queues of `topic`, sorted; RouteNotFoundError when there are none in `timeout_ms`."""
        return (await self._client.routes.find_for_reading(topic, timeout_s=timeout_ms / 1000)).readable

    async def assign(
        self,
        positions: Mapping[MessageQueue, int] | Iterable[MessageQueue],
        *,
        tags: str = "*",
        sql: str | None = None,
    ) -> None:
        """Assign these queues, and no others, from these offsets on (without offsets: from their beginning).

        With `tags` or `sql` only the messages that have them, or that the SQL92 expression is true for;
        SubscriptionError when a broker does not understand it. Queues that are read already keep what was
        fetched unless their offset differs.
        """
        self._check_running()
        if not isinstance(positions, Mapping):
            queues = list(positions)
            begins = await asyncio.gather(*(self.begin_offset(queue) for queue in queues))
            positions = dict(zip(queues, begins, strict=True))
        now_ms = self._client.clock.now_ms()
        wanted = {
            topic: parse_subscription(topic, tags, now_ms, sql=sql)
            for topic in {queue.topic for queue in positions}
        }
        for subscription in wanted.values():
            await check_filter(self._client, self.group, subscription)
        for queue in [queue for queue in self._fetches if queue not in positions]:
            await self._fetches.pop(queue).stop()
        for queue, offset in positions.items():
            subscription = wanted[queue.topic]
            fetch = self._fetches.get(queue)
            if (
                fetch is not None
                and fetch.position == offset
                and fetch.subscription.expression == subscription.expression
                and fetch.subscription.is_sql == subscription.is_sql
            ):
                continue
            if fetch is not None:
                await fetch.stop()
            self._fetches[queue] = self._fetch(queue, subscription, offset)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue reading `queue` at `offset`; fetched messages of it are dropped."""
        fetch = self._fetch_of(queue)
        await fetch.stop()
        self._fetches[queue] = self._fetch(queue, fetch.subscription, offset)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset behind the last message that a poll returned, to be kept and assigned again."""
        return self._fetch_of(queue).position

    def positions(self) -> dict[MessageQueue, int]:
        """Return `position` of all queues."""
        # A copy, because others than the loop's thread may ask while queues come and go.
        return {queue: fetch.position for queue, fetch in tuple(self._fetches.items())}

    # --- reading ------------------------------------------------------------------------------------

    async def poll(self, *, timeout_ms: int = 1_000, records_max: int = 1_024) -> list[ReceivedMessage]:
        """Return the next messages of one queue, in order; empty when none came in `timeout_ms`.

        OffsetMovedError when an offset is outside of its queue (`seek` to get on), BrokerError when
        a broker refuses, MessageFormatError for bytes that are no records.
        """
        while True:
            fetch = await self._next_ready(timeout_ms)
            if fetch is None:
                return []
            try:
                messages = fetch.take(records_max)
            finally:
                self._still_ready(fetch)
            if messages:
                return messages

    async def poll_columns(
        self, *, timeout_ms: int = 1_000, columns: Sequence[str] = COLUMNS, keys: Sequence[str] = ()
    ) -> tuple[MessageQueue, Columns] | None:
        """Return messages of one queue as columns, without an object per message; None after `timeout_ms`.

        `columns` and `keys` (properties by name) name what to decode. A body
        that cannot be inflated is null. Tags are filtered by the broker, which compares their hashes.
        Raises what `poll` raises.
        """
        fetch = await self._next_ready(timeout_ms)
        if fetch is None:
            return None
        try:
            return fetch.queue, fetch.take_columns(columns, keys)
        finally:
            self._still_ready(fetch)

    # --- offsets ------------------------------------------------------------------------------------

    async def begin_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset of the oldest message that is still there."""
        return await offsets.min_offset(self._client, queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset that the next message will get."""
        return await offsets.max_offset(self._client, queue)

    async def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Ask for the offset of the message stored nearest to a time; the last one's for any later time."""
        return await offsets.offset_at_time(self._client, queue, timestamp_ms)

    async def commit(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets of the group: the given ones, else all of `positions()`."""
        chosen = self.positions() if positions is None else positions
        await asyncio.gather(
            *(
                offsets.commit_offset(self._client, self.group, queue, offset)
                for queue, offset in chosen.items()
            )
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """Ask for the offset that the group committed; None when it never did."""
        return await offsets.stored_offset(self._client, self.group, queue)

    # ------------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._is_running:
            raise ClientClosedError(
                "the consumer is not started: use `async with PullConsumer(...)`, or start()"
            )

    def _fetch(self, queue: MessageQueue, subscription: Subscription, offset: int) -> _Fetch:
        poll_backoff = PollBackoff(shortest_s=_POLL_BACKOFF_S_MIN, longest_s=_POLL_BACKOFF_S_MAX)
        pulls = QueuePulls(self._client, self.group, queue, subscription, self.settings, poll_backoff)
        return _Fetch(pulls, self._room, offset, self._became_ready)

    def _fetch_of(self, queue: MessageQueue) -> _Fetch:
        fetch = self._fetches.get(queue)
        if fetch is None:
            raise ClientError(f"queue {queue} is not assigned: call assign() with it first")
        return fetch

    def _became_ready(self, fetch: _Fetch) -> None:
        self._ready.append(fetch)
        self._has_ready.set()

    def _still_ready(self, fetch: _Fetch) -> None:
        # To the end of the line, so that a busy queue does not keep the others waiting.
        if fetch.has_something:
            self._ready.append(fetch)
        else:
            fetch.is_listed = False

    async def _next_ready(self, timeout_ms: int) -> _Fetch | None:
        self._check_running()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            while self._ready:
                fetch = self._ready.popleft()
                if self._fetches.get(fetch.queue) is not fetch:
                    continue
                # Messages that came before a failure are returned before it is raised.
                if fetch.failure is not None and not fetch.has_messages:
                    failure = fetch.take_failure()
                    self._still_ready(fetch)
                    raise failure
                return fetch
            self._has_ready.clear()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._has_ready.wait()
            except TimeoutError:
                return None


class _Fetch:
    """Fetches one queue of a pull consumer ahead: two answers at most, one of them being returned."""

    def __init__(
        self,
        pulls: QueuePulls,
        room: CacheRoom,
        offset: int,
        became_ready: Callable[[_Fetch], None],
    ) -> None:
        self.queue = pulls.queue
        self.subscription = pulls.subscription
        self.position = offset
        """Behind the last message returned."""
        self.failure: Exception | None = None
        """The error that the next poll raises; fetching rests until then."""
        self.is_listed = False
        """True while the consumer has it in its line of ready queues."""
        self._pulls = pulls
        self._room = room
        self._became_ready = became_ready
        self._fetch_offset = offset
        """Where the next pull starts."""
        self._answers: deque[tuple[memoryview, int]] = deque()
        """Fetched records not returned yet, each with the offset behind its answer."""
        self._taken = asyncio.Event()
        self._task = supervise("fetches of a queue", self._fetch_forever)

    @property
    def has_messages(self) -> bool:
        """Return whether a poll would get messages."""
        return bool(self._answers)

    @property
    def has_something(self) -> bool:
        """Return whether a poll would get messages or an error."""
        return bool(self._answers) or self.failure is not None

    def take_failure(self) -> Exception:
        """Return the failure, once; fetching goes on."""
        assert self.failure is not None
        failure, self.failure = self.failure, None
        self._taken.set()
        return failure

    def take(self, records_max: int) -> list[ReceivedMessage]:
        """Take at most `records_max` messages of the first answer; fewer, or none, when tags differ."""
        view, next_offset = self._answers[0]
        messages = []
        accepts = self.subscription.accepts if self.subscription.tags else None
        at = 0
        position = self.position
        try:
            for taken, record in enumerate(iter_records(view), 1):
                message = ReceivedMessage(self.queue, record)
                if accepts is None or accepts(message.tags):
                    messages.append(message)
                at += record.size
                position = record.queue_offset + 1
                if taken == records_max:
                    break
        except MessageFormatError:
            # What came before the broken record is returned first; the next call starts at it.
            if not at:
                raise
        self._cut(view, at, next_offset, position)
        return messages

    def take_columns(self, columns: Sequence[str], keys: Sequence[str]) -> Columns:
        """Take the first answer as columns, or as much of it as fits one Columns."""
        view, next_offset = self._answers[0]
        result = decode_columns(
            view, columns=columns, keys=keys, bad_bodies="null", bytes_max=COLUMN_BYTES_MAX
        )
        self._cut(view, result.end, next_offset, self._offset_at(view, result.end))
        return result

    def _offset_at(self, view: memoryview, at: int) -> int:
        """Read the offset of the record at byte `at`; the present position where there is none."""
        try:
            return decode_record(view, at).queue_offset
        except MessageFormatError:
            return self.position

    def _cut(self, view: memoryview, at: int, next_offset: int, position: int) -> None:
        """Drop the first `at` bytes of the first answer, which were returned."""
        self._room.free(at)
        if at < len(view):
            self._answers[0] = (view[at:], next_offset)
            self.position = position
        else:
            self._answers.popleft()
            self.position = next_offset
            self._taken.set()

    async def stop(self) -> None:
        """Fetch no more and drop what was fetched."""
        await end([self._task])
        for view, _ in self._answers:
            self._room.free(len(view))
        self._answers.clear()

    async def _fetch_forever(self) -> None:
        while True:
            # One answer waits in `_answers`; the next is being fetched meanwhile.
            while len(self._answers) >= 2 or self.failure is not None:
                self._taken.clear()
                await self._taken.wait()
            while self._room.is_full:
                await self._room.wait_for_less()
            try:
                await self._fetch_once()
                self._pulls.failures.reset()
            except Exception as error:
                if _is_passing(error):
                    _log.debug("pull from %s waits: %s", self.queue, error)
                    self._pulls.broker_id = MASTER_ID
                    await self._pulls.rest()
                    continue
                self.failure = error
                self._list()
                await self._pulls.rest()

    async def _fetch_once(self) -> None:
        pulled = await self._pulls.pull(self._fetch_offset)
        if pulled.status is PullStatus.OFFSET_MOVED:
            raise OffsetMovedError(
                f"{self.queue}: offset {self._fetch_offset} is outside of {pulled.min_offset} to "
                f"{pulled.max_offset}: seek() to {pulled.next_offset} to go on",
                pulled.next_offset,
            )
        if pulled.status is PullStatus.FOUND and len(pulled.records):
            self._pulls.poll_backoff.reset()
            view = memoryview(pulled.records)
            self._answers.append((view, pulled.next_offset))
            self._room.add(len(view))
            self._fetch_offset = pulled.next_offset
            self._list()
        elif pulled.next_offset > self._fetch_offset:
            self._fetch_offset = pulled.next_offset
            if not self._answers:
                self.position = pulled.next_offset
        else:
            await self._pulls.poll_backoff.after_empty()

    def _list(self) -> None:
        if not self.is_listed:
            self.is_listed = True
            self._became_ready(self)
