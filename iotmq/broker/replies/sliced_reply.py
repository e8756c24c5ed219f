"""Answers that take long, given in slices so that nobody else waits for them.

The work is a generator: it yields where it may be interrupted, and what it yields says what for. None is
"if it is late enough"; a plan of the store is "until what I read next is in memory". It returns the answer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from typing import Final, TypeAlias

from iotmq import limits
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.errors import RequestError
from iotmq.event_loop import LoopSlice, NextTurn
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.queues.residency import ColdRead

logger = logging.getLogger(__name__)

Work: TypeAlias = Generator[ColdRead | None, None, Command]

# The loop belongs to one answer for about so long in each of its turns, however many are being worked on.
_SLICE_S: Final = 0.005


class _Job:
    __slots__ = ("connection", "request", "work")

    def __init__(self, connection: ServerConnection, request: Command, work: Work) -> None:
        self.connection = connection
        self.request = request
        self.work = work


class SlicedReplies(RequestProcessor):
    """Works on a bounded number of answers, each for the connection that asked.

    A processor without codes: the request table tells it of lost connections.
    """

    def __init__(
        self,
        cold_reads: ColdReads,
        *,
        running_max: int = limits.LONG_ANSWERS_MAX,
        slice_s: float = _SLICE_S,
    ) -> None:
        self._cold_reads = cold_reads
        self._running_max = running_max
        self._slice_s = slice_s
        self._running: set[_Job] = set()
        # Those of them that do not wait for the disk, in turn.
        self._ready: deque[_Job] = deque()
        self._next_turn = NextTurn(self._resume_next)
        self.refused_count = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {}

    def answer(self, connection: ServerConnection, request: Command, work: Work) -> Command | None:
        """The answer when one slice was enough, otherwise None: it will be sent. Raises RequestError."""
        if len(self._running) >= self._running_max:
            self.refused_count += 1
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._running)} long answers are being worked on; ask again later",
            )
        job = _Job(connection, request, work)
        self._running.add(job)
        if len(self._running) > 1:
            self._enqueue(job)
            return None
        try:
            response = self._advance(job)
        except Exception:
            self._running.discard(job)
            raise
        if response is not None:
            self._running.discard(job)
        return response

    def connection_lost(self, connection: ServerConnection) -> None:
        """Drop the answers of a lost connection."""
        for job in [job for job in self._running if job.connection is connection]:
            self._running.discard(job)
            job.work.close()

    def stop(self) -> None:
        """Answer nothing more."""
        for job in self._running:
            job.work.close()
        self._running.clear()
        self._ready.clear()

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_long_answers", "Long answers being worked on.", len(self._running)),
            (
                "iotmq_broker_refused_long_answers_total",
                "Questions refused because too many long answers were being worked on.",
                self.refused_count,
            ),
        )

    def _advance(self, job: _Job) -> Command | None:
        """Work for one slice; the answer when it is finished."""
        turn = LoopSlice(slice_s=self._slice_s)
        while turn.take():
            try:
                wanted = next(job.work)
            except StopIteration as finished:
                response: Command = finished.value
                return response
            if wanted is not None:
                self._cold_reads.start(wanted, lambda error: self._loaded(job, error))
                return None
        self._enqueue(job)
        return None

    def _enqueue(self, job: _Job) -> None:
        self._ready.append(job)
        self._next_turn.schedule()

    def _resume_next(self) -> None:
        """Carry out a slice of the job whose turn it is; other users of the loop come before the next."""
        while self._ready:
            job = self._ready.popleft()
            if job in self._running:
                self._resume(job)
                break
        if self._ready:
            self._next_turn.schedule()

    def _resume(self, job: _Job) -> None:
        try:
            response = self._advance(job)
        except RequestError as error:
            response = job.request.reply(error.code, remark=str(error))
        except Exception as error:
            logger.exception("the answer to a request with code %d failed", job.request.code)
            response = job.request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if response is not None:
            self._running.discard(job)
            job.connection.reply(response)

    def _loaded(self, job: _Job, error: OSError | None) -> None:
        if job not in self._running:
            return
        if error is None:
            self._enqueue(job)
        else:
            self._running.discard(job)
            job.work.close()
            job.connection.reply(
                job.request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"the disk does not give what is stored there: {error}",
                )
            )
