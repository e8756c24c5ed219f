"""Front ends over real brokers: in one process (LocalGateway) and in two (RemoteGateway)."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import STOP_S, WITHIN_S, soon
from fake_gateway import RawClient

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.topics import TopicConfig
from iotmq.client import Admin, ClientSettings, IotmqClient, Message, Producer, PullConsumer, ReceivedMessage
from iotmq.errors import ConfigError
from iotmq.front_port.gateway import RemoteGateway
from iotmq.message.properties import MQTT_TOPIC
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.routes import RouteSettings
from iotmq.ports.gateway import GatewayPort
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

pytestmark = pytest.mark.uvloop


class Site:
    """A registry, one broker and any number of front ends, each with the gateway that was asked for."""

    def __init__(
        self,
        directory: Path,
        *,
        is_local: bool,
        sync_file: Callable[[int], object] = os.fdatasync,
        store: dict[str, Any] | None = None,
        **mqtt: Any,
    ) -> None:
        self.directory = directory
        self.is_local = is_local
        self.sync_file = sync_file
        self.store_settings = StoreSettings(segment_bytes=8 << 20, **(store or {}))
        self.mqtt: dict[str, Any] = {"listen_port": 0, "retry_interval_s": 0.05, **mqtt}
        self.registry = Registry(RegistrySettings(listen_port=0))
        self.broker_port = 0
        self.fronts: list[MqttFront] = []

    async def start(self) -> None:
        await self.registry.start()
        await self.start_broker()

    async def start_broker(self) -> None:
        settings = BrokerSettings(
            listen_port=self.broker_port, registries=(self.registry_address,), registration_interval_s=0.2
        )
        self.store = Store.open(
            self.directory,
            self.store_settings,
            store_host=resolve_store_host(settings),
            sync_file=self.sync_file,
        )
        self.broker = Broker(settings, self.store, directory=self.directory)
        await self.broker.start()
        self.broker_port = self.broker.port

    async def stop_broker(self) -> None:
        await self.broker.stop()
        problems = self.store.check()
        self.store.close()
        assert problems == []

    @property
    def registry_address(self) -> str:
        return f"127.0.0.1:{self.registry.port}"

    def gateway(self) -> GatewayPort:
        return self.broker.local_gateway() if self.is_local else RemoteGateway((self.registry_address,))

    async def start_front(self) -> MqttFront:
        front = MqttFront(MqttSettings(**self.mqtt), self.gateway())
        self.fronts.append(front)
        async with asyncio.timeout(WITHIN_S):
            await front.start()
        await soon(lambda: front.not_ready_reason is None, "front end is ready")
        return front

    async def stop(self) -> None:
        for front in self.fronts:
            async with asyncio.timeout(STOP_S):
                await front.stop()
        await self.stop_broker()
        await self.registry.stop()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[IotmqClient]:
        async with IotmqClient(ClientSettings(registries=(self.registry_address,))) as client:
            yield client

    async def stored(self, topic: str, count: int) -> list[ReceivedMessage]:
        """The first `count` messages of a broker topic, read as a backend service would."""
        found: list[ReceivedMessage] = []
        async with self.client() as client, PullConsumer(client) as consumer:
            await consumer.assign(await consumer.queues(topic, timeout_ms=10_000))
            async with asyncio.timeout(WITHIN_S):
                while len(found) < count:
                    found += await consumer.getmany(timeout_ms=1_000)
        assert len(found) == count
        return found


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Site]:
    site = Site(directory, **settings)
    await site.start()
    try:
        yield site
    finally:
        await site.stop()


either = pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])


def publish(packet_id: int, payload: bytes = b"x", topic: str = "t") -> bytes:
    return packets.encode_publish(topic, payload, qos=1, packet_id=packet_id)


@either
async def test_what_is_acknowledged_is_stored_and_read_by_a_backend_service(
    tmp_path: Path, is_local: bool
) -> None:
    routes = (RouteSettings(filter="devices/+/#", topic="telemetry", key="{1}", tags="{2}"),)
    async with running(tmp_path, is_local=is_local, routes=routes) as site:
        front = await site.start_front()
        client = await RawClient.connect(front.port, "device-é", will=Will("devices/7/gone", b"w", 1, False))
        client.send(
            packets.encode_publish("devices/7/temperature", b"21.5", qos=1, packet_id=1, retain=True),
            packets.encode_publish("devices/7/humidity", b"", qos=0),
            packets.encode_publish("elsewhere", b"\0\1\2", qos=1, packet_id=2),
        )
        assert [await client.puback(), await client.puback()] == [1, 2]
        client.abort()
        messages = await site.stored("telemetry", 3)
        assert [(message.body, message.tags, message.keys) for message in messages] == [
            (b"21.5", "temperature", ["7"]),
            (b"", "humidity", ["7"]),
            (b"w", "gone", ["7"]),
        ]
        assert len({message.queue for message in messages}) == 1
        assert (
            messages[0].properties.items()
            >= {
                "MQTT_TOPIC": "devices/7/temperature",
                "MQTT_QOS": "1",
                "MQTT_RETAIN": "1",
                "MQTT_CLIENT_ID": "device-é",
            }.items()
        )
        [other] = await site.stored("mqtt", 1)
        assert (other.body, other.properties[MQTT_TOPIC]) == (b"\0\1\2", "elsewhere")


@either
async def test_live_delivery_between_front_ends_and_from_native_producers(
    tmp_path: Path, is_local: bool
) -> None:
    async with running(tmp_path, is_local=is_local) as site:
        one, two = await site.start_front(), await site.start_front()
        publisher = await RawClient.connect(one.port, "publisher")
        near, far = await RawClient.connect(one.port, "near"), await RawClient.connect(two.port, "far")
        assert await near.subscribe(("a/+", 1), ("a/#", 0)) == [1, 0]
        assert await far.subscribe(("a/#", 0), ("b", 1)) == [0, 1]
        for number in range(50):
            publisher.send(publish(number + 1, b"%d" % number, "a/x"))
        for number in range(50):
            assert await near.publish_received() == ("a/x", b"%d" % number, 1)
            assert await far.publish_received() == ("a/x", b"%d" % number, 0)
            assert await publisher.puback() == number + 1
        publisher.send(publish(51, b"last", "b"))
        assert await far.publish_received() == ("b", b"last", 1)
        assert await publisher.puback() == 51
        async with site.client() as client, Producer(client, "service") as producer:
            for topic in ("a/+", "a/cmd"):  # the first is no topic name, and no device gets it
                await producer.send(Message("commands", bytes(10_000), properties={MQTT_TOPIC: topic}))
        assert await near.publish_received() == ("a/cmd", bytes(10_000), 1), "compressed on its way"
        assert await far.publish_received() == ("a/cmd", bytes(10_000), 0)
        far.send(packets.encode_unsubscribe(5, ["a/#"]))
        assert await far.packet() == (packets.UNSUBACK << 4, b"\0\5")
        near.send(packets.DISCONNECT_PACKET)
        assert await near.rest() == b""
        await soon(lambda: site.broker.delivery.filter_count == 1, "only b is left")
        await far.ping()


@either
async def test_routes_that_do_not_store_reach_live_subscribers_and_leave_no_record(
    tmp_path: Path, is_local: bool
) -> None:
    routes = (RouteSettings(filter="live/#", topic="live", store=False),)
    async with running(tmp_path, is_local=is_local, routes=routes) as site:
        front = await site.start_front()
        client = await RawClient.connect(front.port, "d")
        assert await client.subscribe(("live/#", 0)) == [0]
        position = site.store.appended_position
        for number in range(30):  # keys of every queue
            client.send(publish(number + 1, b"%d" % number, f"live/{number}"))
        found = [await client.packet() for _ in range(60)]
        acknowledged = [body for first, body in found if first >> 4 == packets.PUBACK]
        payloads = {body[2 + body[1] :] for first, body in found if first >> 4 == packets.PUBLISH}
        assert acknowledged == [(number + 1).to_bytes(2, "big") for number in range(30)]
        assert payloads == {b"%d" % number for number in range(30)}
        assert site.store.appended_position == position


@either
async def test_devices_wait_while_an_operator_forbids_the_broker_to_write(
    tmp_path: Path, is_local: bool
) -> None:
    async with running(tmp_path, is_local=is_local) as site, site.client() as service:
        front = await site.start_front()
        changes = Admin(service).changes
        device = await RawClient.connect(front.port, "d")
        device.send(publish(1, b"before"))
        assert await device.puback() == 1
        await changes.change_broker_settings({"brokerPermission": "4"})
        device.send(publish(2, b"meanwhile"))
        await soon(lambda: _retries(front) > 0, "the front end holds back")
        assert [message.body for message in await site.stored("mqtt", 1)] == [b"before"]
        assert (front.not_ready_reason is not None) is is_local
        await changes.change_broker_settings({"brokerPermission": "6"})
        assert await device.puback() == 2
        assert {message.body for message in await site.stored("mqtt", 2)} == {b"before", b"meanwhile"}


def _retries(front: MqttFront) -> float:
    return sum(metric.value for metric in front.metrics() if metric.name == "iotmq_mqtt_batch_retries_total")


class Gate:
    """`sync_file` that waits until it is opened; the flush thread stands in it meanwhile."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.entered = threading.Event()
        self.is_open.set()

    def __call__(self, file: int) -> None:
        self.entered.set()
        assert self.is_open.wait(10)
        os.fdatasync(file)


