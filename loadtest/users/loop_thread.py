"""Run an event loop beside gevent, and hand work over both ways.

Locust turns sockets, threads and locks into gevent's, all on one thread. uvloop has its own, so it runs on a
thread that gevent does not know: `post` has it call something, `tell` has a greenlet call something. Both
ways are a queue and one wake-up for all that is in it. Nothing on the loop's thread may log, sleep or wait
for a lock, because those are gevent's.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, TypeVar

import gevent
import gevent.event
import gevent.monkey
import gevent.threadpool
import uvloop

from iotmq.cycles import short_collections

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Greenlets get a turn after so many calls that the loop asked for.
_TOLD_AT_A_TIME: Final = 500
_POSTED_PER_TURN: Final = 64
# A thread that has something to do waits so long for the interpreter while the other one computes; Python's
# 5 ms would stand in every latency.
_SWITCH_S: Final = 0.0005
_STOP_S: Final = 5.0


class LoopThread:
    """The event loop of this process; `LoopThread.get` starts it."""

    _running: ClassVar[tuple[int, LoopThread] | None] = None

    @classmethod
    def get(cls) -> LoopThread:
        """Return the loop of this process; a fork gets one of its own."""
        if cls._running is None or cls._running[0] != os.getpid():
            cls._running = (os.getpid(), cls())
        return cls._running[1]

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._is_stopped = False
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        # A full collection of a thousand users' objects would stand in the latencies, too.
        self._collections = short_collections()
        self._collections.__enter__()
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(self._on_exception)
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        # Whether the loop was woken for what is posted; and the greenlet for what is told.
        self._is_woken = False
        self._told: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_rung = False
        self._bell = gevent.event.Event()
        self._watcher = gevent.get_hub().loop.async_()
        self._watcher.start(self._bell.set)
        self._greenlet = gevent.spawn(self._call_told)
        # A lock of the system's threads, held as long as the loop runs.
        self._running_lock = gevent.monkey.get_original("_thread", "allocate_lock")()
        self._running_lock.acquire()
        self._thread = gevent.threadpool.ThreadPool(1).spawn(self._run)
        atexit.register(self.stop)

    @property
    def told_count(self) -> int:
        """Return how many calls wait for the greenlets."""
        return len(self._told)

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call something; from a greenlet."""
        self._posted.append((call, arguments))
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._call_posted)

    def tell(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have a greenlet call something; from the loop's thread."""
        self._told.append((call, arguments))
        if not self._is_rung:
            self._is_rung = True
            self._watcher.send()

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop while this greenlet waits; gevent.Timeout when it takes too long."""
        result: gevent.event.AsyncResult = gevent.event.AsyncResult()
        self.post(self._begin, coroutine, result)
        got: T = result.get(timeout=timeout_s)
        return got

    def stop(self) -> None:
        """End the loop, and wait until its thread does nothing more: the interpreter is about to end."""
        if os.getpid() != self._process_id or self._is_stopped:
            # The thread is not in this process: it was forked.
            return
        self._is_stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._running_lock.acquire(timeout=_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._running_lock.release()

    def _call_posted(self) -> None:
        self._is_woken = False
        posted = self._posted
        # What is posted meanwhile is for the next turn: first the sockets have theirs.
        for _ in range(min(len(posted), _POSTED_PER_TURN)):
            call, arguments = posted.popleft()
            call(*arguments)
        if posted and not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self._call_posted)

    def _call_told(self) -> None:
        told = self._told
        while True:
            self._bell.wait()
            self._bell.clear()
            self._is_rung = False
            count = 0
            while told:
                call, arguments = told.popleft()
                try:
                    call(*arguments)
                except Exception:
                    _log.exception("a callback failed")
                count += 1
                if count % _TOLD_AT_A_TIME == 0:
                    gevent.sleep(0)

    def _begin(self, coroutine: Coroutine[Any, Any, T], result: gevent.event.AsyncResult) -> None:
        task = self.loop.create_task(coroutine)

        def finish(done: asyncio.Task[T]) -> None:
            if done.cancelled():
                self.tell(result.set_exception, gevent.GreenletExit())
            elif (error := done.exception()) is not None:
                self.tell(result.set_exception, error)
            else:
                self.tell(result.set, done.result())

        task.add_done_callback(finish)

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.tell(_log_failure, context.get("message"), context.get("exception"))


def _log_failure(message: str, error: BaseException | None) -> None:
    _log.error("%s", message, exc_info=error)
