"""Call functions of the application on worker threads, where they may block."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Final

from iotmq.client.blocking.loop_thread import LoopThread
from iotmq.client.transport.message import Delivery, ReceivedMessage, Settlement
from iotmq.errors import ClientError

THREADS: Final = 4


class ApplicationThreads:
    """The worker threads of one blocking object, made when they are needed."""

    def __init__(self, loop_thread: LoopThread, name: str, count: int | None) -> None:
        """`count` None makes 4."""
        if count is not None and count < 1:
            raise ClientError(f"{count} threads for functions of the application: at least 1 is needed")
        self._loop_thread = loop_thread
        self._name = name
        self._count = THREADS if count is None else count
        self._workers: concurrent.futures.ThreadPoolExecutor | None = None

    def on_worker(self, application: Any) -> Any:
        """Return a function, or an object with functions, that is called on worker threads.

        ClientError for a coroutine function, which a thread cannot run.
        """
        if inspect.iscoroutinefunction(application):
            raise ClientError(f"{application!r} is a coroutine function: a blocking client calls plain ones")
        return self._function(application) if callable(application) else _Object(application, self._function)

    def end(self) -> None:
        """Let the threads end. A call that is still at work is not waited for."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.shutdown(wait=False, cancel_futures=True)

    def _function(self, function: Callable[..., Any]) -> Callable[..., asyncio.Future[Any]]:
        def call(*arguments: Any) -> asyncio.Future[Any]:
            if self._workers is None:
                self._workers = self._loop_thread.workers(self._count, self._name)
            for messages in arguments:
                for message in messages if isinstance(messages, list) else ():
                    if isinstance(message, ReceivedMessage) and message.delivery is not None:
                        message.delivery = _Delivery(message.delivery, self._loop_thread)
            # What interceptors have set for a listener holds there, too.
            there = contextvars.copy_context().run
            return asyncio.get_running_loop().run_in_executor(self._workers, there, function, *arguments)

        return call


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
