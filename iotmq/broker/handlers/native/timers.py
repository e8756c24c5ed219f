"""Waiting messages on request: taking one back (370 of RocketMQ 5.3, 30031), listing them (30030)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from iotmq import limits
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.scheduled.delivery_time import REAL_QUEUE_ID, REAL_TOPIC, UNIQUE_KEY
from iotmq.broker.scheduled.recall_handle import decode_handle
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.tables.topics import TopicTable, known_topic
from iotmq.broker.writing.stored_reply import StoredReply
from iotmq.errors import RefusedError, RequestError
from iotmq.message.records.record import Record, property_value
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.kv.timer_index import Timer

_PAGE_DEFAULT = 100


class WaitingMessage(msgspec.Struct, kw_only=True, rename="camel"):
    """One entry of a list; `level` is 0 for a message with a time of its own."""

    topic: str
    queue_id: int
    due_ms: int
    level: int
    unique_key: str
    store_timestamp: int
    body_size: int
    position: int


class WaitingPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to 30030; `next` is the field `after` of the request for the next page, None at the end."""

    timers: list[WaitingMessage]
    next: str | None
    pending: int


class TimerHandler(RequestProcessor):
    """Finds and cancels what waits. Whoever may send to a topic knows the keys of what it has sent."""

    def __init__(self, timers: Timers, topics: TopicTable, *, broker_name: str) -> None:
        self._timers = timers
        self._topics = topics
        self._broker_name = broker_name

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.RECALL_MESSAGE: self._recall,
            RequestCode.LIST_TIMERS: self._list,
            RequestCode.CANCEL_TIMER: self._cancel,
        }

    def _recall(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = request.text("topic")
        handle = decode_handle(request.text("recallHandle"))
        known_topic(self._topics, topic)
        for field, wanted, found in (
            ("topic", topic, handle.topic),
            ("broker name", self._broker_name, handle.broker_name),
        ):
            if wanted != found:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL, f"the recallHandle is for the {field} {found}, not {wanted}"
                )
        return self._cancel_timer(connection, request, topic, handle.unique_key)

    def _cancel(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = request.text("topic")
        unique_key = request.text("uniqueKey")
        if not unique_key:
            raise RefusedError("the field uniqueKey is empty")
        return self._cancel_timer(connection, request, topic, unique_key)

    def _cancel_timer(
        self, connection: ServerConnection, request: Command, topic: str, unique_key: str
    ) -> Command | None:
        ext = {"msgId": unique_key}
        answer = StoredReply(connection, request, lambda *_: request.reply(ResponseCode.SUCCESS, ext=ext))
        self._timers.cancel(topic, unique_key, answer)
        return answer.now_or_later()

    def _list(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = request.text("topic", "")
        timers_max = request.integer("maxNums", _PAGE_DEFAULT, minimum=1, maximum=limits.TIMERS_LISTED_MAX)
        after = _read_place(request.text("after", ""))
        answer = DeferredReply(connection, request)

        def ready(found: Sequence[tuple[Timer, Record]], place: tuple[int, int] | None) -> None:
            page = WaitingPage(
                timers=[_shown(timer, record) for timer, record in found],
                next=None if place is None else f"{place[0]}:{place[1]}",
                pending=self._timers.pending_count,
            )
            if not request.is_oneway:
                answer.answer(reply_json(request, page))

        def failed(error: OSError | RequestError) -> None:
            answer.refuse(error if isinstance(error, RequestError) else RefusedError(str(error)))

        self._timers.page(topic=topic, after=after, timers_max=timers_max, ready=ready, failed=failed)
        return answer.now_or_later()


def _read_place(text: str) -> tuple[int, int]:
    if not text:
        return -1, -1
    parts = text.split(":")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        return int(parts[0]), int(parts[1])
    raise RefusedError("the field after is not the `next` of the answer to a former request")


def _shown(timer: Timer, record: Record) -> WaitingMessage:
    def text(name: bytes) -> str:
        return (property_value(record.properties, name) or b"").decode("utf-8", "replace")

    queue_id = text(REAL_QUEUE_ID)
    return WaitingMessage(
        topic=text(REAL_TOPIC),
        queue_id=int(queue_id) if queue_id.isdecimal() and len(queue_id) <= 9 else 0,
        due_ms=timer.due_ms,
        level=timer.kind,
        unique_key=text(UNIQUE_KEY),
        store_timestamp=record.store_timestamp_ms,
        body_size=len(record.body),
        position=timer.position,
    )
