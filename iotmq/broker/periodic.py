"""Work that comes again and again while a broker runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable

logger = logging.getLogger(__name__)


class PeriodicWork:
    """The tasks of one broker that have no end of their own."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, loops: Iterable[Coroutine[None, None, None]]) -> None:
        """Run them all; in the loop that runs."""
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(work) for work in loops]

    async def stop(self) -> None:
        """Cancel them and wait for their ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []


async def repeat(interval_s: float, action: Callable[[], object]) -> None:
    """Do something every so often; what fails is logged, and tried again the next time."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            action()
        except Exception:
            # The broker goes on; the next round may succeed.
            logger.exception("a periodic task of the broker failed")