@either
async def test_under_sync_flush_nothing_is_acknowledged_or_delivered_before_the_group_commit(
    tmp_path: Path, is_local: bool
) -> None:
    gate = Gate()
    async with running(tmp_path, is_local=is_local, sync_file=gate, store={"flush": "sync"}) as site:
        front = await site.start_front()
        publisher, subscriber = [await RawClient.connect(front.port, name) for name in ("p", "s")]
        assert await subscriber.subscribe(("t", 0)) == [0]
        publisher.send(publish(1))
        assert await publisher.puback() == 1
        assert await subscriber.publish_received() == ("t", b"x", 0)
        gate.is_open.clear()
        gate.entered.clear()
        publisher.send(publish(2))
        await soon(gate.entered.is_set, "the flush of message 2 began", step_s=0.001)
        publisher.send(publish(3))
        await publisher.ping()
        await subscriber.ping()
        gate.is_open.set()
        assert [await publisher.puback() for _ in range(2)] == [2, 3]
        for _ in range(2):
            assert await subscriber.publish_received() == ("t", b"x", 0)
        assert site.store.flushed_position == site.store.appended_position


@either
async def test_a_full_disk_holds_publishers_back_and_acknowledges_when_there_is_room(
    tmp_path: Path, is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, is_local=is_local) as site:
        front = await site.start_front()
        client, reader = [await RawClient.connect(front.port, name) for name in ("d", "r")]
        client.send(publish(1, b"before"))
        assert await client.puback() == 1
        refused = 0

        def full(*arguments: Any, **fields: Any) -> None:
            nonlocal refused
            refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(site.store, "_append", full)
            # What a store that refuses says to those who append many batches.
            patch.setattr(site.store, "begin_appends", lambda: -1)
            client.send(publish(2, b"during"))
            await soon(lambda: refused > 0, "the disk refused")
            client.send(publish(3, b"behind"))
            await client.ping()
            assert await reader.subscribe(("t", 1)) == [1], "the rest goes on"
            if is_local:
                await soon(lambda: front.not_ready_reason is not None, "not ready")
        assert [await client.puback() for _ in range(2)] == [2, 3]
        assert await reader.publish_received() == ("t", b"during", 1)
        assert await reader.publish_received() == ("t", b"behind", 1)
        assert [message.body for message in await site.stored("mqtt", 3)] == [b"before", b"during", b"behind"]


