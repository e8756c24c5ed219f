"""Streams end when who reads them may not any more: signed out, without the role, with a key that is gone.
They are cut short when brokers fail: who reads them sees that they have no end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from iotmq.console.api.problems import ProblemError
from iotmq.console.server.messages import Sink
from iotmq.errors import IotmqError

# Between two looks; streams write something more often than they live long.
_LOOK_S: Final = 5.0


def while_allowed(
    stream: Callable[[Sink], Awaitable[None]], check: Callable[[], object]
) -> Callable[[Sink], Awaitable[None]]:
    """Return the stream, cut with its next piece once `check` raises ProblemError, or where it fails."""

    async def write(sink: Sink) -> None:
        try:
            await stream(_AllowedSink(sink, check))
        except IotmqError as error:
            raise ConnectionAbortedError(f"the stream is cut short: {error}") from error

    return write


class _AllowedSink:
    def __init__(self, sink: Sink, check: Callable[[], object]) -> None:
        self._sink = sink
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._next_s = self._loop.time() + _LOOK_S

    def when_peer_ends(self, call: Callable[[], None]) -> None:
        self._sink.when_peer_ends(call)

    async def write(self, data: bytes) -> None:
        now_s = self._loop.time()
        if now_s >= self._next_s:
            self._next_s = now_s + _LOOK_S
            try:
                self._check()
            except ProblemError as problem:
                raise ConnectionAbortedError(f"who reads may not any more: {problem}") from None
        await self._sink.write(data)
