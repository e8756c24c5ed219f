"""Parts of a client that are started and stopped: `with`, or `async with`, does both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    """`async with` starts and stops it."""

    @abstractmethod
    async def start(self) -> None:
        """Begin; a second time does nothing."""

    @abstractmethod
    async def stop(self) -> None:
        """End; a second time does nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class BlockingLifetime(ABC):
    """`with` starts and stops it."""

    @abstractmethod
    def start(self) -> None:
        """Begin; a second time does nothing."""

    @abstractmethod
    def stop(self) -> None:
        """End; a second time does nothing."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
