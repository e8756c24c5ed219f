"""Sending: codes 10, 310 and 320, oneway and answered (wire document 4.1)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from iotmq import limits
from iotmq.broker.handlers.native.send_fast_path import SendPath
from iotmq.broker.parts import BrokerParts
from iotmq.broker.questions import device_requests
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.reply_after_registration import WhenTold
from iotmq.broker.replies.request_table import Handler
from iotmq.broker.scheduled.delivery_time import HINT, NOW
from iotmq.broker.scheduled.scheduling import DelayDelivery
from iotmq.broker.tables.config_saver import Saved
from iotmq.broker.tables.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    UNSENDABLE_TOPICS,
    TopicConfig,
    check_topic_name,
)
from iotmq.broker.transactions.half_messages import is_prepared
from iotmq.broker.transactions.transactions import Transactions
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.send_properties import element_wishes, without_wait
from iotmq.broker.writing.single_message_batch import encode_element, inflate_batch
from iotmq.broker.writing.stored_reply import StoredReply
from iotmq.errors import RefusedError, RequestError
from iotmq.message.bodies import COMPRESSED
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import (
    NUMBERED_FIELD,
    PACKET_IDS_FIELD,
    REPEAT_FIELD,
    RequestCode,
    ResponseCode,
    Version,
)
from iotmq.remoting.command import Command
from iotmq.remoting.frames.send_frames import SendRun
from iotmq.remoting.server import ServerConnection
from iotmq.store.log.queue import Queue

_INT32_MIN = -(2**31)
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

_NO_WAIT = "WAIT\x01false"
_TRUE = ("true", "1")
# What a request takes besides its body and properties.
_REQUEST_BYTES = 2_048
# Parts of properties that ask for more than storing: a send that has one anywhere among its properties goes
# the general path. The first is in all names for a time of delivery. A feature that reads another property of
# sends adds it here.
_GENERAL_PROPERTIES = (b"DEL", b"TRAN_MSG", device_requests.HINT)


def _at_once(call: Callable[[], None]) -> None:
    call()


def _saved_at_once(saved: Saved) -> None:
    saved(None)


class FieldNames(NamedTuple):
    """Name the fields of a send's header; the second version abbreviates them to letters."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str
    max_reconsume_times: str
    batch: str


