"""Call functions of the application on worker threads, where they may block."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from iotmq.client.blocking.loop_thread import LoopThread
from iotmq.client.transport.application_calls import STOPPED_INSIDE, TIMED_CALL
from iotmq.client.transport.message import Delivery, ReceivedMessage, Settlement
from iotmq.errors import ClientError

THREADS: Final = 4

_here = threading.local()
"""`application`: whose function the present thread calls."""


class ApplicationThreads:
    """The worker threads of one blocking object, made when they are needed.

    What is only told has a thread of its own (`told`), or listeners that hang would keep it from being told.
    """

    def __init__(
        self, loop_thread: LoopThread, name: str, count: int | None, told: ApplicationThreads | None = None
    ) -> None:
        """`count` None makes 4."""
        self.told = told
        if count is not None and count < 1:
            raise ClientError(f"{count} threads for functions of the application: at least 1 is needed")
        self._loop_thread = loop_thread
        self._name = name
        self._count = THREADS if count is None else count
        self._workers: _Workers | None = None

    def on_worker(self, application: Any) -> Any:
        """Return a function, or an object with functions, that is called on worker threads.

        ClientError for a coroutine function, which a thread cannot run.
        """
        if inspect.iscoroutinefunction(application):
            raise ClientError(f"{application!r} is a coroutine function: a blocking client calls plain ones")
        return self._function(application) if callable(application) else _Object(application, self._function)

    def end(self) -> None:
        """Let the threads end. A call that is still at work is not waited for."""
        if self.told is not None:
            self.told.end()
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.threads.shutdown(wait=False, cancel_futures=True)

    def check_outside(self) -> None:
        """Raise ClientError on one of the threads: the end would wait for the function that asks for it."""
        application = getattr(_here, "application", None)
        if application is not None and application in (self, self.told):
            raise ClientError(STOPPED_INSIDE)

    @staticmethod
    def check_outside_of(loop_thread: LoopThread) -> None:
        """Raise ClientError on a thread of any object of a client."""
        application = getattr(_here, "application", None)
        if application is not None and application._loop_thread is loop_thread:
            raise ClientError(STOPPED_INSIDE)

    def _function(self, function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*arguments: Any) -> Any:
            for messages in arguments:
                for message in messages if isinstance(messages, list) else ():
                    if isinstance(message, ReceivedMessage) and message.delivery is not None:
                        message.delivery = _Delivery(message.delivery, self._loop_thread)
            workers = self._present_workers()
            timed = TIMED_CALL.get()
            # Waiting for a thread is not the function's time.
            if timed is not None:
                timed.suspend()
            await workers.free.acquire()
            try:
                # Context of the call, such as the span of a listener, is that of the function, too.
                there = contextvars.copy_context().run
                future = workers.threads.submit(there, self._call, function, arguments)
            except RuntimeError:
                # The process ends, or the object: the function is not called, and has not failed.
                await asyncio.Event().wait()
                raise
            if timed is not None:
                timed.in_progress()
            future.add_done_callback(workers.is_free)
            return await asyncio.wrap_future(future)

        return call

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        _here.application = self
        # Calls of other functions that this one asks for take no part in its time.
        TIMED_CALL.set(None)
        return function(*arguments)

    def _present_workers(self) -> _Workers:
        loop = asyncio.get_running_loop()
        if self._workers is None or self._workers.loop is not loop:
            threads = self._loop_thread.workers(self._count, self._name)
            self._workers = _Workers(loop, threads, asyncio.Semaphore(self._count))
        return self._workers


class _Workers(NamedTuple):
    """Threads, and how many of them have nothing to do: one that hangs is not free, whoever waits for it."""

    loop: asyncio.AbstractEventLoop
    threads: concurrent.futures.ThreadPoolExecutor
    free: asyncio.Semaphore

    def is_free(self, _: concurrent.futures.Future[Any]) -> None:
        # A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.free.release)


class _Object:
    """Stands for an object of the application whose functions are called on worker threads."""

    def __init__(
        self, application: Any, on_worker: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        self._application = application
        self._on_worker = on_worker

    def __getattr__(self, name: str) -> Any:
        return self._on_worker(getattr(self._application, name))


class _Delivery:
    """Lets a worker thread decide about a message, on the loop's thread."""

    def __init__(self, delivery: Delivery, loop_thread: LoopThread) -> None:
        self._delivery = delivery
        self._loop_thread = loop_thread

    def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        """Note the listener's decision."""
        self._loop_thread.call(self._delivery.settle, message, settlement)

    def in_progress(self) -> None:
        """Give the listener its whole time again."""
        self._loop_thread.call(self._delivery.in_progress)
