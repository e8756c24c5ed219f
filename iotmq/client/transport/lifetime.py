"""Start and stop parts of a client with `with` or `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self


class Lifetime(ABC):
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
