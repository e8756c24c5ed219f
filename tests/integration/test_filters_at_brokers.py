"""Filters without wildcards at several brokers: whole at one, and nothing is lost while brokers come and go.

Devices of two front ends have one such filter each. What comes for them is published by devices at both front
ends, and by a native producer at any broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from eventually import eventually, soon
from fake_gateway import RawClient
from gateway_process import GatewayProcess

from iotmq.client import ClientSettings, IotmqClient, Message, Producer
from iotmq.client.admin.changes import AdminChanges
from iotmq.message.properties import MQTT_QOS, MQTT_TOPIC
from iotmq.mqtt.codec import packets

DEVICES = 240
QUEUES = 8
# What one source publishes is enough for a load, and leaves the processor to the brokers.
PAUSE_S = 0.005
MOVED_WITHIN_S = 60.0
# Front ends look for changes of the queues every 10 s, and their clients for those of the route every 30 s:
# here several times a second.
FRONT_END = """
import sys

import msgspec
from iotmq import assembly
from iotmq.commands.cli import main
from iotmq.front_port import gateway

gateway._REFRESH_S = 0.3
settings_of = assembly._client_settings
assembly._client_settings = lambda mqtt: msgspec.structs.replace(settings_of(mqtt), route_refresh_ms=300)
sys.exit(main())
"""


class Cluster:
    """A registry, brokers and two front ends, each a process."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.registry = stack.enter_context(GatewayProcess(directory / "registry", role="registry"))
        self.brokers = {name: self._broker(name) for name in "abc"}
        asyncio.run(self.make_topic(*self.brokers))
        self.front_ends = [
            stack.enter_context(
                GatewayProcess(
                    directory / name,
                    f"mqtt.registries={self.registry.registry}",
                    f"mqtt.name={name}",
                    "mqtt.retry_interval_s=0.1",
                    role="mqtt",
                    program=(sys.executable, "-c", FRONT_END),
                )
            )
            for name in ("one", "two")
        ]

    def _broker(self, name: str) -> GatewayProcess:
        return self._stack.enter_context(
            GatewayProcess(
                self._directory / name,
                f"broker.name={name}",
                f"broker.registries={self.registry.registry}",
                "broker.registration_interval_s=0.3",
                role="broker",
            )
        )

    def add_broker(self, name: str) -> None:
        """Start it, and have messages stored there once all front ends have a channel to it."""
        self.brokers[name] = self._broker(name)
        asyncio.run(self.make_topic(name, permissions=4))
        eventually(
            self._is_followed, "all front ends know the new broker", within_s=MOVED_WITHIN_S, step_s=0.5
        )
        asyncio.run(self.make_topic(name))

    def _is_followed(self) -> bool:
        up = [front_end.metric("iotmq_mqtt_delivery_channel_up") for front_end in self.front_ends]
        return up == [len(self.brokers)] * len(up)

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings(registries=(self.registry.registry,))

    async def make_topic(self, *brokers: str, permissions: int = 6) -> None:
        async with IotmqClient(self.settings) as client:
            await AdminChanges(client).update_topic(
                "mqtt",
                read_queues=QUEUES,
                write_queues=QUEUES,
                permissions=permissions,
                broker_names=brokers,
            )

    async def close_to_messages(self, broker: str) -> None:
        async with IotmqClient(self.settings) as client:
            await AdminChanges(client).set_writable(broker, is_writable=False)

    def numbers(self, name: str) -> dict[str, float]:
        return {broker: process.metric(name) for broker, process in self.brokers.items()}

    def whole(self) -> dict[str, float]:
        """Those of devices: every broker has one more, for the bans that front ends share."""
        return {broker: count - 1 for broker, count in self.numbers("iotmq_broker_filters").items()}

    def marks(self) -> dict[str, float]:
        return self.numbers("iotmq_broker_filter_marks")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def topic_of(device: int) -> str:
    """Names that count up would not be spread evenly: a checksum chooses the queue."""
    return f"devices/{hashlib.sha256(b'%d' % device).hexdigest()[:12]}/commands"


