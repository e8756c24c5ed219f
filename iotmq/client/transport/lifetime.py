"""Start and stop parts of a client with `with` or `async with`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Self

from iotmq.client.transport.measured import Measured


class Lifetime(Measured, ABC):
    """A part of a client that `async with` starts and stops. `await` starts it, too, and returns it."""

    @abstractmethod
    async def start(self) -> None:
        """Begin; a second time does nothing."""

    @abstractmethod
    async def stop(self) -> None:
        """End; a second time does nothing."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class Ending:
    """The end of a part: all that ask wait for the same one, and it goes on when they do not any more."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def reached(self, work: Coroutine[Any, Any, None] | None) -> None:
        """Begin the end, or with None wait for one that is under way; raises what it raises."""
        if work is not None:
            self._task = asyncio.ensure_future(work)
        elif self._task is None or self._task.done():
            return
        await asyncio.shield(self._task)

    async def over(self) -> None:
        """Wait for an end that is under way, before another beginning."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
