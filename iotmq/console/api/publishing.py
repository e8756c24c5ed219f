"""Sends what is published to MQTT topics to where a front end would: rewrites, routes and their rules."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from iotmq.client.client import IotmqClient
from iotmq.client.sending.device_messages import device_message
from iotmq.client.sending.message_elements import encode_element
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message, SendResult, SendStatus, check_topic
from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.console.api.batch_elements import Lane
from iotmq.console.api.route import Coming
from iotmq.errors import BrokerError, MessageRefusedError, RouteNotFoundError
from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import (
    KEYS,
    MQTT_QOS,
    MQTT_RETAIN,
    MQTT_TOPIC,
    NAME_END,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)
from iotmq.message.records.record import encode_batch
from iotmq.ports.publishing import Placed, PublishPlaces
from iotmq.remoting.codes import REPEAT_FIELD, RequestCode
from iotmq.remoting.command import Command

NOT_STORED: Final = "NOT_STORED"
_STATUS_OF: Final = {status.value: status for status in SendStatus}
# There has to be room for QoS, retain flag, unique key and a trace behind them.
_LANE_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 2048
_FLAGS: Final = [
    encode_properties({MQTT_QOS: str(qos)} | ({MQTT_RETAIN: "1"} if is_retained else {}))
    + f"{UNIQ_KEY}{NAME_END}".encode()
    for qos in range(3)
    for is_retained in (False, True)
]
# Topics whose places are known; all are forgotten when there are more. Those of longer names are looked up
# each time: with four kilobytes each they would have some gigabytes.
KNOWN_TOPICS_MAX: Final = 65_536
_KNOWN_CHARACTERS_MAX: Final = 256


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that is stored. Whether anybody has got it, nobody knows then."""

    message_id: str
    topic: str
    """The broker topic that has it; empty: none."""
    broker: str
    queue: int | None
    offset: int | None
    """Null for a message that is not stored, and for one with an `Idempotency-Key` that is to wait."""
    status: str
    """How safe it is: `SEND_OK` is what the broker's settings promise, and what a PUBACK would have meant;
    `FLUSH_DISK_TIMEOUT`, `SLAVE_NOT_AVAILABLE` and `FLUSH_SLAVE_TIMEOUT` are less. `NOT_STORED`: its route
    keeps no messages, and only who is subscribed now gets it, or drops them."""
    why: str = ""
    """Why its route has dropped it or put it aside, in words."""


class Published(NamedTuple):
    """A message for an MQTT topic."""

    mqtt_topic: str
    payload: bytes
    qos: int
    is_retained: bool
    expiry_s: float
    topic: str
    """The broker topic it goes to, whatever routes say; empty: they say it."""
    context: Mapping[str, str] = {}
    """The properties of its trace."""


