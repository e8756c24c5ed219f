"""An event loop of asyncio's own in a thread, for a library that cannot be trusted with uvloop.

The thread does not hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")


class LoopThread:
    """The thread, begun with the first call. As much runs at one time as is asked."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Return what the work returns, or raise what it raises. Who is cancelled does not end it."""
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
            threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop)))

    def close(self) -> None:
        """Have the loop end, and what runs on it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
