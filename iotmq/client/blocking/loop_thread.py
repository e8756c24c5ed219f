"""An event loop on a thread of its own, and calls into it from all other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

import uvloop

from iotmq.errors import ClientClosedError, ClientError

P = ParamSpec("P")
T = TypeVar("T")

_NOT_STARTED: Final = "the client is not started: use `with iotmq.connect_sync(...) as client`, or start()"


class LoopThread:
    """Runs coroutines for threads that wait for them. Only `start` and `stop` are not for any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        """Set while the thread runs."""
        self._thread: threading.Thread | None = None
        self._workers: weakref.WeakSet[concurrent.futures.ThreadPoolExecutor] = weakref.WeakSet()

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._loop is not None

    def start(self) -> None:
        """Start the thread."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="iotmq-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; nobody waits for calls of the application that are still at work."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for workers in self._workers:
            workers.shutdown(wait=False, cancel_futures=True)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; the waiting thread may be interrupted."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop."""
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise ClientClosedError(_NOT_STARTED)
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ClientError("a blocking call from the client's own thread would wait for itself forever")
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function where nothing of the client runs beside it; at once while no loop does."""
        if self._loop is None or threading.current_thread() is self._thread:
            return function(*args, **kwargs)

        async def call() -> T:
            return function(*args, **kwargs)

        return self.run(call())

    def workers(self, count: int, name: str) -> concurrent.futures.ThreadPoolExecutor:
        """Make threads for functions of the application, which end with this one."""
        workers = concurrent.futures.ThreadPoolExecutor(count, name)
        self._workers.add(workers)
        return workers


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
