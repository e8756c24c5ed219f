"""An event loop on a thread of its own, and calls into it from all other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

import uvloop

from iotmq.errors import ClientClosedError, ClientError
from iotmq.supervised import end

P = ParamSpec("P")
T = TypeVar("T")

_NOT_STARTED: Final = (
    "the client is not started, or was stopped: use `with iotmq.connect_sync(...) as client`, or start()"
)
_STOPPED: Final = "the client was stopped meanwhile"
_FORKED: Final = (
    "the client belongs to the process that started it, and its thread does not live in one that was forked: "
    "connect there anew"
)


class LoopThread:
    """Runs coroutines for threads that wait for them. Only `start` and `stop` are not for any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        """Set while the thread runs."""
        self._thread: threading.Thread | None = None
        self._process_id = 0
        """The process that started the thread."""
        # Its holder may be interrupted by a handler of signals or the end of a generator, which call, too.
        self._submitting = threading.RLock()
        """Held while work is given to the loop, so that nothing comes behind its end."""
        self._workers: weakref.WeakSet[concurrent.futures.ThreadPoolExecutor] = weakref.WeakSet()

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._loop is not None

    def start(self) -> None:
        """Start the thread."""
        self._process_id = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="iotmq-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and what it is at; nobody waits for calls of the application that are still at work.

        ClientError on that thread.
        """
        if self._loop is None:
            return
        self.check_caller()
        with self._submitting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for workers in self._workers:
            workers.shutdown(wait=False, cancel_futures=True)

    def check_caller(self) -> None:
        """Raise ClientError where a call would wait forever: on the thread itself, and after a fork."""
        if os.getpid() != self._process_id:
            raise ClientError(_FORKED)
        if threading.current_thread() is self._thread:
            raise ClientError("a blocking call from the client's own thread would wait for itself forever")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; the waiting thread may be interrupted.

        ClientClosedError when the thread ends meanwhile.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._loop is None:
                raise ClientClosedError(_STOPPED) from None
            raise
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop."""
        try:
            if self._loop is not None:
                self.check_caller()
            with self._submitting:
                if self._loop is None:
                    raise ClientClosedError(_NOT_STARTED)
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except ClientError:
            coroutine.close()
            raise

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
        # Threads may wait for some of them.
        loop.run_until_complete(end(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
