"""Changes as events, for many streams: audit records as they are stored, and alarms of this process.

The topic of audit records is asked for what is new, once for all streams that follow its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from iotmq.alarms.alarm import Event
from iotmq.audit_log import AUDIT_TOPIC
from iotmq.client.client import IotmqClient
from iotmq.client.consuming.offsets import offsets
from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.console.api.streams.event_stream import EventStream, event
from iotmq.console.api.streams.positions import encode_positions
from iotmq.errors import IotmqError, RouteNotFoundError
from iotmq.event_loop import happens_within
from iotmq.supervised import end, supervise

logger = logging.getLogger("iotmq.http.api")

# Between two questions for what is new.
_ASK_S: Final = 1.0
_BEGIN_S: Final = 5.0
_RECORDS: Final = 250
_BYTES: Final = 256 * 1024


class Changes(NamedTuple):
    """The changes of a stream."""

    has_records: bool
    has_alarms: bool


class Alarms(Protocol):
    """The alarms of this process."""

    @property
    def listeners(self) -> list[Callable[[Event], None]]:
        """Return those who are called with each event."""


class Shown(NamedTuple):
    """Makes what readers see."""

    record: Callable[[StoredMessage], object | None]
    """None for what is no record."""
    alarm: Callable[[Event], object]


class ChangeReader:
    """Puts changes into streams, from now on, or records from `positions` (queue -> offset) on."""

    def __init__(
        self,
        client: IotmqClient,
        alarms: Alarms | None,
        shown: Shown,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        self._client = client
        self._alarms = alarms
        self._shown = shown
        self._offsets = dict(positions or {})
        # One of its own waits for its reader; the others are cut where theirs do not read.
        self._is_paced = positions is not None
        self._streams: dict[EventStream, Changes] = {}
        self._has_room = asyncio.Event()
        self._has_begun = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @property
    def position(self) -> str:
        """Return the id of an event behind which nothing has been read yet."""
        return encode_positions(self._offsets)

    async def add(self, stream: EventStream, wanted: Changes) -> None:
        """Begin to put changes into a stream; where brokers do not answer in time it begins without them."""
        self._streams[stream] = wanted
        if self._following is None:
            if self._alarms is not None:
                self._alarms.listeners.append(self._alarm)
            self._following = supervise("following of audit records", self._follow)
        await happens_within(self._has_begun, _BEGIN_S)

    def remove(self, stream: EventStream, _wanted: Changes) -> bool:
        """Put nothing more into a stream; return whether there is another one."""
        self._streams.pop(stream, None)
        return bool(self._streams)

    def resume(self) -> None:
        """Go on: the stream has room."""
        self._has_room.set()

    async def stop(self) -> None:
        """End all."""
        if self._alarms is not None and self._alarm in self._alarms.listeners:
            self._alarms.listeners.remove(self._alarm)
        if self._following is not None:
            await end([self._following])

    def _alarm(self, change: Event) -> None:
        told = event("alarm", self._shown.alarm(change), self.position)
        for stream, wanted in self._streams.items():
            if wanted.has_alarms:
                stream.put(told)

    async def _follow(self) -> None:
        while True:
            try:
                queues = await self._queues()
                for queue in queues:
                    if _name(queue) not in self._offsets:
                        self._offsets[_name(queue)] = await self._first_offset(queue)
                self._has_begun.set()
                for queue in queues:
                    await self._read(queue)
            except (IotmqError, ConnectionError) as error:
                # What has come meanwhile is read later.
                logger.debug("following audit records: %s", error)
            await asyncio.sleep(_ASK_S)

    async def _queues(self) -> tuple[MessageQueue, ...]:
        try:
            return await self._client.admin.queues(AUDIT_TOPIC)
        except RouteNotFoundError:
            # Nothing was recorded yet.
            return ()

    async def _first_offset(self, queue: MessageQueue) -> int:
        """Return where a queue begins that nobody has read: at its end, unless it is new and has little."""
        offset = await offsets.max_offset(self._client, queue)
        return 0 if self._has_begun.is_set() and offset <= _RECORDS else offset

    async def _read(self, queue: MessageQueue) -> None:
        name = _name(queue)
        while True:
            offset = self._offsets[name]
            messages, next_offset = await self._client.admin.messages.from_offset(
                queue, offset, messages_max=_RECORDS, bytes_max=_BYTES
            )
            events: list[bytes] = []
            for message in messages:
                self._offsets[name] = message.queue_offset + 1
                shown: Any = self._shown.record(message)
                if shown is not None:
                    events.append(event("record", shown, self.position))
            self._offsets[name] = next_offset
            if events:
                await self._put(b"".join(events))
            if next_offset == offset:
                return

    async def _put(self, events: bytes) -> None:
        for stream, wanted in self._streams.items():
            if wanted.has_records:
                stream.put(events, is_paced=self._is_paced)
        while self._is_paced and any(each.is_filled for each in self._streams):
            self._has_room.clear()
            await self._has_room.wait()


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"
