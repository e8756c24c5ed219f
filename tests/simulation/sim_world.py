"""A simulated world: one time, one source of chance, machines with disks, processes, and their network.

Everything that happens is put into a trace; the same seed makes the same trace.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import logging
import math
import os
import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest import mock

import aiohappyeyeballs
import sim_threads
from crash_model import DiskRecorder, watching
from sim_disk import Disk
from sim_loop import ProcessLoop, start_connection
from sim_network import Network, VirtualListeningSocket, VirtualSockets

import iotmq.client.transport.client as client_module
import iotmq.mqtt_front.listen.listeners as listeners_module
from iotmq.supervised import Failures

EPOCH_MS: Final = 1_700_000_000_000
# More turns than this without the time going on are a loop that never ends.
TURNS_AT_ONCE_MAX: Final = 20_000


class BrokenPromiseError(AssertionError):
    """Something happened that must not, whatever fails."""


class Clock:
    """The clock of a machine: its wall time may be set, and each boot counts its seconds from another one."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Since when the wall time is so many milliseconds ahead of the world's.
        self._steps = [(0.0, 0)]
        # What the time since the boot is ahead of the world's.
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        return wall_ms(self._world.now_s) + self._steps[-1][1]

    def monotonic_s(self) -> float:
        return self._world.now_s + self.ahead_s

    def step(self, by_ms: int) -> None:
        """Set the wall time."""
        self._steps.append((self._world.now_s, self._steps[-1][1] + by_ms))

    @property
    def is_right(self) -> bool:
        """Whether nobody has set it."""
        return len(self._steps) == 1

    def boot(self) -> None:
        """Count seconds anew."""
        self.ahead_s = float(self._world.random.randint(1, 100) - int(self._world.now_s))

    def shown_ms(self, first_s: float, last_s: float) -> tuple[int, int]:
        """The earliest and the latest wall time between two moments of the world."""
        shown = [
            wall_ms(moment_s) + ahead_ms
            for (since_s, ahead_ms), (until_s, _) in pairwise([*self._steps, (math.inf, 0)])
            if since_s <= last_s and until_s > first_s
            for moment_s in (max(since_s, first_s), min(until_s, last_s))
        ]
        return min(shown), max(shown)

    def moments_s(self, shown_ms: int, first_s: float, last_s: float) -> list[float]:
        """When it has shown a wall time between two moments, to the millisecond."""
        return [
            moment_s
            for (since_s, ahead_ms), (until_s, _) in pairwise([*self._steps, (math.inf, 0)])
            if max(since_s, first_s) - 0.001
            <= (moment_s := (shown_ms - ahead_ms - EPOCH_MS) / 1000)
            <= min(until_s, last_s)
        ]


def wall_ms(now_s: float) -> int:
    """What a clock shows that nobody has set."""
    return EPOCH_MS + math.floor(now_s * 1000)