class Load:
    """Publishes to all devices again and again, one message at a time for each source."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.sent: set[tuple[int, bytes]] = set()
        self.received: Counter[tuple[int, bytes]] = Counter()
        self._is_over = asyncio.Event()

    async def subscribe(self, device: int) -> asyncio.Task[None]:
        front_end = self._cluster.front_ends[device % 2]
        client = await RawClient.connect(front_end.mqtt_port, f"subscriber-{device}")
        client.wait_s = 600.0
        assert await client.subscribe((topic_of(device), 1)) == [1]
        return asyncio.ensure_future(self._receive(client, device))

    async def _receive(self, client: RawClient, device: int) -> None:
        while True:
            topic, payload, qos = await client.publish_received()
            assert (topic, qos) == (topic_of(device), 1)
            self.received[device, payload] += 1

    async def publish(self, source: str, front_end: GatewayProcess) -> None:
        client = await RawClient.connect(front_end.mqtt_port, source)
        for number in itertools.count():
            if self._is_over.is_set():
                break
            device = number % DEVICES
            payload = b"%s %d" % (source.encode(), number)
            packet_id = number % 65_535 + 1
            client.send(packets.encode_publish(topic_of(device), payload, qos=1, packet_id=packet_id))
            assert await client.puback() == packet_id
            self.sent.add((device, payload))
            await asyncio.sleep(PAUSE_S)
        client.close()

    async def produce(self) -> None:
        async with IotmqClient(self._cluster.settings) as client, Producer(client, "backend") as producer:
            for number in itertools.count():
                if self._is_over.is_set():
                    break
                device = number % DEVICES
                payload = b"native %d" % number
                properties = {MQTT_TOPIC: topic_of(device), MQTT_QOS: "1"}
                await producer.send(Message("mqtt", payload, properties=properties))
                self.sent.add((device, payload))
                await asyncio.sleep(PAUSE_S)

    def end(self) -> None:
        self._is_over.set()


@pytest.mark.slow
@pytest.mark.timeout(360)
async def test_filters_are_spread_over_brokers_and_no_message_is_lost_while_these_come_and_go(
    cluster: Cluster,
) -> None:
    load = Load(cluster)
    receiving = [await load.subscribe(device) for device in range(DEVICES)]
    whole, marks = cluster.whole(), cluster.marks()
    assert sum(whole.values()) == DEVICES
    assert all(DEVICES / 3 * 0.7 < count < DEVICES / 3 * 1.3 for count in whole.values()), whole
    assert all(whole[name] + marks[name] == DEVICES for name in cluster.brokers)
    sources = [
        asyncio.ensure_future(load.publish("first", cluster.front_ends[0])),
        asyncio.ensure_future(load.publish("second", cluster.front_ends[1])),
        asyncio.ensure_future(load.produce()),
    ]

    await asyncio.to_thread(cluster.add_broker, "d")
    await asyncio.to_thread(
        eventually,
        lambda: cluster.whole()["d"] > DEVICES / 4 * 0.6 and sum(cluster.whole().values()) == DEVICES,
        "the new broker has its part",
        within_s=MOVED_WITHIN_S,
        step_s=0.5,
    )
    assert sum(cluster.marks().values()) == 3 * DEVICES

    await cluster.close_to_messages("a")
    await asyncio.to_thread(
        eventually,
        lambda: cluster.whole()["a"] == 0 and sum(cluster.whole().values()) == DEVICES,
        "the broker that is to go has no filter whole",
        within_s=MOVED_WITHIN_S,
        step_s=0.5,
    )
    assert cluster.marks()["a"] == DEVICES
    await asyncio.to_thread(cluster.brokers["a"].terminate)
    before = len(load.sent)
    await asyncio.to_thread(eventually, lambda: len(load.sent) > before + 500, "it goes on")

    load.end()
    async with asyncio.timeout(60):
        await asyncio.gather(*sources)
    with contextlib.suppress(AssertionError):
        await soon(lambda: load.sent <= load.received.keys(), "all were received", step_s=0.5)
    assert load.sent - load.received.keys() == load.received.keys() - load.sent == set()
    assert all(not task.done() for task in receiving)
    for task in receiving:
        task.cancel()
    await asyncio.gather(*receiving, return_exceptions=True)
    assert [front_end.metric("iotmq_mqtt_misdirected_total") for front_end in cluster.front_ends] == [
        0,
        0,
    ]
