"""Brokers a test answers for: a scripted `ports.gateway.GatewayPort`, and what hands a front end its
bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fake_broker import split_batch
from manual_clock import ManualClock
from typing_extensions import Buffer

from iotmq.message.properties import MQTT_QOS, MQTT_TOPIC, decode_properties, encode_properties
from iotmq.message.records.record import check_batch, encode_record
from iotmq.metrics import Metric
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.ports.gateway import AppendDone, DeliveryReceiver, RouteOf


class Message(NamedTuple):
    """One message of a batch."""

    topic: str
    payload: bytes
    properties: dict[str, str]


class Handed:
    """A batch as `append` got it. `answer` is called once, as a broker would."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        count: int,
        is_stored: bool,
        done: AppendDone,
        *,
        is_delayed: bool = False,
        has_packet_ids: bool = False,
        is_repeat: bool = False,
    ) -> None:
        self.is_delayed = is_delayed
        self.has_packet_ids = has_packet_ids
        self.is_repeat = is_repeat
        self.topic = topic
        self.queue_id = queue_id
        self.count = count
        self.is_stored = is_stored
        self.answer = done
        self.body = bytes(elements)
        assert check_batch(self.body) == count
        self.messages: list[Message] = []
        self.raw_properties: list[bytes] = []
        for payload, raw, flag in split_batch(self.body):
            assert flag == 0
            properties = decode_properties(raw)
            self.raw_properties.append(raw)
            # What a route puts aside has no topic that devices could subscribe.
            self.messages.append(Message(properties.get(MQTT_TOPIC, ""), payload, properties))

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


class ScriptedGateway:
    """Keeps every batch. `automatic` is the code all are answered with at once; None: the test answers."""

    def __init__(self, *, queues: int = 1, record_bytes_max: int = 100_000) -> None:
        self.record_bytes_max = record_bytes_max
        self.not_ready_reason: str | None = None
        self.queues = queues
        # Whether a batch may be stored though its answer says otherwise (ports.gateway.GatewayPort).
        self.may_lose_answers = False
        self.released: list[tuple[str | None, bytes, AppendDone]] = []
        self.releases_at_once = True
        self.automatic: int | None = None
        self.handed: list[Handed] = []
        self.own: list[tuple[str, bytes]] = []
        """What `append_own` was given."""
        self.replies: list[tuple[str, str, str, bytes]] = []
        # What `attach` is answered with; None leaves it to the test, which finds it in `attaching`.
        self.takes_filters: bool | None = True
        self.attaching: list[Callable[[bool], None]] = []
        self.filters: dict[int, str] = {}
        self.topics: tuple[str, ...] = ()
        self.stopped = 0
        self.receiver: DeliveryReceiver | None = None
        self.queues_changed: Callable[[], None] = lambda: None

    async def start(
        self,
        topics: Collection[str],
        receiver: DeliveryReceiver,
        queues_changed: Callable[[], None],
        *,
        route_of: RouteOf,
    ) -> None:
        self.topics = tuple(topics)
        self.receiver = receiver
        self.queues_changed = queues_changed

    async def add_topics(self, topics: Collection[str]) -> None:
        self.topics = tuple(dict.fromkeys((*self.topics, *topics)))

    async def stop(self) -> None:
        self.stopped += 1

    def queue_count(self, topic: str) -> int:
        return self.queues

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
        self.handed.append(
            Handed(
                topic, queue_id, elements, count, is_stored, done,
                has_packet_ids=has_packet_ids, is_repeat=is_repeat,
            )
        )  # fmt: skip
        if self.automatic is not None:
            done(self.automatic, "scripted")

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
        self.handed.append(
            Handed(
                topic, queue_id, elements, count, True, done,
                is_delayed=True, has_packet_ids=has_packet_ids, is_repeat=is_repeat,
            )
        )  # fmt: skip
        if self.automatic is not None:
            done(self.automatic, "scripted")

    def append_own(
        self, topic: str, elements: Buffer, *, count: int, is_repeat: bool, done: AppendDone
    ) -> None:
        self.own.append((topic, bytes(elements)))
        if self.automatic is not None:
            done(self.automatic, "scripted")

    def broker_of(self, topic: str, queue_id: int, *, is_delayed: bool) -> str:
        return f"broker-{queue_id}"

    def release(self, broker: str | None, body: bytes, done: AppendDone) -> None:
        self.released.append((broker, body, done))
        if self.releases_at_once:
            done(0, "")

    def reply(self, broker: str, topic: str, client_id: str, body: bytes) -> None:
        self.replies.append((broker, topic, client_id, body))

    def attach(self, filters: Sequence[tuple[int, str]], done: Callable[[bool], None]) -> None:
        self.filters.update(filters)
        if self.takes_filters is None:
            self.attaching.append(done)
        else:
            done(self.takes_filters)

    def detach(self, filter_ids: Sequence[int]) -> None:
        for filter_id in filter_ids:
            del self.filters[filter_id]

    def metrics(self) -> Iterable[Metric]:
        yield Metric("scripted_gateway_batches", "gauge", "Batches.", len(self.handed))

    def push(self, topic: str, payload: bytes, *filters: str, qos: int | None = 1) -> None:
        """Deliver one record to the subscribers of these filters."""
        ids = [number for number, name in self.filters.items() if name in filters]
        assert self.receiver is not None
        self.receiver.deliver(record_of(topic, payload, qos=qos), matches_of((0, ids)))


