"""The master of a broker name moves to another address: clients and front ends follow, and lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from eventually import soon
from moving_master import MovingMaster

from iotmq.client import (
    IotmqClient,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)
from iotmq.client.transport.masters import Master
from iotmq.front_port.gateway import RemoteGateway
from iotmq.front_port.session_gateway import RemoteSessions
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.remoting.codes import RequestCode

pytestmark = pytest.mark.uvloop

WAIT_S = 30.0
# What a move may take here at most, on a machine that is very busy: every timeout and poll is longer.
FOLLOW_S_MAX = 8.0

silently = pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "cut"])


class Stream:
    """Messages one after the other to each queue of T, as fast as they are acknowledged."""

    def __init__(self, producer: Producer, queues: tuple[MessageQueue, ...]) -> None:
        self.acknowledged: dict[int, list[bytes]] = defaultdict(list)
        self._producer = producer
        self._is_over = False
        self._tasks = [asyncio.ensure_future(self._send(queue)) for queue in queues]

    async def _send(self, queue: MessageQueue) -> None:
        number = 0
        while not self._is_over:
            body = b"%d" % number
            await self._producer.send(Message("T", body), queue=queue)
            self.acknowledged[queue.queue_id].append(body)
            number += 1
            await asyncio.sleep(0.001)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def goes_on(self, count: int = 20) -> None:
        """Until there are more acknowledgements."""
        until = self.count + count
        await soon(lambda: self.count >= until or any(task.done() for task in self._tasks), "sends go on")

    async def end(self) -> None:
        self._is_over = True
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self._tasks)


def without_repeats(bodies: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(bodies))


def held_pulls(site: MovingMaster) -> float:
    return next(metric.value for metric in site.broker.metrics() if metric.name == "iotmq_broker_held_pulls")


@silently
async def test_a_producer_and_a_consumer_follow_and_keep_the_order(tmp_path: Path, is_silent: bool) -> None:
    consumed: dict[int, list[bytes]] = defaultdict(list)

    def listen(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            consumed[message.queue.queue_id].append(message.body)

    async with MovingMaster(tmp_path) as site, IotmqClient(site.client_settings()) as client:
        consumer = PushConsumer(
            client, "g", listen, settings=PushConsumerSettings(consume_from="first", commit_ms=50)
        )
        await consumer.subscribe("T")
        async with Producer(client) as producer, consumer:
            stream = Stream(producer, await producer.queues("T"))
            await stream.goes_on()
            for _ in range(2):
                registered_s = await site.take_over(is_silent=is_silent)
                await stream.goes_on(1)
                assert time.monotonic() - registered_s < FOLLOW_S_MAX
                await stream.goes_on()
            await stream.end()
            await soon(
                lambda: sum(map(len, map(without_repeats, consumed.values()))) >= stream.count,
                "everything is consumed",
            )
            for queue_id, bodies in stream.acknowledged.items():
                assert without_repeats(consumed[queue_id]) == bodies
        # Topics that nobody is asking for are looked up again a moment later.
        present = {"broker-a": {0: site.master.address}}
        await soon(
            lambda: all(route.addresses == present for route in client.routes.all_known()),
            "every route leads to the last master",
        )
        for former in site.masters[:-1]:
            assert client.connections.ready(former.address) is None


async def test_a_pull_that_is_parked_at_a_silent_host_is_asked_again_elsewhere(tmp_path: Path) -> None:
    arrived = asyncio.Event()
    # The pauses behind lost connections would be too long.
    pauses = {"reconnect_ms_min": 20_000, "reconnect_ms_max": 60_000}
    async with MovingMaster(tmp_path) as site, IotmqClient(site.client_settings(**pauses)) as client:
        consumer = PushConsumer(client, "g", lambda _: arrived.set())
        await consumer.subscribe("T")
        async with consumer:
            await soon(lambda: len(consumer.assigned) == 2, "the queues")
            await soon(lambda: held_pulls(site) >= 2, "parked pulls")
            await site.take_over(is_silent=True)
            began_s = time.monotonic()
            await soon(lambda: held_pulls(site) >= 2, "pulls at the next master", step_s=0.002)
            assert time.monotonic() - began_s < FOLLOW_S_MAX
            assert not arrived.is_set()
            async with Producer(client) as producer:
                await producer.send(Message("T", b"x"))
                async with asyncio.timeout(WAIT_S):
                    await arrived.wait()


async def test_offsets_are_committed_and_heartbeats_sent_at_the_next_master(tmp_path: Path) -> None:
    async with MovingMaster(tmp_path) as site, IotmqClient(site.client_settings()) as client:
        settings = PushConsumerSettings(consume_from="first", commit_ms=20)
        consumer = PushConsumer(client, "g", lambda _: None, settings=settings)
        await consumer.subscribe("T")
        async with Producer(client) as producer, consumer:
            queue = (await producer.queues("T"))[0]
            await producer.send(Message("T", b"1"), queue=queue)
            await soon(lambda: site.broker.offsets.find("g", "T", 0) == 1, "a commit")
            await site.take_over(is_silent=True)
            await soon(lambda: site.broker.groups.consumer_group("g") is not None, "a heartbeat")
            await producer.send(Message("T", b"2"), queue=queue)
            await soon(lambda: site.broker.offsets.find("g", "T", 0) == 2, "a commit")


async def test_an_address_that_follows_the_master_is_connected_anew(tmp_path: Path) -> None:
    async with (
        MovingMaster(tmp_path) as site,
        IotmqClient(site.client_settings()) as client,
        Producer(client) as producer,
        front_end(site) as front,
    ):
        device = await front.device("d")
        await producer.send(Message("T", b"1"))
        await device.stored(device.publish("t", b"1"))
        before = client.connections.ready(site.master.address)
        await site.master.end(is_silent=True)
        # The connections of before stay, and nobody answers on them.
        send = producer.send_nowait(Message("T", b"2"))
        number = device.publish("t", b"2")
        registered_s = await site.start_next(epoch=2, keeps_address=True)
        async with asyncio.timeout(FOLLOW_S_MAX):
            await send
        assert await device.stored(number) - registered_s < FOLLOW_S_MAX
        assert before is not None
        assert before.is_closed
        await soon(lambda: front.sessions.not_ready_reason is None, "sessions", within_s=FOLLOW_S_MAX)
        await soon(lambda: front.gateway.not_ready_reason is None, "deliveries", within_s=FOLLOW_S_MAX)
        assert device.disconnects == 0


# Several registries


async def test_a_registry_that_is_behind_does_not_lead_back(tmp_path: Path) -> None:
    async with MovingMaster(tmp_path, registries=2) as site:
        stale, fresh = site.registries
        # The stale one is asked first, and goes on naming the former master, whose host went without a word.
        async with IotmqClient(site.client_settings()) as client, Producer(client) as producer:
            await producer.send(Message("T", b"1"))
            await site.take_over(is_silent=True, registries=[fresh])
            former, present = (master.address for master in site.masters)
            assert site.known_by(stale) == Master(former, 1)
            assert site.known_by(fresh) == Master(present, 2)
            async with asyncio.timeout(FOLLOW_S_MAX):
                await producer.send(Message("T", b"2"))
            route = await client.routes.refresh("T")
            assert route is not None
            assert route.master("broker-a") == present
            # One that comes now hears of both.
            async with IotmqClient(site.client_settings()) as other, Producer(other) as late:
                async with asyncio.timeout(FOLLOW_S_MAX):
                    await late.send(Message("T", b"3"))
                assert other.routes.known("T").master("broker-a") == present  # type: ignore[union-attr]


async def test_a_registry_that_restarts_or_is_down_does_no_harm(tmp_path: Path) -> None:
    async with (
        MovingMaster(tmp_path, registries=2) as site,
        IotmqClient(site.client_settings()) as client,
        Producer(client) as producer,
    ):
        await producer.send(Message("T", b"1"))
        await site.registries[0].stop()
        await producer.send(Message("T", b"2"))
        await site.take_over(is_silent=True, registries=site.registries[1:])
        async with asyncio.timeout(FOLLOW_S_MAX):
            await producer.send(Message("T", b"3"))
        await site.registries[0].start()
        await producer.send(Message("T", b"4"))
        await site.take_over(is_silent=True)
        async with asyncio.timeout(FOLLOW_S_MAX):
            await producer.send(Message("T", b"5"))


async def test_a_registry_that_cannot_be_watched_is_asked(tmp_path: Path) -> None:
    async with MovingMaster(tmp_path, first_epoch=0) as site:
        for registry in site.registries:
            del registry._handlers[RequestCode.WATCH_MASTERS]
        async with IotmqClient(site.client_settings()) as client, Producer(client) as producer:
            await producer.send(Message("T", b"1"))
            registered_s = await site.take_over(is_silent=False, epoch=0)
            async with asyncio.timeout(WAIT_S):
                await producer.send(Message("T", b"2"))
            assert time.monotonic() - registered_s < FOLLOW_S_MAX


async def test_a_master_that_comes_back_after_a_later_one_is_not_followed(tmp_path: Path) -> None:
    async with (
        MovingMaster(tmp_path) as site,
        IotmqClient(site.client_settings()) as client,
        Producer(client) as producer,
    ):
        await producer.send(Message("T", b"1"))
        await site.take_over(is_silent=True, epoch=7)
        await producer.send(Message("T", b"2"))
        address = site.master.address
        await site.master.end(is_silent=False)
        (registry,) = site.registries
        await soon(lambda: site.known_by(registry) is None, "it is gone")
        deposed = asyncio.ensure_future(site.start_next(epoch=6))
        await soon(lambda: registry.routes.stale_count, "a refusal")
        assert site.known_by(registry) is None
        assert client.routes.known("T").master("broker-a") == address  # type: ignore[union-attr]
        deposed.cancel()
        await asyncio.gather(deposed, return_exceptions=True)


# Front ends


class Device:
    """A client of paho-mqtt, in its own thread."""

    def __init__(self, client_id: str) -> None:
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=False,
            reconnect_on_failure=False,
        )
        self.client.max_inflight_messages_set(50)
        self.disconnects = 0
        self.got: list[bytes] = []
        self.acknowledged: dict[int, float] = {}
        self.subscribed = 0
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = lambda _c, _d, message: self.got.append(message.payload)
        self.client.on_publish = self._on_publish
        self.client.on_subscribe = self._on_subscribe
        self._is_leaving = False

    def _on_publish(self, _client: Any, _data: Any, number: int, *_: Any) -> None:
        self.acknowledged[number] = time.monotonic()

    def _on_subscribe(self, *_: Any) -> None:
        self.subscribed += 1

    def _on_disconnect(self, *_: Any) -> None:
        self.disconnects += not self._is_leaving

    async def connect(self, port: int) -> None:
        await asyncio.to_thread(self.client.connect, "127.0.0.1", port)
        self.client.loop_start()
        await soon(self.client.is_connected, "CONNACK")

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        before = self.subscribed
        self.client.subscribe(topic_filter, qos)
        await soon(lambda: self.subscribed > before, "SUBACK")

    def publish(self, topic: str, payload: bytes, qos: int = 1) -> int:
        return self.client.publish(topic, payload, qos).mid

    async def stored(self, *numbers: int) -> float:
        """When the last of these was acknowledged."""
        await soon(lambda: all(number in self.acknowledged for number in numbers), "PUBACK", step_s=0.001)
        return max(self.acknowledged[number] for number in numbers)

    async def leave(self) -> None:
        self._is_leaving = True
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)


class FrontSite:
    """A front end, and its devices."""

    def __init__(self, front: MqttFront, gateway: RemoteGateway, sessions: RemoteSessions) -> None:
        self.front = front
        self.gateway = gateway
        self.sessions = sessions
        self._devices: list[Device] = []

    async def device(self, client_id: str) -> Device:
        device = Device(client_id)
        await device.connect(self.front.port)
        self._devices.append(device)
        return device

    async def leave(self) -> None:
        for device in self._devices:
            await device.leave()


@asynccontextmanager
async def front_end(site: MovingMaster) -> AsyncIterator[FrontSite]:
    gateway = RemoteGateway(site.addresses, settings=site.client_settings())
    sessions = RemoteSessions(gateway, name="one")
    front = MqttFront(MqttSettings(listen_port=0, default_topic="T"), gateway, sessions=sessions)
    await front.start()
    found = FrontSite(front, gateway, sessions)
    try:
        yield found
    finally:
        await found.leave()
        await front.stop()


@silently
async def test_devices_stay_connected_and_publish_on(
    tmp_path: Path, is_silent: bool, record_property: Callable[[str, object], None]
) -> None:
    async with MovingMaster(tmp_path) as site, front_end(site) as front:
        device = await front.device("d")
        reader = await front.device("r")
        await reader.subscribe("t/#", 1)
        await device.stored(device.publish("t/1", b"0"))
        taken_s = []
        number = 1
        for _ in range(3):
            await site.master.end(is_silent=is_silent)
            # These wait for a master.
            waiting = [device.publish("t/1", b"%d" % each) for each in range(number, number + 10)]
            number += 10
            registered_s = await site.start_next(epoch=len(site.masters) + 1)
            answered_s = await device.stored(*waiting)
            taken_s.append(answered_s - registered_s)
        record_property("acknowledged_after_s", taken_s)
        print(f"acknowledged {[round(each * 1000, 1) for each in taken_s]} ms after the registration")
        assert max(taken_s) < FOLLOW_S_MAX
        await soon(lambda: len(set(reader.got)) == number, "everything is delivered")
        assert list(dict.fromkeys(reader.got)) == [b"%d" % each for each in range(number)]
        assert (device.disconnects, reader.disconnects) == (0, 0)


@silently
async def test_kept_sessions_go_on_with_what_is_in_flight(tmp_path: Path, is_silent: bool) -> None:
    async with MovingMaster(tmp_path) as site, front_end(site) as front:
        device, sender = await front.device("d"), await front.device("s")
        device.client.manual_ack_set(True)
        messages: list[paho.MQTTMessage] = []
        device.client.on_message = lambda _c, _d, message: messages.append(message)
        await device.subscribe("one/#", 1)
        await device.subscribe("two/#", 2)
        for number in range(3):
            await sender.stored(sender.publish("one/x", b"one-%d" % number))
            await sender.stored(sender.publish("two/x", b"two-%d" % number, qos=2))
        await soon(lambda: len(messages) == 6, "all in flight")
        await site.take_over(is_silent=is_silent)
        # QoS 2 the other way, too: its packet ids are known at the next master.
        await sender.stored(sender.publish("two/x", b"two-3", qos=2))
        for message in messages[:6]:
            device.client.ack(message.mid, message.qos)
        await soon(lambda: len(messages) == 7, "what came since")
        device.client.ack(messages[6].mid, messages[6].qos)
        assert sorted(message.payload for message in messages) == sorted(
            [b"one-0", b"one-1", b"one-2", b"two-0", b"two-1", b"two-2", b"two-3"]
        )
        assert (device.disconnects, sender.disconnects) == (0, 0)
        await soon(lambda: front.sessions.not_ready_reason is None, "sessions at the next master")
        await soon(lambda: front.gateway.not_ready_reason is None, "deliveries from the next master")
        assert front.sessions.renewed_total == 0, "nobody had to come anew"


async def test_a_front_end_keeps_the_queues_of_a_replicated_broker_without_a_master(tmp_path: Path) -> None:
    async with (
        MovingMaster(tmp_path / "a") as site,
        front_end(site) as front,
    ):
        before = front.gateway._queues["T"]
        route = front.gateway._client.routes.known("T")
        assert route is not None
        await site.master.end(is_silent=False)
        (registry,) = site.registries
        await soon(lambda: site.known_by(registry) is None, "it is gone")
        await front.gateway._client.routes.refresh("T")
        assert await front.gateway._producer.queues("T") == before
        await site.start_next(epoch=2)
