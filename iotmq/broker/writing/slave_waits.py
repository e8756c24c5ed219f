"""Sends to a sync master wait for a slave here, behind the flush if there is one.

A send that no slave can be expected to have soon has its status at once, SLAVE_NOT_AVAILABLE; one that no
slave has in time has FLUSH_SLAVE_TIMEOUT. Both stay stored. A bad status of a slave replaces one of the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from iotmq.broker.broker_role import Slaves
from iotmq.clock import Clock
from iotmq.event_loop import DeadlineTimer
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import surviving


class _SlaveWait:
    """Called in place of `done`, once, when the disk's part is over."""

    __slots__ = ("_waits", "batch", "deadline_s", "done", "end_position", "is_ok", "is_patient")

    def __init__(
        self,
        waits: SlaveWaits,
        end_position: int,
        done: Callable[[Any], None],
        *,
        deadline_s: float,
        is_ok: bool,
        is_patient: bool,
    ) -> None:
        self._waits = waits
        self.end_position = end_position
        self.deadline_s = deadline_s
        self.done = done
        # Whether a slave could be waited for when the batch was appended.
        self.is_ok = is_ok
        self.is_patient = is_patient
        # The stored batch or run; set by the call.
        self.batch: Any = None

    def __call__(self, batch: Any) -> None:
        self.batch = batch
        self._waits.begin(self)


class SlaveWaits:
    """The batches of one writer. All calls are the event loop's."""

    def __init__(self, slaves: Slaves, clock: Clock, *, timeout_s: float) -> None:
        self._slaves = slaves
        self._clock = clock
        self._timeout_s = timeout_s
        self._timer = DeadlineTimer(clock, self.time_out)
        self._waiting: deque[_SlaveWait] = deque()
        self.unavailable_count = 0
        self.timeouts_count = 0
        slaves.add_listener(self._reported)

    def __len__(self) -> int:
        """Batches and runs that wait for a slave only."""
        return len(self._waiting)

    def then(
        self, end_position: int, done: Callable[[Any], None], *, is_patient: bool = False
    ) -> Callable[[Any], None]:
        """Return what to call in place of `done` for records that were appended just now.

        `done` is then called when a slave has them, with another `status` when none has them in time. A
        patient caller could only send the same again: its status stays.
        """
        return _SlaveWait(
            self,
            end_position,
            done,
            deadline_s=self._clock.monotonic_s() + self._timeout_s,
            is_ok=self._slaves.is_ok(end_position),
            is_patient=is_patient,
        )

    def begin(self, wait: _SlaveWait) -> None:
        """Answer a batch that the disk has, or has not in time, or let it wait on."""
        if not wait.is_ok:
            self.unavailable_count += 1
            _end(wait, ResponseCode.SLAVE_NOT_AVAILABLE)
        elif self._slaves.reported_position >= wait.end_position:
            wait.done(wait.batch)
        elif self._clock.monotonic_s() >= wait.deadline_s:
            self._time_out(wait)
        else:
            self._waiting.append(wait)
            self._timer.arm(wait.deadline_s)

    def time_out(self) -> None:
        """Answer the batches that no slave has in time."""
        now_s = self._clock.monotonic_s()
        late = [wait for wait in self._waiting if wait.deadline_s <= now_s]
        self._waiting = deque(wait for wait in self._waiting if wait.deadline_s > now_s)
        for wait in late:
            self._time_out(wait)
        if self._waiting:
            self._timer.arm(min(wait.deadline_s for wait in self._waiting))

    def finish(self) -> None:
        """Answer everything that still waits as not known to be at a slave. The last call."""
        self._timer.cancel()
        while self._waiting:
            self._time_out(self._waiting.popleft())

    def forget(self) -> None:
        """Answer nothing any more."""
        self._timer.cancel()
        self._waiting.clear()

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_broker_slave_unavailable_total",
                "Batches stored while no slave was connected and near.",
                self.unavailable_count,
            ),
            (
                "iotmq_broker_slave_timeouts_total",
                "Batches stored that no slave had in time.",
                self.timeouts_count,
            ),
            ("iotmq_broker_slave_waiting_batches", "Batches and runs waiting for a slave.", len(self)),
        )

    def _reported(self) -> None:
        position = self._slaves.reported_position
        waiting = self._waiting
        while waiting and waiting[0].end_position <= position:
            wait = waiting.popleft()
            # The others are answered whatever it raises: nobody comes by for them before the next report.
            with surviving("answers to batches that a slave has"):
                wait.done(wait.batch)

    def _time_out(self, wait: _SlaveWait) -> None:
        self.timeouts_count += 1
        # Nobody comes by for the others at all.
        with surviving("answers to batches that no slave has in time"):
            _end(wait, ResponseCode.FLUSH_SLAVE_TIMEOUT)


def _end(wait: _SlaveWait, status: int) -> None:
    if not wait.is_patient:
        wait.batch.status = status
    wait.done(wait.batch)
