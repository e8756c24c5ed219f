"""Replies (324, 325) and handing them to who asked (326): the RocketMQ wire format, section 15.

A request is a message like any other that names its sender in REPLY_TO_CLIENT. The reply is sent to
`CLUSTER_REPLY_TOPIC` with the same property; the broker pushes it on that client's connection, stores it
when it is told to, and answers when both are done.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.tables.topics import UNSENDABLE_TOPICS, TopicConfig, check_topic_name
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import IotmqError, RefusedError, RequestError
from iotmq.message.hosts import decode_host, encode_host
from iotmq.message.records.record import property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

_Respond: TypeAlias = Callable[[Command, str, StoredBatch | RefusedBatch | None], Command]

_PUSH_S = 10.0
_INT32_MIN = -(2**31)
_INT32_MAX = 2**31 - 1
# What clients of the Java kind are told for a message that is not stored; they cannot read an empty id.
_NO_ID = "0"

# What 325 calls each field of 324.
_LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
}


class ReplyHeader(NamedTuple):
    """The header of a reply, checked. `fields` is what 326 repeats of it."""

    topic: str
    queue_id: int
    sys_flag: int
    flag: int
    born_timestamp_ms: int
    reconsume_times: int
    properties: str
    fields: dict[str, str]


class ReplyHandler(RequestProcessor):
    """Takes replies and pushes them to who asked."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._topics = parts.topics
        self._groups = parts.groups
        self._message_ids = parts.message_ids
        self._clock = parts.clock
        self._host = _address(*decode_host(parts.host))
        settings = parts.settings
        self._cluster_property = f"CLUSTER\x01{settings.cluster}".encode()
        self._region = settings.region
        self._stores_replies = settings.store_replies
        self._in_flight_max = limits.REPLIES_IN_FLIGHT_MAX
        # Pushes without an answer yet.
        self._in_flight = 0
        self.replies_count = 0
        self.pushed_count = 0
        self.failed_count = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: partial(self._reply, {name: name for name in _LETTERS}),
            RequestCode.SEND_REPLY_MESSAGE_V2: partial(self._reply, _LETTERS),
        }

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_replies_total", "Replies sent to clients.", self.replies_count),
            (
                "iotmq_broker_replies_pushed_total",
                "Replies that their requester has taken.",
                self.pushed_count,
            ),
            (
                "iotmq_broker_replies_failed_total",
                "Replies that could not be handed to their requester.",
                self.failed_count,
            ),
            ("iotmq_broker_replies_in_flight", "Replies handed over and not taken yet.", self._in_flight),
        )

    def _reply(
        self, names: Mapping[str, str], connection: ServerConnection, request: Command
    ) -> Command | None:
        header = _read_header(request, names)
        topic = self._topic_of(header, names)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(topic.write_queue_nums)
        properties = header.properties.encode()
        if len(properties) + len(self._cluster_property) >= limits.PROPERTIES_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the field {names['properties']} (properties) has {len(properties)} bytes, "
                f"more than {limits.PROPERTIES_BYTES_MAX}",
            )
        self.check_room()
        body = request.body_bytes()
        answer = _Answer(connection, request, partial(self._respond, queue_id))
        self.push(
            (property_value(properties, b"REPLY_TO_CLIENT") or b"").decode(),
            header.fields,
            header.properties,
            body,
            born_host=_address(*connection.peer),
            ended=answer.push_ended,
        )
        if self._stores_replies:
            self._writer.append(
                header.topic,
                queue_id,
                encode_element(body, properties, header.flag),
                born_timestamp_ms=header.born_timestamp_ms,
                born_host=encode_host(*connection.peer),
                sys_flag=header.sys_flag,
                reconsume_times=header.reconsume_times,
                batch_properties=self._cluster_property,
                done=answer.store_ended,
            )
        else:
            answer.store_ended(None)
        return answer.now_or_later()

    def _topic_of(self, header: ReplyHeader, names: Mapping[str, str]) -> TopicConfig:
        """Check a reply as any send, in the protocol's order."""
        if not self._parts.settings.is_writable:
            raise RequestError(ResponseCode.NO_PERMISSION, "this broker does not take messages")
        check_topic_name(header.topic)
        if header.topic in UNSENDABLE_TOPICS:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {header.topic} belongs to the broker")
        topic = self._topics.find(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {header.topic} does not exist; replies go to CLUSTER_REPLY_TOPIC",
            )
        if header.queue_id >= topic.queue_count:
            raise RefusedError(
                f"the field {names['queueId']} (queueId) is {header.queue_id}, but topic {header.topic} has "
                f"{topic.queue_count} queues"
            )
        if not topic.is_writable or topic.write_queue_nums < 1:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {header.topic} does not take messages")
        return topic

    def check_room(self) -> None:
        """Raise RequestError (14) while as many replies as there may be wait for their clients."""
        if self._in_flight >= self._in_flight_max:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{self._in_flight} replies wait for their clients; send this one again later",
            )

    def push(
        self,
        client_id: str,
        fields: Mapping[str, str],
        properties: str,
        body: bytes,
        *,
        born_host: str,
        ended: Callable[[str], None],
    ) -> None:
        """Hand a reply to the client that asked; `ended` is told what went wrong, or nothing, once.

        `fields` is what 326 repeats of a 324; `born_host` is HOST:PORT of who answered.
        """
        self.replies_count += 1

        def counted(problem: str) -> None:
            if problem:
                self.failed_count += 1
            else:
                self.pushed_count += 1
            ended(problem)

        if not client_id:
            counted("the property REPLY_TO_CLIENT is missing, so nobody can be told")
            return
        member = self._groups.producer_of(client_id)
        if member is None or member.connection.is_closed:
            counted(
                f"the client {client_id} of REPLY_TO_CLIENT is not connected to this broker as a producer"
            )
            return
        if member.connection.is_congested:
            counted(f"the client {client_id} does not read what it is sent")
            return
        now = str(self._clock.now_ms())
        separator = _separator_for(properties)
        push = Command.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            {
                **fields,
                "properties": f"{properties}{separator}PUSH_REPLY_TIME\x01{now}\x02",
                "bornHost": born_host,
                "storeHost": self._host,
                "storeTimestamp": now,
            },
            body,
        )

        def answered(future: asyncio.Future[Command]) -> None:
            self._in_flight -= 1
            error = ConnectionError("given up") if future.cancelled() else future.exception()
            if error is not None:
                text = str(error) if isinstance(error, IotmqError) else type(error).__name__
                counted(f"the client {client_id} did not take the reply: {text}")
            elif future.result().code != ResponseCode.SUCCESS:
                counted(
                    f"the client {client_id} refused the reply: {future.result().remark or 'no reason given'}"
                )
            else:
                counted("")

        try:
            future = member.connection.request(push, _PUSH_S)
        except ValueError as error:
            # What came in one frame may not fit another with our fields added.
            counted(f"the reply does not fit a request to the client {client_id}: {error}")
            return
        self._in_flight += 1
        future.add_done_callback(answered)

    def _respond(
        self, queue_id: int, request: Command, problem: str, stored: StoredBatch | RefusedBatch | None
    ) -> Command:
        """Return whether the reply arrived is what counts; a reply that is stored as well has an id."""
        message_id, offset = _NO_ID, 0
        if isinstance(stored, StoredBatch):
            message_id, offset = self._message_ids.one(stored.appended.start_position), stored.first_offset
        ext = {
            "msgId": message_id,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "MSG_REGION": self._region,
            "TRACE_ON": self._parts.settings.trace_on,
        }
        if problem:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=problem, ext=ext)
        return request.reply(ResponseCode.SUCCESS, ext=ext)


