"""The devices of this process: their numbers, what they receive together, and the end of a run.

A run ends in three steps. Locust stops the users; what is under way may arrive for `SETTLE_S`; what has not
is counted as lost, and the devices disconnect. Only then are results reported and judged, on a master for
all its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final

import gevent
import gevent.event
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING, WorkerRunner

from loadtest.users.device import Device
from loadtest.users.faults import Fault
from loadtest.users.loop_thread import LoopThread
from loadtest.users.sequences import Loss, SequenceCheck, Streams
from loadtest.users.statistics import Batch, merge

if TYPE_CHECKING:
    from locust.env import Environment

_log = logging.getLogger("loadtest.process")

# How long what is under way at the end may take to arrive; and it is over when all devices are connected,
# and nothing has arrived for so long.
SETTLE_S: Final = 10.0
QUIET_S: Final = 2.0
_LOOK_S: Final = 0.25

_ENDING: Final = {STATE_CLEANUP, STATE_STOPPING, STATE_STOPPED}


class Process:
    """The devices of one environment in this process."""

    _known: ClassVar[dict[int, Process]] = {}

    @classmethod
    def get(cls, environment: Environment) -> Process:
        """Return that of an environment."""
        found = cls._known.get(id(environment))
        if found is None:
            found = cls._known[id(environment)] = cls(environment)
        return found

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.thread = LoopThread.get()
        self.streams = Streams(max(0, getattr(environment.runner, "worker_index", 0)))
        is_alone = not isinstance(environment.runner, WorkerRunner)
        self.check = SequenceCheck(
            self.streams.by_number, follows_groups=is_alone, began_ns=time.monotonic_ns()
        )
        # Devices that say good-bye; for the loop's thread.
        self.leaving: set[asyncio.Task[None]] = set()
        self._devices: dict[Device, None] = {}
        self._closings: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._has_warned = False
        self._watch: asyncio.Task[None] | None = None
        self.thread.post(self._begin_watch)
        environment.events.test_stop.add_listener(self._settle)

    @property
    def devices_count(self) -> int:
        return len(self._devices)

    @property
    def connected_count(self) -> int:
        return sum(device.is_connected for device in self._devices)

    def add(self, device: Device) -> None:
        self._devices[device] = None

    def remove(self, device: Device) -> None:
        self._devices.pop(device, None)

    def is_known(self, device: Device) -> bool:
        return device in self._devices

    @property
    def is_ending(self) -> bool:
        """Return whether Locust stops all users, and not just some."""
        runner = self._environment.runner
        return runner is None or runner.state in _ENDING

    def joins_group(self, name: str) -> None:
        """Say once that nobody checks a group whose members are in several processes."""
        if not self.check.follows_groups and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: losses and repeats of a group are not counted with workers, each of which knows its own "
                "members only; swarms count them",
                name,
            )

    def close_at_end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a consumer receive until everything has arrived, and close it then."""
        self._closings.append(close)

    def _begin_watch(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now_ns = time.monotonic_ns()
            for device in list(self._devices):
                device.look(now_ns)
            self._tell(self.check.losses(now_ns / 1e9))

    def _tell(self, losses: list[Loss]) -> None:
        if losses:
            self.thread.tell(self._count, losses)

    def _count(self, losses: list[Loss]) -> None:
        for loss in losses:
            row = ("", loss.topic) if loss.owner is None else loss.owner.received_row(loss.topic, loss.qos)
            batch = Batch(*row)
            batch.add_failures(Fault(loss.kind), loss.message_count)
            merge(self._environment.stats, batch)

    def _settle(self, **_: Any) -> None:
        """Wait for what is under way, count what is lost, disconnect; a listener of `test_stop`."""
        if not self._devices and not self._closings:
            return
        with contextlib.suppress(gevent.Timeout):
            self.thread.run(self._finish(), timeout_s=3 * SETTLE_S)
        done = gevent.event.Event()
        # Behind everything that was told before.
        self.thread.post(self.thread.tell, done.set)
        done.wait(SETTLE_S)

    async def _finish(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + SETTLE_S
        devices, self._devices = list(self._devices), {}
        progress, since_s = (-1, -1), loop.time()
        while loop.time() < deadline_s:
            if self.check.is_complete and not any(
                device.is_connected and device.unfinished_count for device in devices
            ):
                break
            now = (sum(device.unfinished_count for device in devices), self.check.received_count)
            if now != progress:
                progress, since_s = now, loop.time()
            elif loop.time() - since_s > QUIET_S and all(device.is_settled for device in devices):
                break
            await asyncio.sleep(0.05)
        self._tell(self.check.losses(loop.time(), is_over=True))
        closings, self._closings = self._closings, []
        await asyncio.gather(
            *(device.leave(loop.time()) for device in devices), *(close() for close in closings)
        )
        if self.leaving:
            await asyncio.wait(self.leaving, timeout=SETTLE_S)
