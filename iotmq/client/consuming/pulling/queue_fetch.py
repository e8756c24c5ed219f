"""Fetch one queue of a pull consumer ahead, and return messages or columns of what came."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from iotmq.client.consuming.cache_room import COLUMN_BYTES_MAX, CacheRoom
from iotmq.client.consuming.consumer_answers import QueueState
from iotmq.client.consuming.pulls import PullStatus, QueuePulls
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MASTER_ID
from iotmq.errors import (
    BrokerError,
    ConnectionClosedError,
    OffsetMovedError,
    QueueLockedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.columns import Columns, decode_columns
from iotmq.message.records.record import decode_record, iter_records
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

# Worth trying again without telling the application.
_PASSING: Final = (ConnectionClosedError, QueueLockedError, RequestTimeoutError, RouteNotFoundError)


def is_passing(error: Exception) -> bool:
    """Return whether the broker is away for a while, or not master any more."""
    if isinstance(error, BrokerError):
        return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, _PASSING)


def _is_forbidden(error: Exception) -> bool:
    """Return whether the group or the topic may not be read: an operator has paused it, perhaps."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION


class QueueFetch:
    """One queue: two answers at most are here, one of them being returned."""

    def __init__(
        self,
        pulls: QueuePulls,
        room: CacheRoom,
        start: int | Callable[[], Awaitable[int]],
        became_ready: Callable[[QueueFetch], None],
        *,
        is_followed: bool,
    ) -> None:
        """`start` is asked again until it gives an offset. `is_followed` goes on at the nearest offset when
        one is outside of the queue, where otherwise the next call raises OffsetMovedError; and it waits while
        the group or topic may not be read."""
        self.queue = pulls.queue
        self.position: int | None = start if isinstance(start, int) else None
        """Behind the last message returned; None until the start is known."""
        self.consumed = self.position
        """Behind the last message that counts as consumed: that was returned before the latest call."""
        self.committed: int | None = None
        """The offset that was stored last."""
        self.failure: Exception | None = None
        """The error that the next call raises; fetching rests until then."""
        self.is_listed = False
        """True while the consumer has it in its line of ready queues."""
        self.is_paused = False
        self.is_leaving = False
        """True when the queue goes: nothing of it is returned any more."""
        self.decoded: deque[ReceivedMessage] = deque()
        """The messages of the first answer that are decoded and not returned yet."""
        self.records_total = 0
        self._decoded_end = (0, 0)
        """Where the decoded part of the first answer ends: byte, and offset behind it."""
        self._pulls = pulls
        self._room = room
        self._start = start
        self._became_ready = became_ready
        self.is_followed = is_followed
        self._fetch_offset = self.position or 0
        """Where the next pull starts."""
        self._answers: deque[tuple[memoryview, int]] = deque()
        """Fetched records not returned yet, each with the offset behind its answer."""
        self._taken = asyncio.Event()
        self._task = supervise("fetches of a queue", self._fetch_forever)

    @property
    def pulls(self) -> QueuePulls:
        """Return the pulls, which have the subscription."""
        return self._pulls

    @property
    def has_messages(self) -> bool:
        """Return whether there are fetched records."""
        return bool(self._answers)

    @property
    def has_something(self) -> bool:
        """Return whether there are fetched records or an error."""
        return bool(self._answers) or self.failure is not None

    @property
    def state(self) -> QueueState:
        """Return the progress for operators; cached are bytes only, because records are not counted ahead."""
        return QueueState(
            committable=self.consumed or 0,
            next_offset=self._fetch_offset,
            cached_records=len(self.decoded),
            cached_bytes=sum(len(view) for view, _ in self._answers),
            records_total=self.records_total,
            pulled_ms=self._pulls.pulled_ms,
            consumed_ms=0,
        )

    def take_failure(self) -> Exception:
        """Return the failure, once; fetching goes on."""
        assert self.failure is not None
        failure, self.failure = self.failure, None
        self._taken.set()
        return failure

    def decode(self, records_max: int) -> None:
        """Decode at most `records_max` messages of the first answer; fewer, or none, when tags differ."""
        if self.decoded or not self._answers:
            return
        view, _ = self._answers[0]
        accepts = self._pulls.subscription.accepts if self._pulls.subscription.tags else None
        at = 0
        position = self.position or 0
        try:
            for taken, record in enumerate(iter_records(view), 1):
                message = ReceivedMessage(self.queue, record)
                if accepts is None or accepts(message.tags):
                    self.decoded.append(message)
                at += record.size
                position = record.queue_offset + 1
                if taken == records_max:
                    break
        except MessageFormatError as error:
            # What came before the broken record is returned first; the next call starts at it.
            if not at:
                raise type(error)(f"{self.queue}: {error}", error.at) from error
        self._decoded_end = (at, position)
        self.records_total += len(self.decoded)
        if not self.decoded:
            has_nothing_open = self.consumed == self.position
            self._cut(at, position)
            if has_nothing_open:
                self.consumed = self.position

    def take(self, records_max: int) -> list[ReceivedMessage]:
        """Take at most `records_max` of the first answer's messages."""
        self.decode(records_max)
        decoded = self.decoded
        if len(decoded) <= records_max:
            messages = list(decoded)
            if messages:
                decoded.clear()
                self._cut(*self._decoded_end)
            return messages
        messages = [decoded.popleft() for _ in range(records_max)]
        self.position = messages[-1].queue_offset + 1
        return messages

    def pop(self) -> ReceivedMessage:
        """Take one message that is decoded."""
        message = self.decoded.popleft()
        if self.decoded:
            self.position = message.queue_offset + 1
        else:
            self._cut(*self._decoded_end)
        return message

    def take_columns(self, columns: Sequence[str], keys: Sequence[str]) -> Columns:
        """Take the first answer as columns, or as much of it as fits one Columns."""
        if self.decoded:
            self._encode_again()
        view, _ = self._answers[0]
        try:
            result = decode_columns(
                view, columns=columns, keys=keys, bad_bodies="null", bytes_max=COLUMN_BYTES_MAX
            )
        except MessageFormatError as error:
            raise type(error)(f"{self.queue}: {error}", error.at) from error
        self.records_total += len(result)
        self._cut(result.end, self._offset_at(view, result.end))
        return result

    def _encode_again(self) -> None:
        """Drop what is decoded and cut what was returned of it, so that columns begin behind that."""
        first_offset = self.decoded[0].queue_offset
        self.decoded.clear()
        at = 0
        for record in iter_records(self._answers[0][0]):
            if record.queue_offset == first_offset:
                break
            at += record.size
        if at:
            self._cut(at, first_offset)

    def _offset_at(self, view: memoryview, at: int) -> int:
        """Read the offset of the record at byte `at`; the present position where there is none."""
        try:
            return decode_record(view, at).queue_offset
        except MessageFormatError:
            return self.position or 0

    def _cut(self, at: int, position: int) -> None:
        """Drop the first `at` bytes of the first answer, which were returned."""
        view, next_offset = self._answers[0]
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
        self.decoded.clear()

    # --- fetching -----------------------------------------------------------------------------------

    async def _fetch_forever(self) -> None:
        while True:
            # One answer waits in `_answers`; the next is being fetched meanwhile.
            while len(self._answers) >= 2 or self.failure is not None:
                self._taken.clear()
                await self._taken.wait()
            while self._room.is_full and self._answers:
                await self._room.wait_for_less()
            try:
                if self.position is None:
                    assert not isinstance(self._start, int)
                    self._fetch_offset = self.position = self.consumed = await self._start()
                await self._fetch_once()
                self._pulls.failures.reset()
            except Exception as error:
                is_paused = self.is_followed and _is_forbidden(error)
                if is_paused or is_passing(error):
                    level = logging.WARNING if is_paused else logging.DEBUG
                    _log.log(level, "pull from %s waits: %s", self.queue, error)
                    self._pulls.broker_id = MASTER_ID
                    await self._pulls.rest()
                    continue
                self.failure = error
                self._list()
                await self._pulls.rest()

    async def _fetch_once(self) -> None:
        pulled = await self._pulls.pull(self._fetch_offset)
        if pulled.status is PullStatus.OFFSET_MOVED:
            text = (
                f"{self.queue}: offset {self._fetch_offset} is outside of {pulled.min_offset} to "
                f"{pulled.max_offset}"
            )
            if not self.is_followed:
                raise OffsetMovedError(f"{text}: seek() to {pulled.next_offset} to go on", pulled.next_offset)
            _log.warning("%s, going on at %d", text, pulled.next_offset)
            self._skip(pulled.next_offset)
        elif pulled.status is PullStatus.FOUND and len(pulled.records):
            self._pulls.poll_backoff.reset()
            view = memoryview(pulled.records)
            self._answers.append((view, pulled.next_offset))
            self._room.add(len(view))
            self._fetch_offset = pulled.next_offset
            self._list()
        elif pulled.next_offset > self._fetch_offset:
            self._skip(pulled.next_offset)
        else:
            await self._pulls.poll_backoff.after_empty()

    def _skip(self, offset: int) -> None:
        """Go on at `offset`; what lies before it is not wanted, or not there."""
        self._fetch_offset = offset
        if not self._answers:
            if self.consumed == self.position:
                self.consumed = offset
            self.position = offset

    def _list(self) -> None:
        if not self.is_listed and not self.is_paused:
            self.is_listed = True
            self._became_ready(self)