class _Answer(DeferredReply):
    """Answers once the push and the store have ended, each in its own time."""

    __slots__ = ("_parts_left", "_problem", "_respond", "_stored")

    def __init__(self, connection: ServerConnection, request: Command, respond: _Respond) -> None:
        super().__init__(connection, request)
        self._respond = respond
        self._parts_left = 2
        self._problem = ""
        self._stored: StoredBatch | RefusedBatch | None = None

    def push_ended(self, problem: str) -> None:
        self._problem = problem
        self._part_ended()

    def store_ended(self, result: StoredBatch | RefusedBatch | None) -> None:
        self._stored = result
        self._part_ended()

    def now_or_later(self) -> Command | None:
        response = super().now_or_later()
        if response is None:
            # What waits must not keep what was received alive.
            self._request.body = b""
        return response

    def _part_ended(self) -> None:
        self._parts_left -= 1
        if not self._parts_left and not self._request.is_oneway:
            self.answer(self._respond(self._request, self._problem, self._stored))


def _read_header(request: Command, names: Mapping[str, str]) -> ReplyHeader:
    """Return the fields of a reply. Raises RequestError for the first one that is missing or wrong."""
    fields = {name: request.text(names[name]) for name in ("producerGroup", "topic", "defaultTopic")}
    integers = {
        name: request.integer(names[name], minimum=minimum, maximum=maximum)
        for name, minimum, maximum in (
            ("defaultTopicQueueNums", _INT32_MIN, _INT32_MAX),
            ("queueId", _INT32_MIN, _INT32_MAX),
            ("sysFlag", 0, _INT32_MAX),
            ("bornTimestamp", 0, 2**63 - 1),
            ("flag", _INT32_MIN, _INT32_MAX),
        )
    }
    integers["reconsumeTimes"] = request.integer(names["reconsumeTimes"], 0, minimum=0, maximum=_INT32_MAX)
    fields.update((name, str(value)) for name, value in integers.items())
    fields["unitMode"] = "true" if request.boolean(names["unitMode"]) else "false"
    return ReplyHeader(
        topic=fields["topic"],
        queue_id=integers["queueId"],
        sys_flag=integers["sysFlag"],
        flag=integers["flag"],
        born_timestamp_ms=integers["bornTimestamp"],
        reconsume_times=integers["reconsumeTimes"],
        properties=request.text(names["properties"], ""),
        fields=fields,
    )


def _separator_for(properties: str) -> str:
    """Return the separator that has to stand between these properties and more of them."""
    return "\x02" if properties and not properties.endswith("\x02") else ""


def _address(host: str, port: int) -> str:
    """Parse HOST:PORT as Java clients do: everything before the last colon is the host."""
    return f"{host}:{port}"