class World:
    """Use `open_world`."""

    def __init__(self, seed: object, directory: Path) -> None:
        self.random = random.Random(f"world {seed}")
        self.directory = directory
        self.now_s = 1_000.0
        self.network = Network(self)
        self.processes: list[Process] = []
        self.machines: dict[str, Machine] = {}
        # Addresses of machines without power.
        self.dark_hosts: set[str] = set()
        # What went wrong where no one else would say so.
        self.problems: list[str] = []
        self.recorders: list[DiskRecorder] = []
        self.steps = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._trace = hashlib.blake2b(digest_size=16)
        # Of the last events, for who looks for a reason; all of them where somebody asked for that.
        self.log: list[str] = []
        self.is_verbose = False

    @property
    def trace(self) -> str:
        """A digest of everything that has happened."""
        return self._trace.hexdigest()

    def note(self, *facts: object) -> None:
        line = f"{self.now_s:.6f} {facts!r}"
        self._trace.update(line.encode())
        if self.is_verbose:
            self.log.append(line)

    def machine(self, name: str) -> Machine:
        """A machine, with an address and a disk of its own."""
        machine = self.machines[name] = Machine(self, name, len(self.machines) + 1)
        return machine

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), action))

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something that is no process's doing."""
        self.at(self.now_s + delay_s, action)

    def run_until(self, when_s: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Go on until that time, or until `is_over`, which is asked whenever the time moves."""
        turns = 0
        while not is_over():
            next_s = self._events[0][0] if self._events else when_s + 1
            now_s, due = self.now_s, []
            for process in self.processes:
                loop: Any = process.loop
                if loop._ready:
                    process_s = now_s
                elif loop._scheduled:
                    process_s = loop._scheduled[0]._when - process.ahead_s
                    if process_s < now_s:
                        process_s = now_s
                else:
                    continue
                if process_s < process.paused_until_s:
                    process_s = process.paused_until_s
                if process_s < next_s:
                    next_s, due = process_s, [process]
                elif process_s == next_s:
                    due.append(process)
            if next_s > when_s:
                self.now_s = when_s
                return is_over()
            if next_s > self.now_s:
                self.now_s, turns = next_s, 0
            turns += 1
            assert turns < TURNS_AT_ONCE_MAX, "a loop does not end"
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
            for process in due:
                if process.is_alive and process.paused_until_s <= next_s:
                    self.steps += 1
                    process.turn()
        return True

    def end(self) -> None:
        for process in list(self.processes):
            process.kill()


class Machine:
    """A computer with an address, a clock and a disk."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.host = f"127.1.0.{number}"
        self.clock = Clock(world)
        self.clock.boot()
        self.disk = Disk(world.directory / name, world.random, world.recorders)
        # Lives of processes started here so far.
        self.lives = 0


class Process:
    """One life of a process on a machine. Make it with a coroutine function that starts what runs in it."""

    def __init__(self, machine: Machine, kind: str) -> None:
        self.machine = machine
        self.world = machine.world
        machine.lives += 1
        self.name = f"{kind}@{machine.name}#{machine.lives}"
        self.host = machine.host
        self.clock = machine.clock
        # Its time is that of the machine since its boot.
        self.ahead_s = machine.clock.ahead_s
        self.loop = ProcessLoop(self)
        self.loop.set_exception_handler(self._asyncio_error)
        self.is_alive = True
        # As if stopped by a signal.
        self.paused_until_s = 0.0
        # What has to be let go of when it is killed, because the test's process goes on.
        self.on_killed: list[Callable[[], None]] = []
        # With what stores are opened here that are not opened by the test.
        self.store_options: dict[str, Any] = {}
        self.world.processes.append(self)
        self.world.note("start", self.name)

    def run(self, coroutine: Any) -> Any:
        """Begin a task in it. One that fails is a problem of the whole world."""
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._task_ended)
        return task

    def turn(self) -> None:
        with sim_threads.Turn(self):
            self.loop.turn()

    def at(self, when_s: float, action: Callable[[], None]) -> Any:
        if self.is_alive:
            return self.loop.call_at(when_s + self.ahead_s, action)
        return None

    def later(self, delay_s: float, action: Callable[[], None]) -> Any:
        return self.at(self.world.now_s + delay_s, action)

    def soon(self, action: Callable[[], None]) -> None:
        if self.is_alive:
            self.loop.call_soon(action)

    def kill(self, *, is_silent: bool = False) -> None:
        """No further turn. With `is_silent` nobody hears of it, because its machine is gone as well."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.note("kill", self.name)
        self.world.processes.remove(self)
        self.world.network.process_ended(self, is_silent=is_silent)
        with sim_threads.Turn(self):
            for action in self.on_killed:
                action()
            self.loop.bury()

    def _task_ended(self, task: Any) -> None:
        if not task.cancelled() and task.exception() is not None and self.is_alive:
            error = task.exception()
            self.world.problems.append(f"{self.name} at {self.world.now_s:.3f}: {error!r}")

    def _asyncio_error(self, loop: Any, context: dict[str, Any]) -> None:
        if self.is_alive:
            found = context.get("exception") or context.get("message")
            self.world.problems.append(f"{self.name} at {self.world.now_s:.3f}: {found!r} {context}")


@contextmanager
def open_world(seed: object, directory: Path, *, is_verbose: bool = False) -> Iterator[World]:
    """A world in an empty directory, whose time and chance the product's code has as long as it lasts."""
    directory.mkdir(parents=True, exist_ok=True)
    world = World(seed, directory)
    world.is_verbose = is_verbose
    chance = random.Random(f"product {seed}")
    saved = random.getstate()
    random.seed(f"module {seed}")

    nobodys = Clock(world)

    def clock() -> Clock:
        return sim_threads.running_process().clock if sim_threads._running else nobodys

    def now_s() -> float:
        return clock().monotonic_s()

    def wall_ns() -> int:
        return clock().now_ms() * 1_000_000

    def note_failure(self: Failures, name: str) -> None:
        if sim_threads.running_process().is_alive:
            world.problems.append(f"at {world.now_s:.3f} {name} failed: {traceback.format_exc()}")

    with ExitStack() as stack:
        stack.callback(random.setstate, saved)
        for function, replaced in (
            ("monotonic", now_s),
            ("perf_counter", now_s),
            ("thread_time", lambda: 0.0),
            ("monotonic_ns", lambda: round(now_s() * 1e9)),
            ("time", lambda: wall_ns() / 1e9),
            ("time_ns", wall_ns),
        ):
            stack.enter_context(mock.patch.object(time, function, replaced))
        stack.enter_context(mock.patch.object(os, "urandom", chance.randbytes))
        stack.enter_context(mock.patch.object(random, "_urandom", chance.randbytes))
        stack.enter_context(mock.patch.object(os, "getpid", return_value=1))
        # Names of clients have their number in the process.
        stack.enter_context(mock.patch.object(client_module, "_instances", itertools.count(1)))
        stack.enter_context(mock.patch.object(Failures, "note", note_failure))
        stack.enter_context(mock.patch.object(aiohappyeyeballs, "start_connection", start_connection))
        stack.enter_context(mock.patch.object(listeners_module, "Sockets", VirtualSockets))
        stack.enter_context(
            mock.patch.object(
                listeners_module,
                "_listen_tcp",
                lambda host, port, *, is_shared: VirtualListeningSocket(host, port),
            )
        )
        sim_threads.install(stack)
        stack.enter_context(watching(world.recorders))
        logger = logging.getLogger("iotmq")
        if not is_verbose:
            stack.callback(setattr, logger, "disabled", logger.disabled)
            level = logger.level
            stack.callback(logger.setLevel, level)
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield world
        finally:
            world.end()
            shutil.rmtree(directory, ignore_errors=True)
