"""Questions of operators about one process (30075): the broker's own, or a front end's, which is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iotmq import limits
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.sessions.front_ends import FrontEnds
from iotmq.errors import RefusedError, RequestError
from iotmq.metrics import Metric, samples
from iotmq.ports.inspections import Inspections
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class InspectionHandler(RequestProcessor):
    """Has a bounded number of questions under way, each with a time limit at who answers it."""

    def __init__(self, front_ends: FrontEnds, own: Inspections) -> None:
        self._front_ends = front_ends
        self._own = own
        self._running = 0
        self.asked_total = 0
        self.failed_total = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.INSPECT: self._inspect}

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_inspections_total", "Questions of operators about a process.", self.asked_total),
            (
                "iotmq_broker_failed_inspections_total",
                "Those refused or not answered.",
                self.failed_total,
            ),
        )

    def _inspect(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("name")
        front_end = request.text("frontEnd", "")
        body = request.body_bytes()
        if len(body) > limits.INSPECTION_QUESTION_BYTES_MAX:
            raise RefusedError(f"a question has {limits.INSPECTION_QUESTION_BYTES_MAX} bytes at most")
        if self._running >= limits.INSPECTIONS_PENDING_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{self._running} inspections wait for an answer; ask again later"
            )
        answer = DeferredReply(connection, request)

        def done(outcome: bytes | RequestError) -> None:
            self._running -= 1
            if isinstance(outcome, RequestError):
                self.failed_total += 1
                answer.refuse(outcome)
            elif not request.is_oneway:
                answer.answer(request.reply(ResponseCode.SUCCESS, body=outcome))

        self._running += 1
        self.asked_total += 1
        if not front_end:
            self._own.ask(name, body, done)
        elif not self._front_ends.inspect(front_end, name, body, done):
            done(
                RequestError(
                    ResponseCode.CONSUMER_NOT_ONLINE, f"no front end {front_end[:80]!r} is connected"
                )
            )
        return answer.now_or_later()