class Publisher:
    """Sends messages, one at a time."""

    def __init__(self, client: IotmqClient, producer: Producer, places: PublishPlaces) -> None:
        self._client = client
        self._producer = producer
        self._places = places
        # MQTT topic -> its place; None where each message has to be asked about.
        self._known: dict[str, Placed | None] = {}
        # The same for messages that go together, with what is made of it once.
        self.lanes: dict[str, Lane | None] = {}
        """Those of `lane_of` that are known."""
        self._unique_keys = UniqueKeys()
        places.start(self._forget)

    def stop(self) -> None:
        """Follow no routes any more."""
        self._places.stop()

    async def publish(self, each: Published, *, unique_key: str = "") -> Stored:
        """Send a message; with a unique key once, however often it is asked for."""
        placed = self._placed(each)
        if not placed.topic:
            return _not_stored(placed, "")
        message = _message(each, placed)
        if not placed.is_stored:
            return await self._publish_live(message, placed, unique_key)
        if not unique_key:
            return _stored(await self._producer.send(message), placed.why)
        return await self._send_once(message, unique_key, why=placed.why)

    def publish_at_once(
        self, mqtt_topic: str, payload: bytes, qos: int, *, is_retained: bool
    ) -> Coming | None:
        """Send a message in a request with others of its queue; None where that takes `publish`.

        IotmqError when it cannot be sent.
        """
        lane = self.lane_of(mqtt_topic)
        producer = self._producer
        # Those that are compressed go by themselves, and so do all while somebody looks at each.
        if lane is None or len(payload) >= producer.settings.compress_bytes_min or not producer.joins_sends:
            return None
        queues = producer.known_queues(lane.topic)
        if not queues:
            return None
        unique_key = self._unique_keys.next()
        element = lane.element(payload, qos, is_retained, unique_key.encode())
        future = producer.send_elements_nowait(lane.queue_of(queues), element, 1)
        return Coming(future, lambda result: _stored(result, "", unique_key))

    async def send(self, message: Message, *, unique_key: str) -> Stored:
        """Send a message to its broker topic; with a unique key once."""
        if message.properties is not None and MQTT_TOPIC in message.properties:
            # Devices get it: what nobody may publish is refused here, too.
            self.place_of(message.properties[MQTT_TOPIC])
        if not unique_key:
            return _stored(await self._producer.send(message))
        return await self._send_once(message, unique_key)

    async def _send_once(self, message: Message, unique_key: str, *, why: str = "") -> Stored:
        queue = await self._queue(message)
        if message.is_delayed:
            # The broker looks among those that wait, too; it answers without their place.
            properties = message.encoded_properties(unique_key)
            element = encode_batch([(message.body, properties, message.flag)])
            status = await self._ask(queue, RequestCode.PUBLISH_DELAYED, element, {REPEAT_FIELD: "true"})
            return Stored(
                message_id=unique_key,
                topic=queue.topic,
                broker=queue.broker_name,
                queue=queue.queue_id,
                offset=None,
                status=status.name,
                why=why,
            )
        element = encode_element(message, unique_key)
        result = await self._producer.send_encoded_batch_nowait(
            message.topic, queue, element, 1, is_repeat=True
        )
        return _stored(result, why, unique_key)

    def place_of(self, mqtt_topic: str) -> Placed | None:
        """Return the place of all messages of an MQTT topic; None where it depends on the message."""
        known = self._known
        if mqtt_topic not in known:
            placed = self._places.fixed(mqtt_topic)
            if len(mqtt_topic) > _KNOWN_CHARACTERS_MAX:
                return placed
            if len(known) >= KNOWN_TOPICS_MAX:
                known.clear()
            known[mqtt_topic] = placed
        return known[mqtt_topic]

    def lane_of(self, mqtt_topic: str) -> Lane | None:
        """Return what the messages of an MQTT topic have in common; None where they have to go one by one.

        MessageRefusedError for a topic that nobody may publish to.
        """
        lanes = self.lanes
        if mqtt_topic not in lanes:
            placed = self.place_of(mqtt_topic)
            lane = None if placed is None else _lane(mqtt_topic, placed)
            if len(mqtt_topic) > _KNOWN_CHARACTERS_MAX:
                return lane
            if len(lanes) >= KNOWN_TOPICS_MAX:
                lanes.clear()
            lanes[mqtt_topic] = lane
        return lanes[mqtt_topic]

    def _forget(self) -> None:
        self._known.clear()
        self.lanes.clear()

    def _placed(self, each: Published) -> Placed:
        if each.topic:
            self.place_of(each.mqtt_topic)
            # Chosen by who sends: no route has a word in it, beside whether anybody may publish there.
            return Placed(each.topic, each.mqtt_topic, "", {MQTT_TOPIC: each.mqtt_topic})
        placed = self.place_of(each.mqtt_topic)
        if placed is not None:
            return placed
        expiry_s = math.ceil(each.expiry_s) or None
        return self._places.place(
            each.mqtt_topic, each.payload, expiry_s=expiry_s, is_retained=each.is_retained
        )

    async def _publish_live(self, message: Message, placed: Placed, unique_key: str) -> Stored:
        queue = await self._queue(message)
        await self._ask(queue, RequestCode.PUBLISH_TRANSIENT, encode_element(message, unique_key), {})
        return _not_stored(placed, queue.broker_name)

    async def _ask(self, queue: MessageQueue, code: int, element: bytes, ext: dict[str, str]) -> SendStatus:
        """Hand a message to the broker of its queue as a front end does. BrokerError when it refuses."""
        route = self._client.routes.known(queue.topic)
        address = None if route is None else route.master(queue.broker_name)
        if address is None:
            raise RouteNotFoundError(f"broker {queue.broker_name} of topic {queue.topic} has no master now")
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id)} | ext
        answer = await self._client.request(address, Command.request(code, ext, body=element))
        status = _STATUS_OF.get(answer.code)
        if status is None:
            raise BrokerError(answer.code, answer.remark or "")
        return status

    async def _queue(self, message: Message) -> MessageQueue:
        queues = await self._producer.queues(message.topic)
        if not queues:
            raise RouteNotFoundError(f"topic {message.topic} takes no messages now")
        return queues[queue_of_key(message.key, len(queues))]