@either
async def test_a_disk_that_fails_for_good_is_never_acknowledged(tmp_path: Path, is_local: bool) -> None:
    is_broken = threading.Event()

    def sync_file(file: int) -> None:
        if is_broken.is_set():
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(file)

    store = {"flush": "sync", "sync_flush_timeout_ms": 200}
    async with running(tmp_path, is_local=is_local, sync_file=sync_file, store=store) as site:
        front = await site.start_front()
        client = await RawClient.connect(front.port, "d")
        client.send(publish(1))
        assert await client.puback() == 1
        is_broken.set()
        client.send(publish(2))
        retries = "iotmq_mqtt_batch_retries_total"
        if is_local:
            # It is in the log: to offer it again would be to store it twice.
            await soon(lambda: site.broker.writer.flush_timeouts_count == 1, "the store has given up")
            assert number(front, retries) == 0
        else:
            await soon(lambda: number(front, retries) >= 3, "its broker was asked several times")
        await client.ping()


def number(front: MqttFront, name: str) -> float:
    return sum(metric.value for metric in front.metrics() if metric.name == name)


async def test_a_broker_restart_loses_nothing_and_devices_stay_connected(tmp_path: Path) -> None:
    async with running(tmp_path, is_local=False) as site:
        one, two = await site.start_front(), await site.start_front()
        publishers = [await RawClient.connect(one.port, f"p{n}") for n in range(3)]
        subscriber = await RawClient.connect(two.port, "s")
        assert await subscriber.subscribe(("t/#", 1)) == [1]
        received: list[bytes] = []

        async def receive() -> None:
            while True:
                received.append((await subscriber.publish_received())[1])

        for patient in (subscriber, *publishers):
            patient.wait_s = 30.0
        receiving = asyncio.ensure_future(receive())
        acknowledged: list[bytes] = []

        async def send(place: int, client: RawClient, start: int, count: int = 10) -> None:
            for packet_id in range(start, start + count):
                payload = b"%d/%d" % (place, packet_id)
                client.send(publish(packet_id, payload, f"t/{place}"))
                assert await client.puback() == packet_id
                acknowledged.append(payload)

        async def send_all() -> None:
            async with asyncio.timeout(30):
                await asyncio.gather(
                    *(send(place, client, 1, 300) for place, client in enumerate(publishers))
                )

        bystander = await RawClient.connect(one.port, "bystander")
        sending = asyncio.ensure_future(send_all())
        await soon(lambda: len(acknowledged) > 150, "some of the messages", step_s=0.001)
        await site.stop_broker()
        held = len(acknowledged)
        assert held < 900
        await soon(lambda: two.not_ready_reason is not None, "the channel is known to be down")
        await bystander.ping()
        assert len(acknowledged) == held, "nothing is acknowledged while the broker is away"
        await site.start_broker()
        await sending
        assert number(one, "iotmq_mqtt_connections") == 4
        assert number(two, "iotmq_mqtt_connections") == 1
        await soon(lambda: one.not_ready_reason is None and two.not_ready_reason is None, "channels are back")
        await asyncio.gather(*(send(place, client, 1_000) for place, client in enumerate(publishers)))
        stored = {message.body for message in await stored_at_least(site, "mqtt", acknowledged)}
        assert set(acknowledged) <= stored
        await soon(lambda: set(acknowledged) <= set(received), "all is delivered, also what came first")
        records = await stored_at_least(site, "mqtt", acknowledged)
        await soon(lambda: len(received) >= len(records), "every record is delivered")
        assert len(received) == len(records), "once each"
        for place in range(3):
            numbers = [int(each.split(b"/")[1]) for each in received if each.startswith(b"%d/" % place)]
            assert numbers == sorted(numbers), "in the order of the log"
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