def record_of(topic: str, payload: bytes, *, qos: int | None = 1, sys_flag: int = 0) -> bytes:
    """A stored record of an MQTT message; without `qos` one of a native producer."""
    named = {MQTT_TOPIC: topic} | ({} if qos is None else {MQTT_QOS: str(qos)})
    return encode_record(topic="mqtt", body=payload, properties=encode_properties(named), sys_flag=sys_flag)


def matches_of(*entries: tuple[int, Sequence[int]]) -> bytes:
    """The second buffer of a push: (place, filter ids) per record."""
    return b"".join(
        b"".join(number.to_bytes(4, "big") for number in (place, len(ids), *ids)) for place, ids in entries
    )


class FakeLoop:
    """An event loop that runs when the test says so; its timers are called by `fire`."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], Any]] = deque()
        self.timers: list[tuple[float, Callable[[], Any]]] = []

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.ready.append(partial(call, *arguments) if arguments else call)

    def call_later(self, delay_s: float, call: Callable[..., Any], *arguments: Any) -> None:
        self.timers.append((delay_s, partial(call, *arguments) if arguments else call))

    def turn(self) -> None:
        """One turn: what is ready now, not what that makes ready."""
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    def run(self) -> None:
        while self.ready:
            self.turn()

    def fire(self) -> None:
        timers, self.timers = self.timers, []
        for _, call in timers:
            call()
        self.run()


class FakeTransport:
    """What a device's connection does to its socket. `high_water_bytes` of unread output pause it."""

    def __init__(self, device: Device, high_water_bytes: int | None = None) -> None:
        self.device = device
        self.written = bytearray()
        self.unread_bytes = 0
        self.high_water_bytes = high_water_bytes
        self.is_reading = True
        self.is_closed = False
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data
        self.unread_bytes += len(data)
        if self.high_water_bytes is not None and self.unread_bytes > self.high_water_bytes:
            self.device.pause_writing()

    def take(self) -> bytes:
        """What was written since the last call; the peer has read it."""
        taken = bytes(self.written)
        self.written.clear()
        self.unread_bytes = 0
        if self.device.is_write_paused:
            self.device.resume_writing()
        return taken

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


class Front:
    """A device group on a fake loop, whose devices open their sessions at once and subscribe to nothing."""

    def __init__(self, sink: Any, *, loop: FakeLoop | None = None, **settings: Any) -> None:
        self.loop = loop if loop is not None else FakeLoop()
        self.clock = ManualClock()
        self.group = DeviceGroup(
            self.loop,  # type: ignore[arg-type]
            sink,
            self,
            now_s=self.clock.monotonic_s(),
            clock=self.clock,
        )
        self.settings = ConnectionSettings(**settings)
        self.events: list[packets.Event] = []
        self.lost: list[Device] = []

    def device_connected(self, device: Device) -> None:
        pass

    def device_events(self, device: Device, events: Sequence[packets.Event]) -> None:
        for event in events:
            if isinstance(event, Connect):
                device.client_id = event.client_id
                device.properties = encode_properties({"MQTT_CLIENT_ID": event.client_id})
                device.open_session(session_present=False)
            else:
                self.events.append(event)

    def device_lost(self, device: Device) -> None:
        self.lost.append(device)

    def connect(
        self,
        client_id: str = "d",
        *,
        keep_alive_s: int = 0,
        high_water_bytes: int | None = None,
        properties: Properties | None = None,
    ) -> tuple[Device, FakeTransport]:
        """A device with an open session, its CONNACK read; with properties one of MQTT 5."""
        device = Device(self.group, self.settings)
        transport = FakeTransport(device, high_water_bytes)
        device.connection_made(transport)  # type: ignore[arg-type]
        connect = Connect(client_id, True, keep_alive_s, None, None, None)
        if properties is not None:
            connect = connect._replace(protocol_level=5, properties=properties)
        receive(device, packets.encode_connect(connect))
        self.loop.run()
        ((first, body),) = split_output(transport.take())
        assert (first, body[:2]) == (packets.CONNACK << 4, b"\0\0")
        assert (len(body) > 2) is (properties is not None)
        return device, transport


