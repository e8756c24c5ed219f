"""Read one queue for a push consumer: fetch ahead, hand batches to the listener, track the progress."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from iotmq.client.consuming.cache_room import COLUMN_BYTES_MAX, CacheRoom
from iotmq.client.consuming.consumer_answers import QueueState
from iotmq.client.consuming.pulls import Pulled, PullStatus, QueuePulls, reconnect_backoff
from iotmq.client.consuming.pushing.progress import QueueProgress
from iotmq.client.transport.application_calls import end_calls
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import PushConsumerSettings
from iotmq.client.transport.subscriptions import Subscription
from iotmq.errors import BrokerError, IotmqError, PeerError
from iotmq.message.records.columns import Columns, iter_columns
from iotmq.message.records.record import iter_records
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import supervise, surviving

_log = logging.getLogger(__name__)

# The time for the end of a call that was cancelled, when there was none to end before.
_CANCELLED_S_MIN: Final = 0.1

Payload: TypeAlias = list[ReceivedMessage] | Columns


class Batch(msgspec.Struct, eq=False, kw_only=True):
    """Messages handed over in one call, and the offsets they stand for."""

    queue: MessageQueue
    payload: Payload
    count: int
    size: int
    first_offset: int
    end_offset: int
    progress: QueueProgress
    """Where its end is noted; not the reader's any more after the broker moved the offset."""