async def stored_at_least(site: Site, topic: str, payloads: list[bytes]) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with site.client() as client, PullConsumer(client) as consumer:
        await consumer.assign(await consumer.queues(topic, timeout_ms=10_000))
        async with asyncio.timeout(WITHIN_S):
            while not {message.body for message in found} >= set(payloads):
                found += await consumer.getmany(timeout_ms=1_000)
    return found


async def test_a_topic_with_fewer_queues_still_takes_what_was_on_its_way(tmp_path: Path) -> None:
    async with running(tmp_path, is_local=True) as site:
        front = await site.start_front()
        client = await RawClient.connect(front.port, "d")
        append = site.store._append
        is_full = True

        def full_first(*arguments: Any, **fields: Any) -> Any:
            if is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return append(*arguments, **fields)

        site.store._append = full_first
        client.send(*(publish(1 + n, b"%d" % n, f"t/{n}") for n in range(20)))
        await soon(lambda: number(front, "iotmq_mqtt_batch_retries_total") > 0, "batches wait")
        site.broker.topics.put(TopicConfig(topic_name="mqtt", read_queue_nums=1, write_queue_nums=1))
        is_full = False
        for n in range(20):
            assert await client.puback() == 1 + n
        messages = await site.stored("mqtt", 20)
        assert {message.body for message in messages} == {b"%d" % n for n in range(20)}


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("one-too-many", r"mqtt\.routes: topic one-too-many"),
        ("read-only", "read-only does not take messages"),
    ],
)
async def test_a_route_to_a_topic_that_takes_no_messages_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, words: str
) -> None:
    async with running(tmp_path, is_local=True, routes=(RouteSettings(filter="a", topic=topic),)) as site:
        site.broker.topics.put(
            TopicConfig(topic_name="read-only", read_queue_nums=1, write_queue_nums=1, perm=4)
        )
        monkeypatch.setattr(site.broker.topics, "_topics_max", len(site.broker.topics.names()))
        with pytest.raises(ConfigError, match=words):
            await site.start_front()
        site.fronts.clear()