def receive(device: Device, data: bytes) -> None:
    """Hand bytes to a device as a transport does: in pieces of the buffer it offers, while it reads."""
    at = 0
    while at < len(data):
        buffer = memoryview(device.get_buffer(-1))
        size = min(len(buffer), len(data) - at)
        buffer[:size] = data[at : at + size]
        device.buffer_updated(size)
        at += size


def split_output(output: bytes) -> list[tuple[int, bytes]]:
    """(first byte, body) of every packet in what a server wrote."""
    found = []
    at = 0
    while at < len(output):
        first, remaining, shift = output[at], 0, 0
        while True:
            at += 1
            remaining |= (output[at] & 0x7F) << shift
            shift += 7
            if not output[at] & 0x80:
                break
        at += 1
        found.append((first, output[at : at + remaining]))
        at += remaining
    assert at == len(output), "whole packets only"
    return found


def read_publish(packet: tuple[int, bytes]) -> tuple[str, bytes, int]:
    """(topic, payload, QoS) of a PUBLISH."""
    first, body = packet
    assert first >> 4 == packets.PUBLISH
    qos = first >> 1 & 3
    end = 2 + int.from_bytes(body[:2], "big")
    return body[2:end].decode(), body[end + (2 if qos else 0) :], qos


class RawClient:
    """An MQTT client of bare packets on a real socket; every read has a time limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.wait_s = 30.0
        self._reader = reader
        self._writer = writer

    @classmethod
    async def dial(cls, port: int, **options: Any) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    @classmethod
    async def dial_unix(cls, path: str) -> RawClient:
        return cls(*await asyncio.open_unix_connection(path))

    @classmethod
    async def connect(cls, port: int, client_id: str = "", **fields: Any) -> RawClient:
        """With an open session."""
        client = await cls.dial(port)
        client.send(connect_packet(client_id, **fields))
        assert await client.packet() == (packets.CONNACK << 4, b"\0\0")
        return client

    def send(self, *data: bytes) -> None:
        self._writer.write(b"".join(data))

    async def packet(self) -> tuple[int, bytes]:
        """The next packet: (first byte, body)."""
        async with asyncio.timeout(self.wait_s):
            first = (await self._reader.readexactly(1))[0]
            remaining = shift = 0
            while True:
                digit = (await self._reader.readexactly(1))[0]
                remaining |= (digit & 0x7F) << shift
                shift += 7
                if not digit & 0x80:
                    return first, await self._reader.readexactly(remaining)

    async def publish_received(self) -> tuple[str, bytes, int]:
        """(topic, payload, QoS) of the next packet, a PUBLISH; QoS 1 is acknowledged."""
        first, body = packet = await self.packet()
        if first >> 1 & 3 == 1:
            at = 2 + int.from_bytes(body[:2], "big")
            identifier = int.from_bytes(body[at : at + 2], "big")
            self.send(packets.encode_acknowledgement(packets.PUBACK, identifier))
        return read_publish(packet)

    async def ping(self) -> None:
        """Returns when the server has read everything sent so far; nothing else may come before."""
        self.send(packets.PINGREQ_PACKET)
        assert await self.packet() == (packets.PINGRESP << 4, b"")

    async def subscribe(self, *filters: tuple[str, int], packet_id: int = 1) -> list[int]:
        """Returns the codes of the SUBACK."""
        self.send(packets.encode_subscribe(packet_id, filters))
        first, body = await self.packet()
        assert first == packets.SUBACK << 4
        assert int.from_bytes(body[:2], "big") == packet_id
        return list(body[2:])

    async def puback(self) -> int:
        """The packet id of the next packet, a PUBACK."""
        first, body = await self.packet()
        assert first == packets.PUBACK << 4
        return int.from_bytes(body, "big")

    async def rest(self) -> bytes:
        """What comes until the server ends the connection."""
        async with asyncio.timeout(self.wait_s):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


def connect_packet(client_id: str = "", **fields: Any) -> bytes:
    defaults: dict[str, Any] = {
        "clean_session": True,
        "keep_alive_s": 0,
        "will": None,
        "user_name": None,
        "password": None,
    }
    return packets.encode_connect(Connect(client_id, **(defaults | fields)))
