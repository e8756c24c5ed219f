"""Answer operators who ask a consumer through its broker: its progress (221), its state (307), and what
becomes of a message (309). Bodies are RocketMQ's (docs/reference/wire-protocol.md)."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from iotmq.client.consuming.consumption import Consumption
from iotmq.client.transport.application_calls import end_calls
from iotmq.client.transport.client import ANSWERED_LATER, ClientTransport, RequestHandler
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.subscriptions import Subscription, subscription_data
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import decode_record
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode, Version
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection

_MIB: Final = 1024 * 1024
# Messages given to us to consume at one time; operators try one, not thousands.
_DIRECT_MAX: Final = 16
_DIRECT_END_S: Final = 5.0


class QueueState(NamedTuple):
    """The state of one queue of a consumer: its offsets, cached messages and times."""

    committable: int
    next_offset: int
    cached_records: int
    cached_bytes: int
    records_total: int
    pulled_ms: int
    consumed_ms: int


class Status(NamedTuple):
    """Describe a consumer: its type and model."""

    group: str
    consume_type: str
    parallel: int
    is_orderly: bool
    registries: tuple[str, ...]
    subscriptions: Iterable[Subscription]
    queues: Mapping[MessageQueue, QueueState]


class ConsumerAnswers:
    """Answers for one consumer between `start` and `stop`."""

    def __init__(
        self,
        client: ClientTransport,
        consumption: Consumption,
        *,
        status: Callable[[], Status],
        consume: Callable[[ReceivedMessage], Awaitable[bool]] | None,
    ) -> None:
        """`consume` hands one message to the listener: False when it failed; None if that cannot be done."""
        self._client = client
        self._consumption = consumption
        self._status = status
        self._consume = consume
        self._started_ms = 0
        self._directs: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, RequestHandler] = {
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._tell_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._tell_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def start(self) -> None:
        self._started_ms = self._client.clock.now_ms()
        for code, handler in self._handlers.items():
            self._client.add_request_handler(code, handler)

    async def stop(self) -> None:
        for code, handler in self._handlers.items():
            self._client.remove_request_handler(code, handler)
        what = f"the listener of group {self._status().group}"
        await end_calls(self._directs, within_s=_DIRECT_END_S, what=what)

    def _tell_offsets(self, connection: ClientConnection, request: Command) -> Command | None:
        status = self._status()
        if request.ext.get("group") != status.group:
            return None
        topic = request.ext.get("topic", "")
        rows = [
            (_queue_text(queue), b"%d" % state.committable)
            for queue, state in status.queues.items()
            if topic in ("", queue.topic)
        ]
        body = b'{"messageQueueTable":%s}' % lenient_json.encode_object_map(rows)
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _tell_running_info(self, connection: ClientConnection, request: Command) -> Command | None:
        status = self._status()
        if request.ext.get("consumerGroup") != status.group:
            return None
        properties = {
            "PROP_CLIENT_VERSION": str(Version.OURS),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_ORDERLY": "true" if status.is_orderly else "false",
            "PROP_CONSUME_TYPE": status.consume_type,
            "PROP_NAMESERVER_ADDR": ";".join(status.registries),
            "PROP_THREADPOOL_CORE_SIZE": str(status.parallel),
        }
        rows = [(_queue_text(queue), _queue_state(state)) for queue, state in sorted(status.queues.items())]
        subscriptions = [subscription_data(subscription) for subscription in status.subscriptions]
        parts = {
            "jstack": _stacks() if request.ext.get("jstackEnable") == "true" else None,
            "properties": properties,
            "statusTable": {
                subscription.topic: self._topic_status(subscription.topic, status)
                for subscription in status.subscriptions
            },
            "subscriptionSet": subscriptions,
        }
        body = msgspec.json.encode(parts)[:-1] + b',"mqTable":' + lenient_json.encode_object_map(rows) + b"}"
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _topic_status(self, topic: str, status: Status) -> dict[str, float]:
        rate = self._consumption.rate(topic)
        pulled = sum(state.records_total for queue, state in status.queues.items() if queue.topic == topic)
        seconds = max(1.0, (self._client.clock.now_ms() - self._started_ms) / 1_000)
        return {
            "consumeFailedMsgs": self._consumption.failed_total(topic),
            "consumeFailedTPS": rate.failed_tps,
            "consumeOKTPS": rate.consumed_tps,
            "consumeRT": rate.average_ms,
            "pullRT": 0.0,
            "pullTPS": pulled / seconds,
        }

    def _consume_directly(self, connection: ClientConnection, request: Command) -> Command | None:
        group = self._status().group
        if request.ext.get("consumerGroup") != group:
            return None
        if self._consume is None:
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"group {group} has no listener of single messages here, only one of columns or none",
            )
        if len(self._directs) >= _DIRECT_MAX:
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="too many messages are being tried here")
        try:
            record = decode_record(request.body_bytes())
        except MessageFormatError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"the body is not a message: {error}")
        queue = MessageQueue(record.topic, request.ext.get("brokerName", ""), record.queue_id)
        task = asyncio.ensure_future(
            self._try(connection, request, self._consume, ReceivedMessage(queue, record))
        )
        self._directs.add(task)
        task.add_done_callback(self._directs.discard)
        return ANSWERED_LATER

    async def _try(
        self,
        connection: ClientConnection,
        request: Command,
        consume: Callable[[ReceivedMessage], Awaitable[bool]],
        message: ReceivedMessage,
    ) -> None:
        begun_s = time.perf_counter()
        result, remark = "CR_SUCCESS", None
        try:
            if not await consume(message):
                result = "CR_LATER"
        except Exception as error:
            result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        body = {
            "autoCommit": True,
            "consumeResult": result,
            "order": self._status().is_orderly,
            "remark": remark,
            "spentTimeMills": round((time.perf_counter() - begun_s) * 1_000),
        }
        connection.reply(request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(body)))


def _queue_text(queue: MessageQueue) -> bytes:
    return msgspec.json.encode(
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
    )


def _queue_state(state: QueueState) -> bytes:
    """Encode ProcessQueueInfo, without its fields about locks and transactions, which do not exist here."""
    return msgspec.json.encode(
        {
            "cachedMsgCount": state.cached_records,
            "cachedMsgMaxOffset": max(state.committable, state.next_offset - 1),
            "cachedMsgMinOffset": state.committable,
            "cachedMsgSizeInMiB": state.cached_bytes // _MIB,
            "commitOffset": state.committable,
            "droped": False,
            "lastConsumeTimestamp": state.consumed_ms,
            "lastPullTimestamp": state.pulled_ms,
            "locked": False,
        }
    )


def _stacks() -> str:
    """Return where every thread of this process is."""
    parts = [
        f"thread {thread_id}\n{''.join(traceback.format_stack(frame))}"
        for thread_id, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)
