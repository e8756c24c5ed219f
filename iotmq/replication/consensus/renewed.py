"""Keep a value that is made from files, and make it again when they change: certificates, tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from iotmq.clock import Clock
from iotmq.errors import ConfigError
from iotmq.watched_file import WatchedFiles

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_INTERVAL_S: Final = 5.0


class Renewed(Generic[T]):
    """Holds the value of the last files that could be used."""

    def __init__(self, make: Callable[[], T], *files: str, clock: Clock) -> None:
        """Make the value; `make` raises ConfigError for files that are no use."""
        self._make = make
        self._clock = clock
        self._watched = WatchedFiles(*(Path(file) for file in files if file))
        self._looked_s = clock.monotonic_s()
        self._value = make()

    async def value(self, *, look_now: bool = False) -> T:
        """Return the value; the files are looked at every few seconds, or now."""
        now_s = self._clock.monotonic_s()
        if look_now or now_s - self._looked_s >= _LOOK_INTERVAL_S:
            self._looked_s = now_s
            if await self._watched.have_changed():
                try:
                    self._value = await asyncio.to_thread(self._make)
                except ConfigError as error:
                    # Files may be half changed; they change once more then.
                    logger.error("changed files are not used", extra={"detail": str(error)})
        return self._value
