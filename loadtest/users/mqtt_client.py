"""The client of one device as tasks use it: the calls of paho's that Locust's own MQTT client has.

Calls return at once. Their results become Locust's `request` events, with the names of `locust.contrib.mqtt`.
"""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import gevent.event

from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.session import OutgoingMessage
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.packets import PUBLISH
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, read_properties
from iotmq.mqtt.topics import topics
from iotmq.mqtt_client.settings import MqttClientSettings
from loadtest.swarm import STAMP_BYTES
from loadtest.users.device import Device
from loadtest.users.faults import NO_CONNECTION, Fault
from loadtest.users.loop_thread import LoopThread
from loadtest.users.process import Process
from loadtest.users.sequences import STAMP_PROPERTY, Stream

if TYPE_CHECKING:
    from locust.env import Environment

REQUEST_TYPE: Final = "MQTT"
# Of paho: what `publish` and `subscribe` return.
SUCCESS: Final = 0
NOT_CONNECTED: Final = 4
# Received messages that greenlets have not taken yet; with more, servers are not read.
UNTAKEN_MAX: Final = 20_000

OnMessage = Callable[["DeviceClient", object, ReceivedMessage], object]


class Publication:
    """A PUBLISH, SUBSCRIBE or UNSUBSCRIBE under way; `rc` and `mid` as paho's MQTTMessageInfo has them."""

    __slots__ = (
        "_client",
        "_waiting",
        "action",
        "fault",
        "is_done",
        "mid",
        "qos",
        "rc",
        "size",
        "started_ns",
        "topic",
    )

    def __init__(self, client: DeviceClient, action: str, qos: int, topic: str, size: int) -> None:
        self._client = client
        self.action = action
        self.qos = qos
        self.topic = topic
        self.size = size
        self.rc = SUCCESS
        self.mid = client.next_mid()
        self.started_ns = time.monotonic_ns()
        self.is_done = False
        # Why it failed; None while it has not.
        self.fault: Fault | None = None
        self._waiting: gevent.event.Event | None = None

    def finish(self, fault: Fault | None) -> None:
        """Take the result; from the loop's thread."""
        elapsed_ms = (time.monotonic_ns() - self.started_ns) / 1e6
        self._client.thread.tell(self._done, elapsed_ms, fault)

    def is_published(self) -> bool:
        """Return whether the server has acknowledged it; with QoS 0 whether it was written."""
        return self.is_done and self.fault is None

    def wait_for_publish(self, timeout: float | None = None) -> None:
        """Wait until it is acknowledged or has failed (`fault`), for so many seconds at most."""
        if not self.is_done or self._waiting is not None:
            self._waiting = self._waiting or gevent.event.Event()
            self._waiting.wait(timeout)

    def _done(self, elapsed_ms: float, fault: Fault | None) -> None:
        self.fault = fault
        context = {"qos": self.qos, "topic": self.topic, "start_time": time.time() - elapsed_ms / 1e3}
        if self.action == "publish":
            context["payload_size"] = self.size
        self._client.fire(self.action, self.qos, self.topic, elapsed_ms, self.size, fault, context)
        if self.action == "subscribe":
            self._client.subscribe_done()
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None


