"""The thread in which users' programs are called: an event loop, and threads for functions that wait.

The front end's loop hands calls over and gets their results back; nothing here runs on it, so that a program
that fails, waits or never returns keeps no device from its turn. It shares Python's lock with it, though: a
program that computes slows everything down.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from iotmq import limits
from iotmq.supervised import end

# Functions that wait at the same time.
_THREADS: Final = 8
_STOP_TIMEOUT_S: Final = 1.0


class HookCall(NamedTuple):
    """One call of one method. `done(result, error, seconds)` is called on the front end's loop."""

    method: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: Callable[[Any, BaseException | None, float], None]
    size: int = 0
    """About how many bytes its arguments take."""


class _Threads(Executor):
    """Threads whose functions the end of the process does not wait for, as it would with ThreadPoolExecutor.

    One thread at a time calls its methods.
    """

    def __init__(self) -> None:
        # None ends a thread.
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        if self._count < _THREADS:
            self._count += 1
            threading.Thread(target=self._run, name=f"iotmq-hook_{self._count}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when they have nothing to do; nobody waits for them."""
        for _ in range(self._count):
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                # Whatever a user's program raises: who has asked is told.
                future.set_exception(error)
            del call, future, function


class HookThread:
    """Runs calls until it is stopped. `call` and `tell` are for the front end's loop."""

    def __init__(self, front_loop: asyncio.AbstractEventLoop) -> None:
        self._front_loop = front_loop
        self._loop = asyncio.new_event_loop()
        self._pool = _Threads()
        self._thread = threading.Thread(target=self._run, name="iotmq-hooks", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        # What is only told, in its order; a condition is not needed, because the loop is woken.
        self._told: deque[HookCall] = deque()
        # Of all events since the start: one number is the front end's, the other one the thread's.
        self._told_bytes = 0
        self._begun_bytes = 0
        # Set by the front end when it has asked for the telling of what it has put there, and taken back by
        # the thread before it looks for the last time; whether one is under way is the thread's alone.
        self._is_asked = False
        self._teller: asyncio.Task[None] | None = None
        self._is_stopped = False

    def start(self) -> None:
        self._thread.start()

    @property
    def told_count(self) -> int:
        """Return how much waits to be told."""
        return len(self._told)

    def call(self, call: HookCall) -> Callable[[], None]:
        """Begin a call beside all others; what is returned gives it up."""
        holder: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = self._loop.create_task(self._call(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            holder.append(task)

        def give_up() -> None:
            self._in_thread(lambda: [task.cancel() for task in holder])

        self._in_thread(begin)
        return give_up

    def tell(self, call: HookCall) -> bool:
        """Make a call behind those told before; False when too much waits."""
        waiting_bytes = self._told_bytes - self._begun_bytes
        if (
            len(self._told) >= limits.HOOK_EVENTS_WAITING_MAX
            or waiting_bytes + call.size > limits.HOOK_EVENTS_BYTES_MAX
        ):
            return False
        self._told.append(call)
        self._told_bytes += call.size
        if not self._is_asked:
            self._is_asked = True
            self._in_thread(self._begin_telling)
        return True

    async def stop(self) -> None:
        """End the thread; calls that have not ended by then are given up."""
        if self._is_stopped or not self._thread.is_alive():
            return
        self._is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _STOP_TIMEOUT_S)
        self._pool.shutdown(wait=False)

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(end(self._tasks))
        finally:
            self._loop.close()

    def _in_thread(self, action: Callable[[], object]) -> None:
        if not self._is_stopped:
            self._loop.call_soon_threadsafe(action)

    def _begin_telling(self) -> None:
        if self._teller is None:
            self._teller = self._loop.create_task(self._tell_all())
            self._tasks.add(self._teller)
            self._teller.add_done_callback(self._tasks.discard)

    async def _tell_all(self) -> None:
        while True:
            while self._told:
                call = self._told.popleft()
                self._begun_bytes += call.size
                await self._call(call)
            self._is_asked = False
            # What the front end has added before that is found here; it asks for what it adds after it.
            if not self._told:
                self._teller = None
                return

    async def _call(self, call: HookCall) -> None:
        began_s = time.monotonic()
        result: Any = None
        error: BaseException | None = None
        try:
            if inspect.iscoroutinefunction(call.method):
                result = await call.method(*call.arguments)
            else:
                result = await self._loop.run_in_executor(self._pool, call.method, *call.arguments)
                if inspect.isawaitable(result):
                    result = await result
        except asyncio.CancelledError:
            return
        except BaseException as raised:
            error = raised
        seconds = time.monotonic() - began_s
        if not self._is_stopped:
            self._front_loop.call_soon_threadsafe(call.done, result, error, seconds)
