"""The broker's side of MQTT front ends: in the same process, and over the native protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.delivery.delivery import DeliveryChannel, LiveDelivery, gather
from iotmq.broker.delivery.delivery_catch_up import Attached, DeliveryCatchUp
from iotmq.broker.exactly_once.stored_once import Append
from iotmq.broker.parts import BrokerParts
from iotmq.broker.questions.device_replies import DeviceReplies
from iotmq.broker.replies.request_table import Handler
from iotmq.broker.scheduled.delayed_batches import DelayedBatches
from iotmq.broker.tables.topics import TIMER_TOPIC, UNSENDABLE_TOPICS
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.stored_reply import StoredReply
from iotmq.errors import ConfigError, ConnectionClosedError, RefusedError, RequestError
from iotmq.message.errors import MessageFormatError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.topics import is_valid_filter, wildcard_shape
from iotmq.ports.gateway import AppendDone, DeliveryReceiver, RouteOf, dropped_replies_metric
from iotmq.remoting.codes import PACKET_IDS_FIELD, REPEAT_FIELD, RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

logger = logging.getLogger(__name__)

_NOT_DURABLE: Final = "the batch is stored, but not as durably as store.flush promises"


class LocalGateway:
    """`ports.gateway.GatewayPort` as method calls on the broker of the same process.

    `host` is the address records of devices carry as their born host (8 or 20 bytes).
    """

    def __init__(
        self, parts: BrokerParts, delayed: DelayedBatches, replies: DeviceReplies, delivery: LiveDelivery
    ) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._delayed = delayed
        self._stored_once = parts.stored_once
        self._replies = replies
        self._topics = parts.topics
        self._delivery = delivery
        self._host = parts.host
        self._clock = parts.clock
        self._record_bytes_max = parts.store.settings.record_bytes_max
        self._dropped_replies = 0
        # Set by start().
        self._channel: DeliveryChannel | None = None
        self._queue_counts: dict[str, int] = {}
        self._queues_changed: Callable[[], None] = _nothing

    @property
    def record_bytes_max(self) -> int:
        return self._record_bytes_max

    @property
    def not_ready_reason(self) -> str | None:
        return self._writer.refusal or (None if self._parts.settings.is_writable else _NOT_WRITABLE)

    async def start(
        self,
        topics: Collection[str],
        receiver: DeliveryReceiver,
        queues_changed: Callable[[], None],
        *,
        route_of: RouteOf,
    ) -> None:
        await self.add_topics(topics)
        self._queues_changed = queues_changed
        self._topics.add_listener(self._topic_changed)
        self._channel = self._delivery.open_channel(receiver.deliver)

    async def add_topics(self, topics: Collection[str]) -> None:
        """Make the topics; ConfigError for a name that takes no messages."""
        for topic in topics:
            try:
                count = self._writer.queue_count(topic, create=True)
            except RequestError as error:
                raise ConfigError(f"mqtt.routes: {error}") from None
            if not count:
                raise ConfigError(f"mqtt.routes: broker topic {topic} does not take messages")
            self._queue_counts[topic] = count

    async def stop(self) -> None:
        self._queues_changed = _nothing
        if self._channel is not None:
            self._delivery.close_channel(self._channel)
            self._channel = None

    def queue_count(self, topic: str) -> int:
        return self._queue_counts[topic]

    def append(
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        *,
        count: int,
        is_stored: bool,
        has_packet_ids: bool,
        is_repeat: bool,
        done: AppendDone,
    ) -> None:
        now_ms = self._clock.now_ms()
        # What came for a queue that was taken away meanwhile goes on in its order, to one other queue.
        queue_id %= self._queue_counts[topic]
        if not is_stored:
            try:
                self._delivery.publish_transient(
                    elements, topic.encode(), queue_id, now_ms=now_ms, host=self._host
                )
            except MessageFormatError as error:
                done(ResponseCode.MESSAGE_ILLEGAL, str(error))
                return
            self._done(done)
            return

        if not self._parts.settings.is_writable:
            done(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_WRITABLE)
            return
        append = partial(
            self._writer.append,
            topic,
            queue_id,
            born_timestamp_ms=now_ms,
            born_host=self._host,
            is_patient=True,
        )
        if has_packet_ids:
            self._store_once(topic, elements, append, done)
        else:
            append(elements, done=partial(self._report, done))

    def append_delayed(
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        *,
        count: int,
        has_packet_ids: bool,
        is_repeat: bool,
        done: AppendDone,
    ) -> None:
        if not self._parts.settings.is_writable:
            done(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_WRITABLE)
            return
        queue_id %= self._queue_counts[topic]
        append = partial(self._delayed.append, topic, queue_id, born_host=self._host)
        if has_packet_ids:
            self._store_once(topic, elements, append, done)
        else:
            append(elements, done=partial(self._report, done))

    def append_own(
        self, topic: str, elements: Buffer, *, count: int, is_repeat: bool, done: AppendDone
    ) -> None:
        self._writer.append(
            topic,
            0,
            elements,
            born_timestamp_ms=self._clock.now_ms(),
            born_host=self._host,
            is_patient=True,
            is_internal=True,
            done=partial(self._report, done),
        )

    def _store_once(self, topic: str, elements: Buffer, append: Append, done: AppendDone) -> None:
        # What is offered again was refused before: here nothing is uncertain.
        self._stored_once.append(
            (topic,), elements, append, partial(self._report, done), is_repeat=False, has_packet_ids=True
        )

    def _report(self, done: AppendDone, outcome: StoredBatch | RefusedBatch) -> None:
        """Turn the writer's answer into the port's."""
        if isinstance(outcome, RefusedBatch):
            # As from afar, where the route has no queue that takes messages: devices wait until there is one.
            is_topic_closed = outcome.code == ResponseCode.NO_PERMISSION
            done(ResponseCode.SERVICE_NOT_AVAILABLE if is_topic_closed else outcome.code, outcome.remark)
        elif outcome.status == ResponseCode.SUCCESS:
            self._done(done)
        # Else it is in the log, and the store has given up or stops: whether it stays there the next start
        # finds out. Nobody is told that it is stored, and nobody that it is not, or it would be stored again.

    def _done(self, done: AppendDone) -> None:
        """Answer once subscribers have been told, so that publishers are no faster than matching is."""
        self._delivery.call_matched(partial(done, ResponseCode.SUCCESS, ""))

    @property
    def may_lose_answers(self) -> bool:
        return False

    def broker_of(self, topic: str, queue_id: int, *, is_delayed: bool) -> str:
        return ""

    def release(self, broker: str | None, body: bytes, done: AppendDone) -> None:
        self._stored_once.release(body, partial(self._report, done), now_ms=self._clock.now_ms())

    def reply(self, broker: str, topic: str, client_id: str, body: bytes) -> None:
        # Whatever broker it names: who asks is connected here, or to nobody this process could reach.
        try:
            self._replies.reply(topic, client_id, body)
        except RequestError:
            self._dropped_replies += 1

    def attach(self, filters: Sequence[tuple[int, str]], done: Callable[[bool], None]) -> None:
        assert self._channel is not None, "start() was not called"
        self._delivery.attach(self._channel, filters)
        done(True)

    def detach(self, filter_ids: Sequence[int]) -> None:
        if self._channel is not None:
            self._delivery.detach(self._channel, filter_ids)

    def metrics(self) -> Iterable[Metric]:
        yield from dropped_replies_metric(self._dropped_replies)

    def _topic_changed(self, topic: str) -> None:
        if topic in self._queue_counts:
            if self._topics.find(topic) is None:
                # Deleted by an operator: devices go on, in a topic without the messages of before.
                asyncio.get_running_loop().call_soon(self._make_again, topic)
                return
            count = self._writer.queue_count(topic, create=False)
            if count and count != self._queue_counts[topic]:
                self._queue_counts[topic] = count
                self._queues_changed()

    def _make_again(self, topic: str) -> None:
        self._writer.queue_count(topic, create=True)


_NOT_WRITABLE: Final = "this broker does not take messages (broker.is_writable)"
_Body = TypeVar("_Body", bound=msgspec.Struct)


def _tell(connection: ServerConnection, position: int) -> None:
    """Push no records, and say up to where the log has been read."""
    ext = {"matchesBytes": "0", "nextPosition": str(position)}
    connection.send_oneway(Command.request(RequestCode.DELIVER_RECORDS, ext, oneway=True))


def _nothing() -> None:
    pass


def _check_filters(filters: Sequence[tuple[int, str]]) -> None:
    for filter_id, topic_filter in filters:
        if not 0 < filter_id < 1 << 32:
            raise RefusedError(f"filter id {filter_id} is not a positive 32-bit number")
        if not topic_filter or not is_valid_filter(topic_filter):
            raise RefusedError(f"{topic_filter!r} is not a topic filter")


def _check_marks(marks: Sequence[tuple[int, str]]) -> None:
    _check_filters(marks)
    for _, topic_filter in marks:
        if wildcard_shape(topic_filter) is not None:
            raise RefusedError(f"{topic_filter!r} has wildcards: it cannot be a mark")


class _FrontEnd:
    """One connection's channel, and what is to be attached to it."""

    __slots__ = ("catching_up", "channel", "held", "push")

    def __init__(self, channel: DeliveryChannel, push: Callable[[Buffer, bytes], None]) -> None:
        self.channel = channel
        self.push = push
        # Waits for the request with the last ones.
        self.held = Attached([], [])
        # While what was missed is being sent.
        self.catching_up: asyncio.Task[None] | None = None


