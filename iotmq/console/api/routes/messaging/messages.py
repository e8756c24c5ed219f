"""Messages: sent to devices and to broker topics, and read without consuming them."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.admin.devices.retained import RetainedAdmin
from iotmq.client.consuming.offsets import offsets
from iotmq.client.transport.message import Message
from iotmq.client.transport.routes import MessageQueue
from iotmq.console.api.arguments import header
from iotmq.console.api.batch_elements import ALONE_BYTES
from iotmq.console.api.batch_publishing import BatchPublisher
from iotmq.console.api.pages import Cursor
from iotmq.console.api.problems import (
    INVALID,
    NOT_FOUND,
    TOO_MANY,
    Problem,
    ProblemError,
    from_error,
    invalid,
)
from iotmq.console.api.publishing import Published, Stored, unique_key_of
from iotmq.console.api.route import Call, Coming, Role, route
from iotmq.console.api.routes.names import (
    BrokerText,
    MqttTopicText,
    Offset,
    QueueId,
    TimeMs,
    Told,
    TopicText,
    check_filter,
    check_is_open,
)
from iotmq.console.api.services import Services
from iotmq.console.api.stored_messages import PAYLOAD_BYTES_MAX, ReadMessage, Shown, read_message
from iotmq.console.api.trace_context import traced
from iotmq.console.server.messages import Answer
from iotmq.errors import IotmqError

BATCH_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
READ_MAX: Final = 500
READ_BYTES_MAX: Final = 4 * 1024 * 1024
# A payload of the largest size, and what JSON or Base64 add to it where it is no text full of controls.
_MESSAGE_BYTES_MAX: Final = 2 * limits.MQTT_PACKET_BYTES_MAX

IdempotencyKey = Annotated[str, Meta(max_length=255), header("Idempotency-Key")]
Qos = Annotated[int, Meta(ge=0, le=2)]
ExpiryS = Annotated[float, Meta(ge=0, le=2**32 - 1)]


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A payload: at most one of its fields; none of them is an empty payload."""

    payload: str = ""
    """As text, sent in UTF-8."""
    payload_base64: str = ""
    """As Base64, for any bytes."""
    payload_json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """As JSON of any kind, sent as it stands here."""


