"""Pulls of what is not in memory: the disk is waited for in threads, the answer is made on the loop.

Threads are few, because a disk gains nothing from many; the pulls that wait for one are bounded, because
each keeps its request. One too many is told that the broker is busy, and clients come again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from iotmq.errors import RefusedError, RequestError, StoreError
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.store.queues.cold_steps import Steps
from iotmq.store.queues.residency import ColdRead
from iotmq.store.store import Store
from iotmq.telemetry.latencies import now_us

T = TypeVar("T")


class ColdReads:
    """Brings in pages for the loop, off the loop."""

    def __init__(self, store: Store, *, threads_max: int, waiting_max: int) -> None:
        self._store = store
        self._waiting_max = waiting_max
        # Its threads start with the first cold read.
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="iotmq-cold-read")
        self._is_stopped = False
        # When each read under way was asked for, oldest first.
        self._begun_us: dict[Future[None], int] = {}
        self.waiting_count = 0
        self.reads_count = 0
        self.refused_count = 0
        self.failed_count = 0

    def start(self, plan: ColdRead, ready: Callable[[OSError | None], None]) -> None:
        """Call `ready` on the loop once the pages are there, or with what the disk said instead.

        Raises RequestError (SYSTEM_BUSY) when too many wait already.
        """
        if self.waiting_count >= self._waiting_max or self._is_stopped:
            self.refused_count += 1
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{self.waiting_count} pulls wait for the disk already; try again later",
            )
        self.waiting_count += 1
        self.reads_count += 1
        loop = asyncio.get_running_loop()

        def finished(done: Future[None]) -> None:
            if done.cancelled():
                return
            try:
                loop.call_soon_threadsafe(self._finish, done, ready)
            except RuntimeError:
                # The loop is closed: nobody waits any more.
                pass

        future = self._threads.submit(self._store.load, plan)
        self._begun_us[future] = now_us()
        future.add_done_callback(finished)

    def finish(
        self, steps: Steps[T], done: Callable[[T], object], refused: Callable[[RequestError], object]
    ) -> None:
        """Work on steps and hand their answer on: at once when all is in memory, else later, on the loop.

        `refused` is called instead with what steps or `done` raise: RequestError, or what the store or the
        disk says.
        """

        def ready(error: OSError | None) -> None:
            if error is None:
                self.finish(steps, done, refused)
            else:
                remark = f"the disk does not give what is stored there: {error.strerror or error}"
                refused(RefusedError(remark))

        try:
            plan = next(steps)
            while plan is None:
                plan = next(steps)
            self.start(plan, ready)
        except StopIteration as finished:
            answer: T = finished.value
            try:
                done(answer)
            except RequestError as error:
                refused(error)
        except RequestError as error:
            refused(error)
        except StoreError as error:
            refused(RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))

    def stop(self) -> None:
        """Forget what waits. Reads under way end by themselves and are not answered."""
        self._is_stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def longest_wait_ms(self) -> int:
        """Return how long the oldest read under way has taken, 0 when there is none."""
        begun_us = next(iter(self._begun_us.values()), None)
        return 0 if begun_us is None else (now_us() - begun_us) // 1_000

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_cold_reads_total", "Times a pull waited for the disk.", self.reads_count),
            ("iotmq_broker_cold_reads_waiting", "Pulls that wait for the disk.", self.waiting_count),
            (
                "iotmq_broker_refused_cold_reads_total",
                "Pulls refused because too many waited for the disk.",
                self.refused_count,
            ),
            ("iotmq_broker_failed_cold_reads_total", "Reads the disk refused.", self.failed_count),
        )

    def _finish(self, done: Future[None], ready: Callable[[OSError | None], None]) -> None:
        self.waiting_count -= 1
        self._begun_us.pop(done, None)
        if self._is_stopped:
            return
        error = done.exception()
        if error is None:
            ready(None)
        elif isinstance(error, OSError):
            self.failed_count += 1
            ready(error)
        else:
            raise error