class _AttachBody(msgspec.Struct, forbid_unknown_fields=True):
    filters: list[tuple[int, str]]
    marks: list[tuple[int, str]] = []


class _DetachBody(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[int]
    marks: list[tuple[int, str]] = []


class GatewayHandler:
    """Delivery channels over native connections (request codes 30001-30005, docs/reference/wire-protocol.md).

    A connection has one channel, which lives as long as it does.
    """

    def __init__(
        self, parts: BrokerParts, delayed: DelayedBatches, delivery: LiveDelivery, catch_up: DeliveryCatchUp
    ) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._delayed = delayed
        self._stored_once = parts.stored_once
        self._delivery = delivery
        self._catch_up = catch_up
        self._host = parts.host
        self._record_bytes_max = parts.store.settings.record_bytes_max
        self._clock = parts.clock
        self._front_ends: dict[ServerConnection, _FrontEnd] = {}
        self.pushed_bytes = 0
        # Pushes not sent because the front end did not take the ones before.
        self.dropped_pushes = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.ATTACH_FILTERS: self._attach,
            RequestCode.DETACH_FILTERS: self._detach,
            RequestCode.PUBLISH_TRANSIENT: self._publish_transient,
            RequestCode.PUBLISH_DELAYED: self._publish_delayed,
            RequestCode.RELEASE_PACKET_IDS: self._release,
        }

    def connection_lost(self, connection: ServerConnection) -> None:
        front_end = self._front_ends.pop(connection, None)
        if front_end is not None:
            if front_end.catching_up is not None:
                front_end.catching_up.cancel()
            self._delivery.close_channel(front_end.channel)

    def _attach(self, connection: ServerConnection, request: Command) -> Command | None:
        body = _decode(request, _AttachBody)
        front_end = self._front_ends.get(connection)
        if front_end is None:
            push = self._pusher(connection)
            front_end = _FrontEnd(self._delivery.open_channel(push), push)
            self._front_ends[connection] = front_end
        _check_filters(body.filters)
        _check_marks(body.marks)
        channel = front_end.channel
        count = len(channel.filters) + channel.mark_count + channel.coming
        count += front_end.held.filter_count + len(body.filters) + len(body.marks)
        if count > limits.FILTERS_PER_CHANNEL_MAX:
            raise RefusedError(f"a channel has at most {limits.FILTERS_PER_CHANNEL_MAX} filters")
        if body.marks and not self._delivery.takes_marks(channel):
            raise RefusedError(f"at most {limits.MARKING_CHANNELS_MAX} front ends have marks")
        front_end.held.add(body.filters, body.marks)
        if request.boolean("isHeld", False):
            return self._attached(request)
        attached, front_end.held = front_end.held, Attached([], [])
        if "since" not in request.ext:
            self._delivery.attach(channel, attached.filters, attached.marks)
            return self._attached(request)
        if front_end.catching_up is not None:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "the channel is catching up already")
        since = request.integer("since", minimum=0)
        front_end.catching_up = asyncio.ensure_future(
            self._bring_up(connection, request, front_end, attached, since)
        )
        return None

    async def _bring_up(
        self,
        connection: ServerConnection,
        request: Command,
        front_end: _FrontEnd,
        attached: Attached,
        since: int,
    ) -> None:
        try:
            gap = await self._catch_up.attach(
                connection,
                front_end.channel,
                attached,
                front_end.push,
                since=since,
                tell=partial(_tell, connection) if request.boolean("fromDisk", False) else None,
            )
            answer = self._attached(request)
            if gap is not None:
                answer.ext |= {
                    "isGap": "true",
                    "gapFrom": str(gap.from_position),
                    "gapTo": str(gap.to_position),
                }
        except ConnectionClosedError:
            return
        except Exception as error:
            # Whatever it is, the front end has to know: it asks again.
            logger.exception("a front end could not be brought up to date")
            answer = request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        finally:
            front_end.catching_up = None
        connection.reply(answer)

    def _attached(self, request: Command) -> Command:
        """Confirm an attachment: records from `position` on will be pushed, matches before it have been.

        The filters just attached may begin a little later: at what was stored when their request came.
        """
        return request.reply(
            ResponseCode.SUCCESS,
            ext={
                "recordBytesMax": str(self._record_bytes_max),
                "position": str(self._delivery.matched_position),
            },
        )

    def _detach(self, connection: ServerConnection, request: Command) -> Command:
        body = _decode(request, _DetachBody)
        front_end = self._front_ends.get(connection)
        if front_end is not None:
            self._delivery.detach(front_end.channel, body.ids, body.marks)
        return request.reply(ResponseCode.SUCCESS)

    def _queue_of(self, request: Command) -> tuple[str, int]:
        topic = request.text("topic")
        queue_id = request.integer("queueId")
        # A topic that nothing was stored in yet has no queues here; front ends count on those it will have.
        queue_count = self._writer.queue_count(topic, create=False) or limits.QUEUES_PER_TOPIC_MAX
        if not 0 <= queue_id < queue_count:
            raise RefusedError(f"the queueId {queue_id} is not one of topic {topic}")
        return topic, queue_id

    def _publish_delayed(self, connection: ServerConnection, request: Command) -> Command | None:
        if not self._parts.settings.is_writable:
            # Devices wait until it is.
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_WRITABLE)
        topic, queue_id = self._queue_of(request)
        # Nothing may have been stored in the topic yet.
        count = self._writer.queue_count(topic, create=True)
        if not count or topic in UNSENDABLE_TOPICS:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {topic} does not take messages")
        answer = StoredReply(connection, request, _respond)
        self._stored_once.append(
            (TIMER_TOPIC, topic),
            _bytes(request),
            partial(self._delayed.append, topic, queue_id % count, born_host=self._host),
            answer,
            is_repeat=request.boolean(REPEAT_FIELD, False),
            has_packet_ids=request.boolean(PACKET_IDS_FIELD, False),
        )
        return answer.now_or_later()

    def _release(self, connection: ServerConnection, request: Command) -> Command | None:
        body = bytes(_bytes(request))
        if len(body) > limits.RELEASED_BODY_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a release of more than {limits.RELEASED_BODY_BYTES_MAX} bytes",
            )
        answer = StoredReply(connection, request, _respond)
        self._stored_once.release(body, answer, now_ms=self._clock.now_ms())
        return answer.now_or_later()

    def _publish_transient(self, connection: ServerConnection, request: Command) -> Command:
        topic, queue_id = self._queue_of(request)
        try:
            self._delivery.publish_transient(
                _bytes(request), topic.encode(), queue_id, now_ms=self._clock.now_ms(), host=self._host
            )
        except MessageFormatError as error:
            return request.reply(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
        return request.reply(ResponseCode.SUCCESS)

    def _pusher(self, connection: ServerConnection) -> Callable[[Buffer, bytes], None]:
        def push(records: Buffer, matches: bytes) -> None:
            if connection.unsent_bytes > limits.PUSHES_UNSENT_BYTES_MAX:
                self.dropped_pushes += 1
                return
            wanted, places, next_position = gather(records, matches)
            self.pushed_bytes += len(wanted)
            connection.send_oneway(
                Command.request(
                    RequestCode.DELIVER_RECORDS,
                    {"matchesBytes": str(len(places)), "nextPosition": str(next_position)},
                    [places, wanted],
                    oneway=True,
                )
            )

        return push

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_broker_delivery_channels",
                "Front ends with a delivery channel.",
                self._delivery.channel_count,
            ),
            (
                "iotmq_broker_filters",
                "Distinct MQTT topic filters of front ends, without those of which there are marks only.",
                self._delivery.filter_count,
            ),
            (
                "iotmq_broker_filter_marks",
                "Filters without wildcards whose messages come to another broker as a rule: a mark each.",
                self._delivery.marks.count,
            ),
            (
                "iotmq_broker_delivery_backlog_bytes",
                "Bytes of records that are to be matched with live filters in the next turns.",
                self._delivery.backlog_bytes,
            ),
            ("iotmq_broker_matched_total", "Records that matched a live filter.", self._delivery.matched),
            (
                "iotmq_broker_pushed_bytes_total",
                "Bytes of records pushed to remote front ends.",
                self.pushed_bytes,
            ),
            (
                "iotmq_broker_delivery_catch_ups_total",
                "Front ends that came back and got the messages they had missed.",
                self._catch_up.caught_up_total,
            ),
            (
                "iotmq_broker_delivery_gaps_total",
                "Front ends that came back too late for the messages they had missed: see store.hot_bytes.",
                self._catch_up.gaps_total,
            ),
            (
                "iotmq_broker_dropped_pushes_total",
                "Pushes dropped because a front end did not take those before.",
                self.dropped_pushes,
            ),
            (
                "iotmq_broker_failed_pushes_total",
                "Pushes to a front end that failed here; the log has the first.",
                self._delivery.failed_pushes,
            ),
        )


def _respond(request: Command, stored: StoredBatch) -> Command:
    remark = None if stored.status == ResponseCode.SUCCESS else _NOT_DURABLE
    return request.reply(stored.status, remark=remark)


def _bytes(request: Command) -> bytes | memoryview:
    body = request.body
    return b"".join(body) if isinstance(body, list) else body


def _decode(request: Command, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(_bytes(request), type=kind)
    except msgspec.DecodeError as error:
        raise RefusedError(f"the body cannot be read: {error}") from None