def _lane(mqtt_topic: str, placed: Placed) -> Lane | None:
    if not placed.is_stored or placed.delay_s or not placed.topic:
        return None
    named = {**placed.properties, KEYS: placed.key}
    if placed.tags:
        named[TAGS] = placed.tags
    check_topic(placed.topic)
    try:
        properties = encode_properties(named)
    except ValueError as error:
        raise MessageRefusedError(f"invalid MQTT topic {mqtt_topic[:100]!r}: {error}") from error
    if len(properties) > _LANE_BYTES_MAX:
        return None
    return Lane(placed.topic, placed.key, [properties + flags for flags in _FLAGS])


def unique_key_of(caller: str, topic: str, idempotency_key: str, number: int = 0) -> str:
    """Return the unique key of what a caller sends to a topic under a key of its own; empty without one."""
    if not idempotency_key:
        return ""
    told = "\0".join((caller, topic, str(number), idempotency_key)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(told).hexdigest()[:32].upper()


def _message(each: Published, placed: Placed) -> Message:
    if MQTT_TOPIC not in placed.properties:
        # Put aside: no device gets it.
        properties = {**placed.properties, **each.context, MQTT_QOS: str(each.qos)}
        return Message(placed.topic, each.payload, key=placed.key, properties=properties)
    message = device_message(
        placed.properties[MQTT_TOPIC],
        each.payload,
        topic=placed.topic,
        qos=min(each.qos, placed.qos_max),
        retain=each.is_retained,
        expiry_s=each.expiry_s,
    )
    assert message.properties is not None
    ttl_ms = message.ttl_ms
    if placed.expiry_s is not None and (not ttl_ms or placed.expiry_s * 1000 < ttl_ms):
        ttl_ms = placed.expiry_s * 1000
    return Message(
        placed.topic,
        each.payload,
        key=placed.key,
        tags=placed.tags,
        properties={**message.properties, **each.context, **placed.properties},
        ttl_ms=ttl_ms,
        delay_ms=placed.delay_s * 1000,
    )


def _not_stored(placed: Placed, broker: str) -> Stored:
    return Stored(
        message_id="",
        topic=placed.topic,
        broker=broker,
        queue=None,
        offset=None,
        status=NOT_STORED,
        why=placed.why,
    )


def _stored(result: SendResult, why: str = "", unique_key: str = "") -> Stored:
    return Stored(
        message_id=unique_key or result.message_id,
        topic=result.queue.topic,
        broker=result.queue.broker_name,
        queue=result.queue.queue_id,
        offset=result.queue_offset,
        status=result.status.name,
        why=why,
    )