class QueueReader:
    """Reads one queue: one task pulls, and `parallel_batches` tasks call the listener.

    `handle` returns when its batch is done with (consumed, or safely back at the broker); it raises
    only when it is cancelled. `start_offset` is asked again until it gives an offset.
    """

    def __init__(
        self,
        pulls: QueuePulls,
        settings: PushConsumerSettings,
        room: CacheRoom,
        *,
        as_columns: bool,
        start_offset: Callable[[MessageQueue], Awaitable[int]],
        handle: Callable[[Batch], Awaitable[None]],
    ) -> None:
        self.queue = pulls.queue
        self.committed: int | None = None
        """The offset last stored at the broker by this reader."""
        self.records_total = 0
        self._pulls = pulls
        self._settings = settings
        self._room = room
        self._as_columns = as_columns
        self._start_offset = start_offset
        self._handle = handle
        self._progress: QueueProgress | None = None
        """None until the start offset is known."""
        self._waiting: deque[Batch] = deque()
        self._has_waiting = asyncio.Event()
        self.cached_records = 0
        """Messages fetched and not consumed yet."""
        self._cached_bytes = 0
        self._consumed_ms = 0
        """When messages were last consumed; 0 for never."""
        self._is_closing = False
        self._is_paused = False
        self._puller = supervise("pulls of a queue", self._pull_forever)
        self.workers = [supervise("listener calls", self._work) for _ in range(settings.parallel_batches)]

    @property
    def committable(self) -> int | None:
        """Return the offset below which everything is consumed; None until the start offset is known."""
        return None if self._progress is None else self._progress.committable

    @property
    def state(self) -> QueueState:
        """Return the reader's progress for operators; all zero until the start offset is known."""
        progress = self._progress
        return QueueState(
            committable=0 if progress is None else progress.committable,
            next_offset=0 if progress is None else progress.next_offset,
            cached_records=self.cached_records,
            cached_bytes=self._cached_bytes,
            records_total=self.records_total,
            pulled_ms=self._pulls.pulled_ms,
            consumed_ms=self._consumed_ms,
        )

    def subscribe(self, subscription: Subscription) -> None:
        """Filter by another expression from the next pull on."""
        self._pulls.subscription = subscription

    def pause(self, *, is_paused: bool) -> None:
        """Hand over nothing while paused; what is fetched waits, and fetching ends when enough does."""
        self._is_paused = is_paused
        self._has_waiting.set()

    async def close(self) -> int:
        """Stop fetching, drop what waits, and give running calls `stop_timeout_ms` to end.

        Then they are cancelled, and after the same time again they are left behind; returns how many were.
        """
        self._is_closing = True
        self._puller.cancel()
        while self._waiting:
            self._forget(self._waiting.popleft())
        self._has_waiting.set()
        tasks = [self._puller, *self.workers]
        timeout_s = self._settings.stop_timeout_ms / 1000
        ended, late = await asyncio.wait(tasks, timeout=timeout_s)
        await asyncio.gather(*ended, return_exceptions=True)
        what = f"the listener of group {self._pulls.group} for {self.queue}"
        return await end_calls(late, within_s=max(timeout_s, _CANCELLED_S_MIN), what=what)

    # --- fetching -----------------------------------------------------------------------------------

    async def _pull_forever(self) -> None:
        while True:
            try:
                if self._progress is None:
                    self._progress = QueueProgress(await self._start_offset(self.queue))
                    self.committed = None
                while self._is_full():
                    await self._room.wait_for_less()
                await self._pull_once(self._progress)
                self._pulls.failures.reset()
            except PeerError as error:
                # Bytes that are no records: going on would lose them silently, so this stays visible.
                _log.error("queue %s: the broker's answer cannot be read: %s", self.queue, error)
                await self._pulls.rest()
            except IotmqError as error:
                # A broker that is not master any more is away for a while, like one that is not there.
                is_refusal = (
                    isinstance(error, BrokerError) and error.code != ResponseCode.SERVICE_NOT_AVAILABLE
                )
                level = logging.WARNING if is_refusal else logging.DEBUG
                _log.log(level, "pull from %s waits: %s", self.queue, error)
                self._pulls.broker_id = MASTER_ID
                await self._pulls.rest()

    def _is_full(self) -> bool:
        # A queue with nothing cached may always fetch, or one stuck queue would stop all others.
        return self.cached_records >= self._settings.cached_records_max or (
            self._room.is_full and self.cached_records > 0
        )

    async def _pull_once(self, progress: QueueProgress) -> None:
        offset = progress.next_offset
        pulled = await self._pulls.pull(offset)
        if pulled.status is PullStatus.FOUND:
            self._pulls.poll_backoff.reset()
            self._enqueue(pulled, progress)
        elif pulled.status is PullStatus.OFFSET_MOVED:
            self._move(pulled, progress)
        else:
            progress.skipped_to(pulled.next_offset)
        if progress.next_offset == offset and self._progress is progress:
            await self._pulls.poll_backoff.after_empty()

    def _move(self, pulled: Pulled, progress: QueueProgress) -> None:
        _log.warning(
            "queue %s: offset %d is outside of %d..%d, going on at %d",
            self.queue,
            progress.next_offset,
            pulled.min_offset,
            pulled.max_offset,
            pulled.next_offset,
        )
        if pulled.next_offset >= progress.next_offset:
            progress.skipped_to(pulled.next_offset)
        else:
            # The broker has less than we saw: what is still being worked on belongs to the past.
            self._progress = QueueProgress(pulled.next_offset)

    def _enqueue(self, pulled: Pulled, progress: QueueProgress) -> None:
        batches = (
            self._column_batches(pulled, progress)
            if self._as_columns
            else self._message_batches(pulled, progress)
        )
        next_offset = progress.next_offset
        for batch in batches:
            if not next_offset <= batch.first_offset < batch.end_offset:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{self.queue}: the broker's answer at offset {progress.next_offset} has messages "
                    f"{batch.first_offset} to {batch.end_offset} behind {next_offset}",
                )
            next_offset = batch.end_offset
        # Everything is decoded by now: a range that is taken is handed over, or nothing is committed again.
        for batch in batches:
            progress.taken(batch.first_offset, batch.end_offset)
            self._waiting.append(batch)
            self.cached_records += batch.count
            self._cached_bytes += batch.size
            self.records_total += batch.count
            self._room.add(batch.size)
        progress.skipped_to(pulled.next_offset)
        self._has_waiting.set()

    def _message_batches(self, pulled: Pulled, progress: QueueProgress) -> list[Batch]:
        accepts = self._pulls.subscription.accepts
        wants_all = not self._pulls.subscription.tags
        messages = [ReceivedMessage(self.queue, record) for record in iter_records(pulled.records)]
        batches = []
        for at in range(0, len(messages), self._settings.batch_max):
            group = messages[at : at + self._settings.batch_max]
            first_offset, end_offset = group[0].queue_offset, group[-1].queue_offset + 1
            size = sum([message.record.size for message in group])
            if not wants_all:
                group = [message for message in group if accepts(message.tags)]
            if group:
                batches.append(
                    Batch(
                        queue=self.queue,
                        payload=group,
                        count=len(group),
                        size=size,
                        first_offset=first_offset,
                        end_offset=end_offset,
                        progress=progress,
                    )
                )
        return batches

    def _column_batches(self, pulled: Pulled, progress: QueueProgress) -> list[Batch]:
        batches = []
        size = len(pulled.records)
        for columns in iter_columns(pulled.records, bad_bodies="null", bytes_max=COLUMN_BYTES_MAX):
            offsets = columns.numpy("queue_offset")
            first_offset, end_offset = int(offsets[0]), int(offsets[-1]) + 1
            batches.append(
                Batch(
                    queue=self.queue,
                    payload=columns,
                    count=len(columns),
                    size=size,
                    first_offset=first_offset,
                    end_offset=end_offset,
                    progress=progress,
                )
            )
            size = 0
        return batches

    # --- handing over -------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._is_closing:
            if not self._waiting or self._is_paused:
                self._has_waiting.clear()
                await self._has_waiting.wait()
                continue
            batch = self._waiting.popleft()
            try:
                await self._handle_until_done(batch)
            except asyncio.CancelledError:
                self._forget(batch)
                raise
            batch.progress.done(batch.first_offset)
            self._consumed_ms = self._pulls.client.clock.now_ms()
            self._forget(batch)
            # A listener that never waits must not keep the loop from everything else.
            await asyncio.sleep(0)

    async def _handle_until_done(self, batch: Batch) -> None:
        rest = reconnect_backoff(self._pulls.client)
        while True:
            with surviving("listener calls"):
                await self._handle(batch)
                return
            _log.error("messages of %s from offset %d on wait", self.queue, batch.first_offset)
            await asyncio.sleep(rest.next_s())

    def _forget(self, batch: Batch) -> None:
        self.cached_records -= batch.count
        self._cached_bytes -= batch.size
        self._room.free(batch.size)