class DeviceClient:
    """The connection of one device; it connects when it is made."""

    def __init__(
        self,
        environment: Environment,
        settings: MqttClientSettings,
        *,
        context: ssl.SSLContext | None = None,
        stamps: str | None = None,
        checks_sequences: bool = True,
        name_of: Callable[[str, int, str], str] | None = None,
    ) -> None:
        """`name_of(action, qos, topic)` gives the rows of the statistics their names."""
        self.environment = environment
        self.client_id = settings.client_id
        # Called with client, None and message, as paho's; None for nobody.
        self.on_message: OnMessage | None = None
        self.thread = LoopThread.get()
        self._settings = settings
        self._stamps = stamps
        self._checks_sequences = checks_sequences
        self._name_of = name_of or event_name
        self._mids = itertools.count(1)
        self._streams: dict[str, Stream] = {}
        self._connected = gevent.event.Event()
        # Set while no SUBSCRIBE waits for its answer.
        self._subscribed = gevent.event.Event()
        self._subscribed.set()
        self._subscribing_count = 0
        self._process = Process.get(environment)
        self.device = Device(settings, context, self, self._process.check if checks_sequences else None)
        self._process.add(self.device)
        self.thread.post(self.device.open)

    # What tasks call -------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes | bytearray | str | float | None = None,
        qos: int = 0,
        retain: bool = False,
        properties: object = None,
    ) -> Publication:
        """Publish a message; `properties` are iotmq's or paho's."""
        data = _payload(payload)
        told = _properties(properties)
        size = len(data) + (STAMP_BYTES if self._stamps == "payload" else 0)
        publication = Publication(self, "publish", qos, topic, size)
        if not qos and not self.device.is_connected:
            publication.rc = NOT_CONNECTED
            publication.is_done = True
            publication.fault = Fault(NO_CONNECTION)
            context = {"qos": qos, "topic": topic, "start_time": time.time(), "payload_size": size}
            self.fire("publish", qos, topic, 0, 0, publication.fault, context)
            return publication
        if self._stamps is not None:
            stream = self._streams.get(topic)
            if stream is None:
                stream = self._streams[topic] = self._process.streams.add(topic)
            stamp = stream.next_stamp(publication.started_ns)
            if self._stamps == "payload":
                data = stamp + data
            else:
                told = _with_stamp(told, stamp)
        message = OutgoingMessage(
            topic.encode(), data, qos=qos, retain=retain, properties=told, token=publication
        )
        self.thread.post(self.device.publish, publication, message)
        return publication

    def subscribe(
        self,
        topic: str | tuple[str, Any] | Sequence[tuple[str, Any]],
        qos: int = 0,
        options: object = None,
        properties: object = None,
    ) -> tuple[int, int]:
        """Subscribe to one filter, or to several with their QoS or options; returns paho's result and mid."""
        subscriptions = _subscriptions(topic, qos, options)
        publication = Publication(self, "subscribe", subscriptions[0][1] & 3, subscriptions[0][0], 0)
        for topic_filter, _ in subscriptions:
            if self._checks_sequences and topics.is_shared(topic_filter):
                self._process.joins_group(topic_filter)
        self._subscribing_count += 1
        self._subscribed.clear()
        self.thread.post(self.device.subscribe, publication, subscriptions)
        return SUCCESS, publication.mid

    def unsubscribe(self, topic: str | Sequence[str], properties: object = None) -> tuple[int, int]:
        """Unsubscribe from one filter or several."""
        filters = [topic] if isinstance(topic, str) else list(topic)
        publication = Publication(self, "unsubscribe", 0, filters[0], 0)
        self.thread.post(self.device.unsubscribe, publication, filters)
        return SUCCESS, publication.mid

    def is_connected(self) -> bool:
        """Return whether the server has let the device in."""
        return self.device.is_connected

    def wait_connected(self, timeout: float | None = None) -> bool:
        """Wait until the first connection is made; False when it takes longer."""
        return bool(self._connected.wait(timeout))

    def wait_subscribed(self, timeout: float | None = None) -> bool:
        """Wait until every SUBSCRIBE has its answer: nothing published from then on may be lost."""
        return bool(self._subscribed.wait(timeout))

    def disconnect(self, timeout: float = 5.0) -> None:
        """Say good-bye when everything is acknowledged, or when the time is up, for good."""
        self._process.remove(self.device)
        self.thread.post(self._leave, timeout)

    def drop(self) -> None:
        """Lose the connection without a DISCONNECT, as when the network goes; it connects again."""
        self.thread.post(self.device.drop)

    def subscribe_done(self) -> None:
        self._subscribing_count -= 1
        if not self._subscribing_count:
            self._subscribed.set()

    def next_mid(self) -> int:
        return next(self._mids)

    def fire(
        self,
        action: str,
        qos: int,
        topic: str,
        response_ms: float | None,
        size: int,
        fault: Fault | None,
        context: dict[str, Any],
    ) -> None:
        """Fire a `request` event."""
        name = action if action in ("connect", "disconnect") else self._name_of(action, qos, topic)
        self.environment.events.request.fire(
            request_type=REQUEST_TYPE,
            name=name,
            response_time=response_ms,
            response_length=size,
            exception=fault,
            context={"client_id": self.client_id, **context},
        )

    # What the device reports, on the loop's thread -------------------------------------------------------

    def connected(self, elapsed_ms: float, fault: Fault | None) -> None:
        self.thread.tell(self._told_connected, elapsed_ms, fault)

    def disconnected(self, elapsed_ms: float, fault: Fault | None) -> None:
        self.thread.tell(self.fire, "disconnect", 0, "", elapsed_ms, 0, fault, {})

    def received(self, message: ReceivedMessage, latency_ms: float | None, fault: Fault | None) -> None:
        self.thread.tell(self._told_received, message, latency_ms, fault)

    def received_row(self, topic: str, qos: int) -> tuple[str, str]:
        return REQUEST_TYPE, self._name_of("receive", qos, topic)

    @property
    def has_room(self) -> bool:
        return self.thread.told_count < UNTAKEN_MAX

    def _told_connected(self, elapsed_ms: float, fault: Fault | None) -> None:
        self.fire("connect", 0, "", elapsed_ms, 0, fault, {})
        if fault is None:
            self._connected.set()

    def _told_received(self, message: ReceivedMessage, latency_ms: float | None, fault: Fault | None) -> None:
        size = len(message.payload)
        context = {"qos": message.qos, "topic": message.topic, "payload_size": size}
        self.fire("receive", message.qos, message.topic, latency_ms, size, fault, context)
        if self.on_message is not None:
            self.on_message(self, None, message)

    def _leave(self, timeout_s: float) -> None:
        loop = self.thread.loop
        task = loop.create_task(self.device.leave(loop.time() + timeout_s))
        self._process.leaving.add(task)
        task.add_done_callback(self._process.leaving.discard)


def event_name(action: str, qos: int, topic: str) -> str:
    """Name a row as `locust.contrib.mqtt` does."""
    return f"{action}:{qos}:{topic}"


def _payload(payload: bytes | bytearray | str | float | None) -> bytes:
    if payload is None:
        return b""
    return bytes(payload) if isinstance(payload, bytes | bytearray) else str(payload).encode()


def _properties(properties: Any) -> Properties:
    if properties is None:
        return NO_PROPERTIES
    if isinstance(properties, Properties):
        return properties
    return read_properties(FieldReader(properties.pack(), "PUBLISH"), PUBLISH)


def _with_stamp(properties: Properties, stamp: bytes) -> Properties:
    if properties is NO_PROPERTIES:
        return Properties(user_properties=((STAMP_PROPERTY, stamp.hex()),))
    return replace(properties, user_properties=(*properties.user_properties, (STAMP_PROPERTY, stamp.hex())))


def _subscriptions(topic: Any, qos: int, options: Any) -> list[tuple[str, int]]:
    if isinstance(topic, str):
        return [(topic, qos if options is None else options.pack()[0])]
    pairs = [topic] if isinstance(topic, tuple) else list(topic)
    return [(name, one if isinstance(one, int) else one.pack()[0]) for name, one in pairs]