class DeviceMessage(Payload, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message for the devices that subscribe its MQTT topic."""

    mqtt_topic: MqttTopicText
    """The MQTT topic, without wildcards."""
    qos: Qos = 1
    """The highest QoS that devices get it with."""
    retain: bool = False
    """Whether later subscribers get it, too; with an empty payload it ends what is retained."""
    expiry_s: ExpiryS = 0
    """Devices do not get it so many seconds later; 0: always."""
    topic: TopicText | None = None
    """The broker topic that gets it, whatever the routes say; null: what `mqtt.routes` say, as for a message
    that a device publishes."""


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many messages."""

    items: Annotated[tuple[DeviceMessage, ...], Meta(min_length=1, max_length=BATCH_MAX)]
    """Each as for `POST /messages`."""


class TopicMessage(Payload, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message for a broker topic."""

    key: str = ""
    """Messages of one key stay in order, and are found by it."""
    tags: str = ""
    """A word that consumers filter by."""
    keys: tuple[str, ...] = ()
    """More words to find it by."""
    properties: dict[str, str] = {}
    """The application's own names and values."""
    delay_ms: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Milliseconds until it is delivered."""
    expiry_ms: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Milliseconds, from its storing on, after which nobody gets it; 0: never."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one message of many."""

    stored: Stored | None = None
    problem: Problem | None = None


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of messages, in their order."""

    items: list[Outcome]
    stored: int
    """How many of them are stored."""


class OnceArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often it is done."""

    idempotency_key: IdempotencyKey = ""
    """A word of your own for this request, such as a UUID: asked for again, its messages are stored once, as
    long as the broker has them. With another topic or payload it is another message."""
    traceparent: Annotated[str, header("traceparent")] = ""
    """The trace that the messages go on with (W3C Trace Context); what is none is left out."""
    tracestate: Annotated[str, header("tracestate")] = ""
    """The state of vendors for it."""


class RawArguments(OnceArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a message whose payload is the body."""

    mqtt_topic: MqttTopicText
    """The MQTT topic, without wildcards."""
    qos: Qos = 1
    """The highest QoS that devices get it with."""
    retain: bool = False
    """Whether later subscribers get it, too; with an empty body it ends what is retained."""
    expiry_s: ExpiryS = 0
    """Devices do not get it so many seconds later; 0: always."""
    topic: TopicText | None = None
    """The broker topic that gets it, whatever the routes say; null: what `mqtt.routes` say, as for a message
    that a device publishes."""


class SendArguments(OnceArguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One broker topic."""

    topic: TopicText
    """The name of the broker topic."""


class ReadArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place to read at: an offset, a time, a key, or a message id."""

    topic: TopicText
    """The name of the broker topic."""
    broker: BrokerText | None = None
    """The name of the broker; it may be left out where one broker has the topic."""
    queue: QueueId = 0
    """The number of the queue there."""
    offset: Offset | None = None
    """Messages from this offset on."""
    from_ms: TimeMs | None = None
    """Messages that were stored at this time or later, in milliseconds since 1970."""
    key: str | None = None
    """Messages of all queues with this key, the newest first."""
    message_id: str | None = None
    """The message of all queues with this id of its sender."""
    limit: Annotated[int, Meta(ge=1, le=READ_MAX)] = 50
    """The most messages of an answer; a broker may give fewer."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)] = 4096
    """Longer payloads are cut."""


class RetainedArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of retained messages."""

    filter: MqttTopicText = "#"
    """Only those whose MQTT topics match this filter, in which + and # may stand."""
    limit: Annotated[int, Meta(ge=1, le=READ_MAX)] = 100
    """The most items of a page."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)] = 4096
    """Longer payloads are cut."""


class MqttTopicArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One MQTT topic."""

    mqtt_topic: MqttTopicText
    """The MQTT topic, without wildcards."""


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """A page of retained messages, by MQTT topic."""

    items: list[ReadMessage]
    next: str | None = None
    """The cursor of the next page; null behind the last one."""


class MessageArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message."""

    offset_message_id: Annotated[str, Meta(max_length=64)]
    """The id that names the place of the message in the log."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)] = PAYLOAD_BYTES_MAX
    """A longer payload is cut."""


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic."""

    items: list[ReadMessage]
    next_offset: int | None = None
    """Where to go on in the queue; null for those found by a key or an id."""


def publish(
    services: Services, call: Call[OnceArguments, DeviceMessage]
) -> Coming | Coroutine[Any, Any, Stored]:
    """Send a message to the devices that subscribe an MQTT topic."""
    return _publish(services, call, _published(call.body))


def publish_raw(services: Services, call: Call[RawArguments, bytes]) -> Coming | Coroutine[Any, Any, Stored]:
    """Send the body as it is to the devices that subscribe an MQTT topic."""
    each = call.arguments
    check_is_open(each.topic)
    message = Published(each.mqtt_topic, call.body, each.qos, each.retain, each.expiry_s, each.topic or "")
    return _publish(services, call, message)


def _publish(
    services: Services, call: Call[OnceArguments, Any], each: Published
) -> Coming | Coroutine[Any, Any, Stored]:
    unique_key = _unique_key(call, each.mqtt_topic)
    publisher = services.started_publisher
    is_plain = not (unique_key or each.expiry_s or each.topic or call.arguments.traceparent)
    if publisher is not None and is_plain:
        coming = publisher.publish_at_once(
            each.mqtt_topic, each.payload, each.qos, is_retained=each.is_retained
        )
        if coming is not None:
            return coming
    return _publish_later(services, call, each, unique_key)


async def _publish_later(
    services: Services, call: Call[OnceArguments, Any], each: Published, unique_key: str
) -> Stored:
    publisher = await services.publisher()
    with traced(call, each.mqtt_topic, len(each.payload)) as context:
        return await publisher.publish(each._replace(context=context), unique_key=unique_key)


async def publish_many(services: Services, call: Call[OnceArguments, Batch]) -> Answer:
    """Send up to 1,000 messages to devices; each has an outcome of its own."""
    with traced(call, "", len(call.request.body)) as context:
        return await _publish_many(services, call, context)


async def _publish_many(
    services: Services, call: Call[OnceArguments, Batch], context: Mapping[str, str]
) -> Answer:
    publisher, items = await services.publisher(), call.body.items
    key = call.arguments.idempotency_key
    producer = await services.producer()
    batch = BatchPublisher(publisher, producer, services.unique_keys, len(items), context=context)
    alone: dict[asyncio.Task[Stored], int] = {}
    place = 0
    while place < len(items):
        if not key:
            # Nearly always these are all.
            place = batch.take(items, place)
            if place == len(items):
                break
        each = items[place]
        try:
            if key or not await _add(batch, place, each):
                unique_key = unique_key_of(call.caller.name, each.mqtt_topic, key, place)
                message = _published(each)._replace(context=context)
                alone[asyncio.ensure_future(publisher.publish(message, unique_key=unique_key))] = place
        except ProblemError as error:
            batch.refuse(place, error)
        except (IotmqError, ConnectionError) as error:
            batch.refuse(place, from_error(error))
        place += 1
    await batch.send()
    for task, place in alone.items():
        try:
            stored = await task
        except (IotmqError, ConnectionError) as error:
            batch.refuse(place, from_error(error))
        else:
            batch.put(place, msgspec.json.encode(Outcome(stored=stored)), is_stored=True)
    return Answer(batch.answer, content_type="application/json")


async def _add(batch: BatchPublisher, place: int, each: DeviceMessage) -> bool:
    """Add a message to those that go together; False for one that has to go by itself."""
    payload = _payload(each)
    if each.expiry_s or each.topic or len(payload) > ALONE_BYTES:
        return False
    taken = batch.add(place, each.mqtt_topic, payload, each.qos, is_retained=each.retain)
    if taken is None:
        await batch.prepare(each.mqtt_topic)
        taken = batch.add(place, each.mqtt_topic, payload, each.qos, is_retained=each.retain)
    return bool(taken)


async def send(services: Services, call: Call[SendArguments, TopicMessage]) -> Stored:
    """Send a message to a broker topic."""
    check_is_open(call.arguments.topic)
    body, topic, payload = call.body, call.arguments.topic, _payload(call.body)
    publisher = await services.publisher()
    with traced(call, topic, len(payload), is_for_devices=False) as context:
        message = Message(
            topic,
            payload,
            key=body.key,
            tags=body.tags,
            keys=body.keys,
            properties={**context, **body.properties},
            delay_ms=body.delay_ms,
            ttl_ms=body.expiry_ms,
        )
        return await publisher.send(message, unique_key=_unique_key(call, topic))


async def read_messages(services: Services, call: Call[ReadArguments, None]) -> Messages:
    """Read messages of a topic; nothing is consumed and nothing committed."""
    each = call.arguments
    given = [name for name in ("offset", "from_ms", "key", "message_id") if getattr(each, name) is not None]
    if len(given) != 1:
        raise ProblemError(INVALID, "exactly one of offset, from_ms, key and message_id is needed")
    client = await services.client()
    views = client.admin.messages
    shown = Shown(each.payload_bytes_max)
    if each.key is not None:
        found = await views.by_key(each.topic, each.key, messages_max=each.limit)
        return Messages(items=[shown.show(message) for message in found])
    if each.message_id is not None:
        found = await views.by_unique_key(each.topic, each.message_id)
        return Messages(items=[shown.show(message) for message in found[: each.limit]])
    queue = await _queue(services, each)
    if each.from_ms is None:
        offset = each.offset or 0
    else:
        offset = await offsets.offset_at_time(client, queue, each.from_ms)
    messages, next_offset = await views.from_offset(
        queue, offset, messages_max=each.limit, bytes_max=READ_BYTES_MAX
    )
    items: list[ReadMessage] = []
    for message in messages:
        if shown.is_full:
            next_offset = message.queue_offset
            break
        items.append(shown.show(message))
    return Messages(items=items, next_offset=next_offset)


async def list_retained(services: Services, call: Call[RetainedArguments, None]) -> Retained:
    """List retained messages: the last one of each MQTT topic that was sent with retain."""
    each = call.arguments
    check_filter(each.filter)
    page = await RetainedAdmin(await services.client()).page(each.filter, each.cursor, count=each.limit)
    shown = Shown(each.payload_bytes_max)
    items = [shown.show(message) for message in page.messages]
    return Retained(items=items, next=page.next_cursor)


async def delete_retained(services: Services, call: Call[MqttTopicArguments, None]) -> Told:
    """End what is retained for an MQTT topic; subscribers get the empty message that does it."""
    admin = RetainedAdmin(await services.client())
    mqtt_topic = call.arguments.mqtt_topic
    brokers = await admin.delete(mqtt_topic, await services.producer())
    if not brokers:
        raise ProblemError(NOT_FOUND, f"nothing is retained for {mqtt_topic[:200]}")
    return Told(brokers=brokers)


async def show_message(services: Services, call: Call[MessageArguments, None]) -> ReadMessage:
    """Show the message at a place of the log."""
    views = (await services.client()).admin.messages
    found = await views.by_id(call.arguments.offset_message_id)
    return read_message(found, call.arguments.payload_bytes_max)


async def _queue(services: Services, each: ReadArguments) -> MessageQueue:
    queues = await (await services.client()).admin.queues(each.topic)
    brokers = sorted({queue.broker_name for queue in queues})
    if each.broker is None and len(brokers) > 1:
        raise invalid(f"it is needed: the topic is at {', '.join(brokers)}", parameter="broker")
    name = each.broker or brokers[0]
    chosen = [queue for queue in queues if queue.broker_name == name and queue.queue_id == each.queue]
    if not chosen:
        raise ProblemError(NOT_FOUND, f"the topic {each.topic} has no queue {each.queue} at broker {name}")
    return chosen[0]


def _unique_key(call: Call[Any, Any], topic: str) -> str:
    return unique_key_of(call.caller.name, topic, call.arguments.idempotency_key)


def _published(each: DeviceMessage) -> Published:
    check_is_open(each.topic)
    return Published(each.mqtt_topic, _payload(each), each.qos, each.retain, each.expiry_s, each.topic or "")


def _payload(each: Payload) -> bytes:
    has_json = each.payload_json is not msgspec.UNSET
    if bool(each.payload) + bool(each.payload_base64) + has_json > 1:
        raise ProblemError(INVALID, "at most one of payload, payload_base64 and payload_json may be given")
    if isinstance(each.payload_json, msgspec.Raw):
        return bytes(each.payload_json)
    return decoded_base64(each.payload_base64) if each.payload_base64 else each.payload.encode()


def decoded_base64(text: str) -> bytes:
    """Read the field `payload_base64` of a body."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"no Base64: {error}", pointer="/payload_base64") from None


_AREA: Final = "messages"

ROUTES: Final = (
    route(
        "POST",
        "/messages",
        publish,
        tag=_AREA,
        is_audited=False,
        role=Role.OPERATOR,
        body_bytes_max=_MESSAGE_BYTES_MAX,
        answer=Stored,
        problems=(NOT_FOUND, TOO_MANY),
    ),
    route(
        "POST",
        "/messages/batch",
        publish_many,
        tag=_AREA,
        is_audited=False,
        role=Role.OPERATOR,
        body_bytes_max=BATCH_BYTES_MAX,
        answer=Outcomes,
    ),
    route(
        "POST",
        "/mqtt-topics/{mqtt_topic...}",
        publish_raw,
        tag=_AREA,
        is_audited=False,
        role=Role.OPERATOR,
        body_bytes_max=limits.MQTT_PACKET_BYTES_MAX,
        answer=Stored,
        problems=(NOT_FOUND, TOO_MANY),
    ),
    route(
        "POST",
        "/topics/{topic}/messages",
        send,
        tag=_AREA,
        is_audited=False,
        role=Role.OPERATOR,
        body_bytes_max=_MESSAGE_BYTES_MAX,
        problems=(NOT_FOUND, TOO_MANY),
    ),
    route("GET", "/topics/{topic}/messages", read_messages, tag=_AREA, problems=(NOT_FOUND,)),
    route("GET", "/retained", list_retained, tag=_AREA),
    route(
        "DELETE",
        "/retained/{mqtt_topic...}",
        delete_retained,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
    route("GET", "/messages/{offset_message_id}", show_message, tag=_AREA, problems=(NOT_FOUND,)),
)