_LONG_NAMES = FieldNames(
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "maxReconsumeTimes",
    "batch",
)
_SHORT_NAMES = FieldNames("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "l", "m")


class SendHeader(NamedTuple):
    """The header of a send, checked."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: int
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    properties: str


class _PostponedSend(NamedTuple):
    """A send to a topic that topics.json does not have yet."""

    answer: DeferredReply
    connection: ServerConnection
    request: Command
    names: FieldNames
    is_batch: bool
    size_bytes: int


class SendHandler:
    """Checks sends in the order of the protocol and hands them to the writer."""

    def __init__(
        self,
        parts: BrokerParts,
        delivery: DelayDelivery,
        transactions: Transactions | None = None,
        *,
        when_told: WhenTold = _at_once,
        when_topics_saved: Callable[[Saved], None] = _saved_at_once,
    ) -> None:
        """Without `transactions` prepared messages are refused.

        The other two are for sends that make topics: calling back when registries know them, and when
        topics.json has them.
        """
        self._when_told = when_told
        self._when_topics_saved = when_topics_saved
        # Topics that sends have made and topics.json may lack, with the sends that wait for it.
        self._unsaved_topics: dict[str, list[_PostponedSend]] = {}
        self._waiting_bytes = 0
        self._transactions = transactions
        self._parts = parts
        self._writer = parts.writer
        self._topics = parts.topics
        self._subscription_groups = parts.subscription_groups
        self._message_ids = parts.message_ids
        self._delivery = delivery
        self._stored_once = parts.stored_once
        settings = parts.settings
        self._broker_name = settings.name
        # The last property, and none of the format's own records has a separator behind that.
        self._cluster_property = f"CLUSTER\x01{settings.cluster}".encode()
        self._region = settings.region
        # The encoded address of each peer that sends.
        self._born_hosts: dict[ServerConnection, bytes] = {}
        self.sends_count = 0
        self.failed_count = 0
        # A batch is bounded as a whole like a single message (wire document 4.1).
        self._batch_bytes_max = parts.store.settings.record_bytes_max
        self._path = SendPath(
            parts,
            self._open_queues,
            batch_properties=self._cluster_property,
            general_properties=_GENERAL_PROPERTIES,
        )
        parts.topics.add_listener(self._topic_changed)
        parts.changed_settings.add_listener(self._settings_changed)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self._send_long,
            RequestCode.SEND_MESSAGE_V2: self._send_short,
            RequestCode.SEND_BATCH_MESSAGE: self._send_batch,
        }

    def _settings_changed(self) -> None:
        self._path.forget_all()
        self._path.change_trace_on(self._parts.settings.trace_on)

    def serve_run(self, connection: ServerConnection, run: SendRun, at: int) -> int:
        """Store plain sends of a run from number `at` on; the number of the first that is not plain."""
        born_host = self._born_hosts.get(connection) or self._born_host(connection)
        end = self._path.serve(connection, born_host, run, at)
        self.sends_count += end - at
        return end

    def connection_lost(self, connection: ServerConnection) -> None:
        self._born_hosts.pop(connection, None)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_sends_total", "Send requests.", self.sends_count),
            ("iotmq_broker_failed_sends_total", "Sends not stored.", self.failed_count),
        )

    def _open_queues(self, name: str) -> list[Queue | None] | None:
        """The queues of a topic that plain sends may go to; None for one that needs the checks of `_store`.

        Asked once per topic until it changes: whatever `_store` asks of a topic has its place here too.
        """
        topic = self._topics.find(name)
        if topic is None or not topic.is_writable or not self._parts.settings.is_writable:
            return None
        if name in self._unsaved_topics:
            return None
        if name in UNSENDABLE_TOPICS or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return None
        return self._writer.open_queues(name)

    def _send_long(self, connection: ServerConnection, request: Command) -> Command | None:
        return self._send(connection, request, _LONG_NAMES, request.ext.get("batch") in _TRUE)

    def _send_short(self, connection: ServerConnection, request: Command) -> Command | None:
        return self._send(connection, request, _SHORT_NAMES, request.ext.get("m") in _TRUE)

    def _send_batch(self, connection: ServerConnection, request: Command) -> Command | None:
        return self._send(connection, request, _SHORT_NAMES, True)

    def _send(
        self, connection: ServerConnection, request: Command, names: FieldNames, is_batch: bool
    ) -> Command | None:
        self.sends_count += 1
        try:
            return self._store(connection, request, names, is_batch)
        except RequestError:
            self.failed_count += 1
            raise

    def _topic_changed(self, topic: str) -> None:
        self._path.forget(topic)
        if self._topics.find(topic) is None and not self._unsaved_topics.get(topic):
            self._unsaved_topics.pop(topic, None)

    def _wait_for_topic(self, send: _PostponedSend, topic: str) -> None:
        """Carry a send out once registries know the topic that a send has just made, and topics.json has it.

        After a crash the number of queues of a topic that the file lacks is not known, and with another
        number the messages of a key go to another queue.
        """
        if self._waiting_bytes + send.size_bytes > limits.SENDS_WAITING_FOR_TOPIC_BYTES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"topic {topic} is new and not on the disk yet, and too many sends wait for that: try again",
            )
        self._waiting_bytes += send.size_bytes
        waiting = self._unsaved_topics[topic]
        waiting.append(send)
        if len(waiting) == 1:
            self._when_told(partial(self._when_topics_saved, partial(self._topic_saved, topic)))

    def _topic_saved(self, topic: str, error: OSError | None) -> None:
        """Go on, also when the disk refuses the file: a new topic serves all the same."""
        waiting = self._unsaved_topics.pop(topic)
        self._path.forget(topic)
        for answer, connection, request, names, is_batch, size_bytes in waiting:
            self._waiting_bytes -= size_bytes
            try:
                response = self._store(connection, request, names, is_batch)
            except RequestError as refusal:
                self.failed_count += 1
                response = request.reply(refusal.code, remark=str(refusal))
            if response is not None and not request.is_oneway:
                answer.answer(response)

    def _store(
        self, connection: ServerConnection, request: Command, names: FieldNames, is_batch: bool
    ) -> Command | None:
        ext = request.ext
        header = _read_header(request, names)
        _check_names(header, names)
        version = self._topics.version
        topic = self._find_topic(header, is_batch)
        name = topic.topic_name
        if self._topics.version is not version:
            self._unsaved_topics.setdefault(name, [])
        if name in self._unsaved_topics:
            # A view would keep everything that was received with it.
            request.body = request.body_bytes()
            size_bytes = len(request.body) + len(header.properties) + _REQUEST_BYTES
            reply = DeferredReply(connection, request)
            postponed = _PostponedSend(reply, connection, request, names, is_batch, size_bytes)
            self._wait_for_topic(postponed, name)
            return reply.now_or_later()
        queue_id = header.queue_id
        if queue_id >= topic.queue_count:
            raise RefusedError(
                f"the field {names.queue_id} (queueId) is {queue_id}, "
                f"but topic {name} has {topic.queue_count} queues"
            )
        if not topic.is_writable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {name} does not take messages")

        properties = header.properties.encode()
        if len(properties) > limits.PROPERTIES_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the field {names.properties} (properties) has {len(properties)} bytes, "
                f"more than {limits.PROPERTIES_BYTES_MAX}",
            )
        reconsume_times = 0
        if names.reconsume_times in ext:
            reconsume_times = request.integer(names.reconsume_times, 0, minimum=0, maximum=_INT32_MAX)
        if name.startswith(RETRY_PREFIX):
            topic, queue_id = self._retry_or_dead_letter(
                request, names, topic, queue_id=queue_id, reconsume_times=reconsume_times
            )
            name = topic.topic_name
        if queue_id < 0:
            queue_id = random.randrange(topic.write_queue_nums)
        properties = device_requests.with_reply_topic(properties, broker=self._broker_name)
        delivery_time = NOW
        if HINT in properties and not name.startswith(DLQ_PREFIX):
            delivery_time = self._delivery.timers.read_delivery_time(properties)
            if is_batch and delivery_time is not NOW:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    "a batch cannot wait for a time: send messages with DELAY or TIMER_ properties alone",
                )
        if is_prepared(properties, header.sys_flag) and not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return self._prepare(connection, request, header, name, queue_id, properties, is_batch=is_batch)
        if delivery_time.cancelled_key:
            return self._cancel_timer(
                connection, request, name, queue_id, delivery_time.cancelled_key.decode()
            )
        sys_flag = header.sys_flag

        respond = self._respond
        topics: tuple[str, ...] = (name,)
        if is_batch:
            if properties and not properties.endswith(b"\x02"):
                properties += b"\x02"
            elements = request.body if not isinstance(request.body, list) else request.body_bytes()
            if sys_flag & COMPRESSED:
                elements, sys_flag = inflate_batch(elements, sys_flag)
            if len(elements) > self._batch_bytes_max:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"a batch of {len(elements)} bytes; store.record_bytes_max is {self._batch_bytes_max}",
                )
            for wished in element_wishes(elements):
                if self._delivery.timers.read_delivery_time(wished) is not NOW:
                    raise RequestError(
                        ResponseCode.MESSAGE_ILLEGAL,
                        "a message of a batch cannot wait for a time: send it alone, with its DELAY or "
                        "TIMER_ property",
                    )
            batch_properties = properties + self._cluster_property
        else:
            if delivery_time is not NOW:
                timers = self._delivery.timers
                # The answer names the queue the message is for, not the one it waits in.
                handle = timers.recall_handle(name, properties, delivery_time)
                respond = partial(self._respond, queue_id=queue_id, recall_handle=handle)
                # What comes from a consumer that cannot give it back otherwise was taken once already.
                is_new = not name.startswith(RETRY_PREFIX)
                waiting = timers.divert(name, queue_id, properties, delivery_time, is_counted=is_new)
                name, queue_id, properties = waiting[:3]
                topics = (name, *topics)
            else:
                properties = without_wait(properties)
            body = request.body if not isinstance(request.body, list) else request.body_bytes()
            elements = encode_element(body, properties, header.flag)
            batch_properties = self._cluster_property

        answer = StoredReply(connection, request, respond, refused=self._count_failure)
        is_same = self._topics.version is version
        append = partial(
            self._writer.append,
            name,
            queue_id,
            born_timestamp_ms=header.born_timestamp_ms,
            born_host=self._born_hosts.get(connection) or self._born_host(connection),
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            batch_properties=batch_properties,
            waits_for_flush=_NO_WAIT not in header.properties,
        )
        done = answer if is_same else partial(self._answer_when_told, answer)
        if REPEAT_FIELD in ext or PACKET_IDS_FIELD in ext or NUMBERED_FIELD in ext:
            self._stored_once.append(
                topics,
                elements,
                append,
                done,
                is_repeat=request.boolean(REPEAT_FIELD, False),
                has_packet_ids=request.boolean(PACKET_IDS_FIELD, False),
                is_numbered=request.boolean(NUMBERED_FIELD, False),
            )
        else:
            append(elements, done=done)
        return answer.now_or_later()

    def _answer_when_told(self, answer: StoredReply, result: StoredBatch | RefusedBatch) -> None:
        """The next thing its sender does may be to ask a registry for the route of the topic it made."""
        self._when_told(partial(answer, result))

    def _cancel_timer(
        self, connection: ServerConnection, request: Command, topic: str, queue_id: int, unique_key: str
    ) -> Command | None:
        """A message that only says that another one is not to be delivered."""
        respond = partial(self._respond, queue_id=queue_id)
        answer = StoredReply(connection, request, respond, refused=self._count_failure)
        self._delivery.timers.cancel(topic, unique_key, answer)
        return answer.now_or_later()

    def _prepare(
        self,
        connection: ServerConnection,
        request: Command,
        header: SendHeader,
        topic: str,
        queue_id: int,
        properties: bytes,
        *,
        is_batch: bool,
    ) -> Command | None:
        """Store the first half of a transaction."""
        if self._transactions is None:
            raise RequestError(ResponseCode.NO_PERMISSION, "this broker takes no transactional messages")
        if is_batch:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction")
        transaction_id = (property_value(properties, b"UNIQ_KEY") or b"").decode()
        respond = partial(self._respond, queue_id=queue_id, transaction_id=transaction_id)
        answer = StoredReply(connection, request, respond, refused=self._count_failure)
        self._transactions.prepare(
            topic,
            queue_id,
            request.body_bytes(),
            properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp_ms=header.born_timestamp_ms,
            born_host=self._born_hosts.get(connection) or self._born_host(connection),
            batch_properties=self._cluster_property,
            done=answer,
        )
        return answer.now_or_later()

    def _find_topic(self, header: SendHeader, is_batch: bool) -> TopicConfig:
        """The topic to write to, made when that is allowed; the checks of the protocol in its order."""
        name = header.topic
        topic = self._topics.find(name)
        if not self._parts.settings.is_writable:
            raise RequestError(ResponseCode.NO_PERMISSION, "this broker does not take messages")
        if topic is None:
            if is_batch and len(name.encode()) > limits.TOPIC_BYTES_MAX:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL, f"the topic has more than {limits.TOPIC_BYTES_MAX} bytes"
                )
            check_topic_name(name)
        if name in UNSENDABLE_TOPICS:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {name} belongs to the broker")
        if is_batch and name.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"no batches to the retry topic {name}")
        if topic is None:
            if name.startswith(RETRY_PREFIX):
                group = self._subscription_groups.find(name.removeprefix(RETRY_PREFIX))
                topic = self._topics.ensure(
                    name, queues=1 if group is None else max(1, group.retry_queue_nums)
                )
            else:
                topic = self._topics.create_from_template(
                    name, header.default_topic, header.default_topic_queues
                )
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {name} does not exist and is not made after {header.default_topic}",
            )
        return topic

    def _retry_or_dead_letter(
        self, request: Command, names: FieldNames, topic: TopicConfig, *, queue_id: int, reconsume_times: int
    ) -> tuple[TopicConfig, int]:
        """Return where a message goes that a consumer sent to its own retry topic (wire document 10.2)."""
        group_name = topic.topic_name.removeprefix(RETRY_PREFIX)
        group = self._subscription_groups.find_or_create(group_name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group_name} does not exist"
            )
        # Clients whose own maximum it is count one less, as RocketMQ 4 does.
        times_max = group.retry_max_times + 1
        if request.version >= Version.HONOURS_MAX_RECONSUME_TIMES:
            times_max = request.integer(
                names.max_reconsume_times, times_max, minimum=_INT32_MIN, maximum=_INT32_MAX
            )
        if reconsume_times < times_max:
            return topic, queue_id
        return self._topics.ensure(DLQ_PREFIX + group_name, queues=1), 0

    def _born_host(self, connection: ServerConnection) -> bytes:
        host, port = connection.peer
        encoded = self._born_hosts[connection] = encode_host(host, port)
        return encoded

    def _count_failure(self) -> None:
        self.failed_count += 1

    def _respond(
        self,
        request: Command,
        stored: StoredBatch,
        *,
        queue_id: int | None = None,
        transaction_id: str | None = None,
        recall_handle: str | None = None,
    ) -> Command:
        appended = stored.appended
        if appended.count == 1 or appended.count > self._message_ids.joined_max:
            message_id = self._message_ids.one(appended.start_position)
        else:
            message_id = self._message_ids.joined(appended.positions())
        ext = {
            "msgId": message_id,
            "queueId": str(stored.queue_id if queue_id is None else queue_id),
            "queueOffset": str(appended.first_offset),
            "MSG_REGION": self._region,
            "TRACE_ON": self._parts.settings.trace_on,
        }
        if transaction_id is not None:
            ext["transactionId"] = transaction_id
        if recall_handle is not None:
            ext["recallHandle"] = recall_handle
        return request.reply(stored.status, ext=ext)


def _check_names(header: SendHeader, names: FieldNames) -> None:
    """Raise RequestError (1) for an overlong name; the topic itself is looked up, or checked when new."""
    for field, meaning, value, size_max in (
        (names.producer_group, "producerGroup", header.producer_group, limits.GROUP_BYTES_MAX),
        (names.default_topic, "defaultTopic", header.default_topic, limits.TOPIC_BYTES_MAX),
    ):
        # A character has at least a byte, and at most four.
        if 4 * len(value) > size_max and (size := len(value.encode())) > size_max:
            raise RefusedError(f"the field {field} ({meaning}) has {size} bytes, more than {size_max}")


def _read_header(request: Command, names: FieldNames) -> SendHeader:
    """Read the fields of a send. Raises RequestError for the first one that is missing or wrong."""
    return SendHeader(
        request.text(names.producer_group),
        request.text(names.topic),
        request.text(names.default_topic),
        max(1, request.integer(names.default_topic_queues, minimum=_INT32_MIN, maximum=_INT32_MAX)),
        request.integer(names.queue_id, minimum=_INT32_MIN, maximum=_INT32_MAX),
        request.integer(names.sys_flag, minimum=0, maximum=_INT32_MAX),
        request.integer(names.born_timestamp, minimum=0, maximum=_INT64_MAX),
        request.integer(names.flag, minimum=_INT32_MIN, maximum=_INT32_MAX),
        request.text(names.properties, ""),
    )
