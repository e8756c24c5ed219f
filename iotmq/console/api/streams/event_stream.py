"""The stream of server-sent events (HTML standard, section 9.2) of one reader.

A bounded queue, and what writes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from iotmq import limits
from iotmq.console.server.messages import Sink
from iotmq.event_loop import happens_within

HEARTBEAT_S: Final = 15.0
# A stream ends after so long, and its reader comes again: so who may not read any more does not.
STREAM_S_MAX: Final = 3600.0
# Written at once; a reader that has read nothing of it is not given more.
_PIECE_BYTES: Final = 65_536
# Milliseconds after which browsers come again.
_RETRY_MS: Final = 2000
_TOO_SLOW: Final = "too-slow"
_TIME: Final = "time"


def event(kind: str, data: object, event_id: str = "") -> bytes:
    """Encode an event; without a kind it is the one that `EventSource.onmessage` gets."""
    head = f"event: {kind}\n" if kind else ""
    if event_id:
        head += f"id: {event_id}\n"
    return b"%bdata: %b\n\n" % (head.encode(), msgspec.json.encode(data))


class EventStream:
    """The events that one reader has still to get. `write_to` is its life."""

    def __init__(
        self,
        *,
        position: Callable[[], str],
        drained: Callable[[], None],
        heartbeat_s: float = HEARTBEAT_S,
        seconds_max: float = STREAM_S_MAX,
    ) -> None:
        """`position` gives the id up to which all was put here; `drained` is told when little waits."""
        self._position = position
        self._drained = drained
        self._heartbeat_s = heartbeat_s
        self._seconds_max = seconds_max
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._has_news = asyncio.Event()
        self._is_left = False
        self.end_reason = ""
        """Set when the stream ends: nothing is taken any more."""

    @property
    def is_filled(self) -> bool:
        """Return whether who can wait should."""
        return self._waiting_bytes > limits.HTTP_STREAM_WAITING_BYTES_MAX // 2

    def put(self, events: bytes, *, is_paced: bool = False) -> None:
        """Add encoded events. A reader that leaves too many is cut: they are dropped, and it is told so.

        With `is_paced` none is: who puts them here waits by itself while the stream is filled.
        """
        if self.end_reason:
            return
        size = self._waiting_bytes + len(events)
        if self._waiting and size > limits.HTTP_STREAM_WAITING_BYTES_MAX and not is_paced:
            self._waiting.clear()
            self._waiting_bytes = 0
            self.end(_TOO_SLOW)
            return
        self._waiting.append(events)
        self._waiting_bytes = size
        self._has_news.set()

    def end(self, reason: str) -> None:
        """Take nothing more; what waits is still written, and a last event with the reason."""
        self.end_reason = self.end_reason or reason
        self._has_news.set()

    async def write_to(self, sink: Sink) -> None:
        """Write what comes until the stream ends. ConnectionError when the reader has gone."""
        sink.when_peer_ends(self._leave)
        await sink.write(b"retry: %d\n\n" % _RETRY_MS)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._seconds_max
        written = ""
        while not self._is_left:
            if self._waiting:
                await sink.write(self._take())
                continue
            # All that came before is written.
            position = self._position()
            if self.end_reason:
                told: dict[str, Any] = {"reason": self.end_reason}
                await sink.write(event("end", told, "" if self.end_reason == _TOO_SLOW else position))
                return
            left_s = end_s - loop.time()
            self._has_news.clear()
            if await happens_within(self._has_news, max(0.0, min(self._heartbeat_s, left_s))):
                continue
            if loop.time() >= end_s:
                self.end(_TIME)
            else:
                # An id without data is no event, and moves the place that the reader comes back to.
                position = self._position()
                await sink.write(b":\n\n" if position == written else b"id: %b\n\n" % position.encode())
                written = position

    def _take(self) -> bytes:
        taken: list[bytes] = []
        size = 0
        while self._waiting and size < _PIECE_BYTES:
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        self._waiting_bytes -= size
        if not self.is_filled:
            self._drained()
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _leave(self) -> None:
        self._is_left = True
        self._has_news.set()
