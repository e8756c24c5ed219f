"""Read one queue of the log for a bridge, some answers ahead of what is sent."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from iotmq.client.consuming.offsets import offsets
from iotmq.client.consuming.pulls import PollBackoff, PullStatus, QueuePulls
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import PullConsumerSettings
from iotmq.client.transport.subscriptions import parse_subscription
from iotmq.errors import IotmqError
from iotmq.mqtt_bridge.connection import Progress, stored_ms
from iotmq.supervised import end, supervise

_log: Final = logging.getLogger("iotmq.bridges")

# Answers of the broker that wait to be sent: one while the next is read.
_ANSWERS_MAX: Final = 2
_PULL_BYTES: Final = 256 * 1024
_POLL_S_MIN: Final = 0.01
_POLL_S_MAX: Final = 0.5
_SETTINGS: Final = PullConsumerSettings(pull_bytes_max=_PULL_BYTES)


class QueueFeed:
    """One queue: its records from where the group is, in order.

    `wake` is called when there is something to send.
    """

    def __init__(
        self,
        client: ClientTransport,
        group: str,
        queue: MessageQueue,
        *,
        begins_first: bool,
        since_ms: int | None = None,
        wake: Callable[[QueueFeed], None],
    ) -> None:
        """`since_ms` is when a queue was not there yet that has come while the bridge ran."""
        self.queue = queue
        self.progress: Progress | None = None
        """None until the group's offset is known."""
        self.lost = 0
        """Messages that the log had deleted before they were sent."""
        self.end_offset = 0
        """The offset that the next message gets, as it was last known."""
        self._client = client
        self._group = group
        self._begins_first = begins_first
        self._since_ms = since_ms
        self._wake = wake
        pauses = PollBackoff(shortest_s=_POLL_S_MIN, longest_s=_POLL_S_MAX)
        subscription = parse_subscription(queue.topic, "*", client.clock.now_ms())
        self._pulls = QueuePulls(client, group, queue, subscription, _SETTINGS, pauses)
        # Records with the offset behind them, and the place of the next in the first of them.
        self._answers: deque[tuple[bytes | memoryview, int]] = deque()
        self._at = 0
        self._next_offset = 0
        self._has_room = asyncio.Event()
        self._committed: int | None = None
        self._task = supervise("reading for a bridge", self._read)

    @property
    def has_records(self) -> bool:
        """Return whether there is something to send now."""
        return bool(self._answers)

    @property
    def lag(self) -> int:
        """Return how many messages are not at the other broker."""
        return 0 if self.progress is None else max(self.end_offset - self.progress.acked, 0)

    @property
    def oldest_ms(self) -> int | None:
        """Return when the next record was stored; None when there is none."""
        found = self._answers[0][0] if self._answers else b""
        return stored_ms(found, self._at) if found else None

    @property
    def waiting(self) -> tuple[bytes | memoryview, int]:
        """Return the records to send next, and the byte they begin at."""
        return self._answers[0][0], self._at

    def sent_up_to(self, at: int) -> None:
        """The records up to this byte have been sent."""
        records, next_offset = self._answers[0]
        self._at = at
        if at >= len(records):
            assert self.progress is not None
            self._answers.popleft()
            self._at = 0
            self.progress.passed(next_offset)
            self._has_room.set()

    async def rewind(self) -> None:
        """Begin again behind what is acknowledged: the connection is lost."""
        await end([self._task])
        self._answers.clear()
        self._at = 0
        if self.progress is not None:
            self.progress.rewind()
            self._next_offset = self.progress.acked
        self._task = supervise("reading for a bridge", self._read)

    async def commit(self) -> None:
        """Have the broker keep how far the other one is."""
        progress = self.progress
        if progress is not None and progress.acked != self._committed:
            acked = progress.acked
            await offsets.commit_offset(self._client, self._group, self.queue, acked)
            self._committed = acked

    async def look_at_end(self) -> None:
        """Ask how long the queue is."""
        self.end_offset = await offsets.max_offset(self._client, self.queue)

    async def stop(self) -> None:
        """Read no more."""
        await end([self._task])

    async def _read(self) -> None:
        while True:
            try:
                if self.progress is None:
                    await self._begin()
                while len(self._answers) >= _ANSWERS_MAX:
                    self._has_room.clear()
                    await self._has_room.wait()
                await self._pull_once()
                self._pulls.failures.reset()
            except IotmqError as error:
                # The broker is away for a while, or not master any more.
                _log.debug(
                    "reading for a bridge waits", extra={"queue": str(self.queue), "detail": str(error)}
                )
                self._pulls.broker_id = MASTER_ID
                await self._pulls.rest()

    async def _begin(self) -> None:
        offset = await offsets.stored_offset(self._client, self._group, self.queue)
        self._committed = offset
        if offset is None:
            offset = await self._first_offset()
        await self.look_at_end()
        self._next_offset = offset
        queue = self.queue
        self.progress = Progress(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@", offset)
        # At once, so that a log that protects what is not consumed knows of the bridge.
        await self.commit()

    async def _first_offset(self) -> int:
        """Ask where a group that has never been here begins."""
        if self._begins_first:
            return await offsets.min_offset(self._client, self.queue)
        if self._since_ms is None:
            return await offsets.max_offset(self._client, self.queue)
        # What was stored before the queue was found has come after the bridge.
        return await offsets.offset_at_time(self._client, self.queue, self._since_ms)

    async def _pull_once(self) -> None:
        assert self.progress is not None
        offset = self._next_offset
        pulled = await self._pulls.pull(offset)
        self.end_offset = max(pulled.max_offset, self.end_offset)
        if pulled.status is PullStatus.FOUND:
            self._pulls.poll_backoff.reset()
            self._answers.append((pulled.records, pulled.next_offset))
            self._next_offset = pulled.next_offset
            self._wake(self)
        elif pulled.status is PullStatus.OFFSET_MOVED:
            self._move(pulled.next_offset, pulled.min_offset)
        else:
            self._next_offset = max(offset, pulled.next_offset)
            if not self._answers:
                self.progress.passed(self._next_offset)
        if self._next_offset == offset:
            await self._pulls.poll_backoff.after_empty()

    def _move(self, offset: int, min_offset: int) -> None:
        assert self.progress is not None
        if offset >= self._next_offset:
            lost = offset - self._next_offset
            self.lost += lost
            # Behind what was read before it.
            self._answers.append((b"", offset))
            self._wake(self)
            _log.error(
                "messages were deleted before a bridge had sent them; store.protect_unconsumed keeps them",
                extra={"queue": str(self.queue), "messages": lost, "first": min_offset},
            )
        elif self._answers or self.progress.in_flight:
            # First what was read before is acknowledged: its offsets are those of other messages from now on.
            return
        else:
            # The queue is shorter than before: the log was replaced.
            _log.warning(
                "a queue begins anew for a bridge", extra={"queue": str(self.queue), "offset": offset}
            )
            self.progress.move(offset)
            self.end_offset = offset
        self._next_offset = offset
