"""Tell a producer that numbers its batches which one is the last here (30008)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from iotmq.broker.exactly_once.batch_marks import read_mark
from iotmq.broker.exactly_once.batch_numbers import BatchNumbers, key_of, unpacked
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.writing.message_writer import StoredRun
from iotmq.errors import RequestError, StoreError
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class BatchNumberHandler(RequestProcessor):
    """Answers once all that was appended before is as durable as promised."""

    def __init__(self, parts: BrokerParts) -> None:
        self._writer = parts.writer
        self._store = parts.store
        self._numbers: BatchNumbers = parts.stored_once.numbers
        self._cold_reads: ColdReads = parts.cold_reads

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.LAST_BATCH_NUMBER: self._last}

    def _last(self, connection: ServerConnection, request: Command) -> Command | None:
        key = key_of(request.text("topic"), request.text("producer").encode("utf-8", "replace"))
        answer = DeferredReply(connection, request)
        self._writer.when_flushed(partial(self._find, request, key, answer))
        return answer.now_or_later()

    def _find(self, request: Command, key: bytes, answer: DeferredReply, run: StoredRun) -> None:
        try:
            if run.status != ResponseCode.SUCCESS:
                raise StoreError("the disk takes too long")
            is_known = self._numbers.last(key) is not None
            position = self._numbers.last_position(key)
        except StoreError as error:
            answer.refuse(RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
            return
        if not is_known or position is None:
            answer.succeed()
            return
        self._cold_reads.finish(
            self._store.record_steps(position), partial(_answer, request, answer), answer.refuse
        )


def _answer(request: Command, answer: DeferredReply, view: memoryview | None) -> None:
    mark = None if view is None else read_mark(decode_record(view).properties)
    if mark is None:
        # Retention has deleted it meanwhile.
        answer.succeed()
        return
    # Of this record, and not of a later one that another task has just appended: its words go with it.
    _, number, _, _, queues = mark
    last = unpacked(number)
    ext = {"batch": str(last.batch), "number": str(last.number), "queues": queues.decode("utf-8", "replace")}
    if not request.is_oneway:
        answer.answer(request.reply(ResponseCode.SUCCESS, ext=ext))
