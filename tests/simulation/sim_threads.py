"""Threads of a simulated process: greenlets that run in the turns of its loop, at times drawn from the seed.

The code of the threads is the product's, as it is. `THREADING` stands in the place of the module `threading`
in the modules that start threads; only what waits may be interrupted, so the code between two waits is one
step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest import mock

from greenlet import getcurrent, greenlet

import iotmq.store.log.allocation as allocation_module
import iotmq.store.log.flush as flush_module
import iotmq.store.recovery.checkpoint as checkpoint_module
import iotmq.store.retention.delete_thread as delete_thread_module

if TYPE_CHECKING:
    from sim_world import Process

MODULES = (allocation_module, flush_module, checkpoint_module, delete_thread_module)


class VirtualThread:
    """One thread; has what the product uses of `threading.Thread`."""

    def __init__(
        self,
        *,
        target: Callable[..., None],
        args: Sequence[Any] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self._process = running_process()
        self._greenlet = greenlet(lambda: target(*args))
        self._greenlet.virtual_thread = self
        self._timer: Any = None
        self.ident: int | None = None
        self.name = name

    def start(self) -> None:
        self.ident = id(self)
        self.wake()

    def is_alive(self) -> bool:
        return self.ident is not None and not self._greenlet.dead

    def join(self) -> None:
        """Run it to its end: who joins has told it before to stop."""
        steps = 0
        while self.is_alive():
            self._run()
            steps += 1
            assert steps < 1_000, f"thread {self.name} does not end"

    def wake(self, after_s: float | None = None) -> None:
        """Have it run in a moment, or after so long unless it is woken before."""
        loop, draw = self._process.loop, self._process.world.random
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(draw.expovariate(2_000) if after_s is None else after_s, self._run)

    def sleep(self, seconds: float | None) -> None:
        """Called by the thread: the others go on until it is woken, or for so long."""
        if seconds is not None:
            self.wake(seconds)
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()

    def _run(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._greenlet.dead:
            self._greenlet.parent = getcurrent()
            self._greenlet.switch()

    @staticmethod
    def current() -> VirtualThread | None:
        """The one that runs; None in a callback of the loop."""
        return getattr(getcurrent(), "virtual_thread", None)


class VirtualEvent:
    """As `threading.Event`. Only threads wait for one."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[VirtualThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        thread = VirtualThread.current()
        if not self._is_set and thread is not None:
            self._waiting.append(thread)
            thread.sleep(timeout)
            if thread in self._waiting:
                self._waiting.remove(thread)
        return self._is_set


class _Threading:
    Thread = VirtualThread
    Event = VirtualEvent
    Lock = staticmethod(threading.Lock)


THREADING = _Threading()

_running: list[Process] = []


def running_process() -> Process:
    """The process whose turn it is."""
    return _running[-1]


class Turn:
    """While it lasts, it is the turn of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __enter__(self) -> None:
        _running.append(self._process)

    def __exit__(self, *_: object) -> None:
        _running.pop()


def install(stack: ExitStack) -> None:
    """Have the modules that start threads start virtual ones."""
    for module in MODULES:
        stack.enter_context(mock.patch.object(module, "threading", THREADING))