async def test_a_stop_of_the_front_end_leaves_the_broker_without_its_filters(tmp_path: Path) -> None:
    async with running(tmp_path, is_local=False) as site:
        front = await site.start_front()
        client = await RawClient.connect(front.port, "d")
        assert await client.subscribe(("a", 0), ("b/#", 1)) == [0, 1]
        assert site.broker.delivery.filter_count == 2
        site.fronts.clear()
        async with asyncio.timeout(STOP_S):
            await front.stop()
        await soon(lambda: site.broker.delivery.channel_count == 0, "the channel is closed")
        assert site.broker.delivery.filter_count == 0


async def test_a_front_end_that_waits_for_a_broker_can_be_stopped() -> None:
    registry = Registry(RegistrySettings(listen_port=0))
    await registry.start()
    gateway = RemoteGateway((f"127.0.0.1:{registry.port}",))
    before = asyncio.all_tasks()
    starting = asyncio.ensure_future(MqttFront(MqttSettings(listen_port=0), gateway).start())
    await soon(lambda: "mqtt" in (gateway.not_ready_reason or ""), "it says what it waits for", step_s=0.001)
    starting.cancel()
    await asyncio.wait([starting], timeout=2)
    assert starting.cancelled()
    await soon(lambda: asyncio.all_tasks() <= before, "nothing is left running")
    await registry.stop()


FIRST_ROUTES = '[[routes]]\nfilter = "a/#"\ntopic = "First"\n'
SECOND_ROUTES = FIRST_ROUTES.replace("First", "Second") + 'key = "{json:id}"\nwhen = ["{json:id} exists"]\n'


@either
async def test_messages_take_new_routes_to_new_topics_and_reach_subscribers(
    tmp_path: Path, is_local: bool
) -> None:
    file = tmp_path / "routes.toml"
    file.write_text(FIRST_ROUTES)
    settings = {"routes_file": str(file), "routes_reload_interval_s": 0.02}
    async with running(tmp_path / "store", is_local=is_local, **settings) as site:
        front = await site.start_front()
        publisher = await RawClient.connect(front.port, "publisher")
        subscriber = await RawClient.connect(front.port, "subscriber")
        await subscriber.subscribe(("a/#", 1))
        publisher.send(publish(1, b"one", "a/1"))
        assert await publisher.puback() == 1
        assert (await subscriber.publish_received())[1] == b"one"

        file.write_text("[[routes]]\nfilter = 1\n")
        await soon(lambda: metric(front, "iotmq_mqtt_route_failed_reloads_total") == 1, "the error is seen")
        publisher.send(publish(2, b"two", "a/1"))
        assert await publisher.puback() == 2
        assert (await subscriber.publish_received())[1] == b"two"

        file.write_text(SECOND_ROUTES)
        await soon(lambda: metric(front, "iotmq_mqtt_route_reloads_total") == 1, "the routes are read")
        publisher.send(publish(3, b'{"id": "x"}', "a/1"), publish(4, b"{}", "a/1"))
        assert [await publisher.puback() for _ in range(2)] == [3, 4]
        received = {(await subscriber.publish_received())[1] for _ in range(2)}
        assert received == {b'{"id": "x"}', b"{}"}
        publisher.close()
        subscriber.close()
        assert [message.body for message in await site.stored("First", 2)] == [b"one", b"two"]
        [message] = await site.stored("Second", 1)
        assert message.keys == ["x"]
        assert [message.body for message in await site.stored("mqtt", 1)] == [b"{}"]


def metric(front: MqttFront, name: str) -> float:
    return next(each.value for each in front.metrics() if each.name == name)
