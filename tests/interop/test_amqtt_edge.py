"""amqtt's own broker at the edge, with the plug-in that forwards to a centre."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from amqtt.broker import Broker
from bridged_gateways import bodies, gateway, messages
from eventually import soon
from gateway_process import GatewayProcess, free_port

from iotmq.amqtt_edge.disk_queue import DiskQueue
from iotmq.amqtt_edge.plugin import ForwardPlugin
from iotmq.mqtt_client import Address, MqttClient, MqttClientSettings

pytestmark = pytest.mark.interop


@asynccontextmanager
async def edge(centre_port: int, file: Path, port: int, **options: Any) -> AsyncIterator[ForwardPlugin]:
    """amqtt's broker; ends as it does when its program ends."""
    logging.getLogger("amqtt").setLevel(logging.ERROR)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
                "iotmq.amqtt_edge.plugin.ForwardPlugin": {
                    "address": f"mqtt://127.0.0.1:{centre_port}",
                    "queue_file": str(file),
                    **options,
                },
            },
        }
    )
    await broker.start()
    plugin = broker.plugins_manager.get_plugin("ForwardPlugin")
    assert isinstance(plugin, ForwardPlugin)
    try:
        yield plugin
    finally:
        await broker.shutdown()


async def publish(port: int, *publications: tuple[str, str], **options: Any) -> None:
    settings = MqttClientSettings(
        address=Address(host="127.0.0.1", port=port), client_id="device", protocol_level=4
    )
    async with MqttClient(settings) as client:
        for topic, payload in publications:
            await client.publish(topic, payload.encode(), **({"qos": 1} | options))


async def test_messages_come_to_the_centre_in_order_with_their_device(tmp_path: Path) -> None:
    port = free_port()
    with gateway(tmp_path, "centre") as centre:
        async with edge(centre.mqtt_port, tmp_path / "queue.db", port, prefix="site/") as plugin:
            await publish(port, *(("a", str(number)) for number in range(100)))
            await publish(port, ("kept", "r"), retain=True)
            await soon(lambda: plugin.forwarded == 101, "all are forwarded")
            await soon(lambda: plugin.queue.count == 0, "and leave the queue")
        found = messages(centre)
    topics = {message.properties["MQTT_TOPIC"] for message in found}
    assert topics == {"site/a", "site/kept"}
    own = [message.body.decode() for message in found if message.properties["MQTT_TOPIC"] == "site/a"]
    assert own == [str(number) for number in range(100)]
    assert {message.properties["MQTT_USER.iotmq-client-id"] for message in found} == {"device"}
    assert len({message.properties["MQTT_USER.iotmq-message"] for message in found}) == 101
    (retained,) = [message for message in found if message.properties["MQTT_TOPIC"] == "site/kept"]
    assert retained.properties["MQTT_RETAIN"] == "1"


async def test_what_waits_outlives_amqtt_and_an_outage_of_the_centre(tmp_path: Path) -> None:
    port = free_port()
    centre: GatewayProcess = gateway(tmp_path, "centre")
    file = tmp_path / "queue.db"
    async with edge(centre.mqtt_port, file, port) as plugin:
        await publish(port, *(("a", str(number)) for number in range(20)))
        await soon(lambda: plugin.queue.count == 20, "all are in the file")
    with centre:
        async with edge(centre.mqtt_port, file, port) as plugin:
            await soon(lambda: plugin.forwarded == 20, "they are forwarded")
            await asyncio.to_thread(centre.kill)
            await publish(port, ("a", "meanwhile"))
            await soon(lambda: plugin.queue.count == 1, "it waits")
            await asyncio.to_thread(centre.start)
            await soon(lambda: plugin.forwarded == 21, "it is forwarded, too")
        expected = {*map(str, range(20)), "meanwhile"}
        assert set(bodies(centre)) == expected


async def test_a_full_queue_drops_the_oldest(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "queue.db"
    async with edge(free_port(), file, port, queue_bytes_max=1_000) as plugin:
        await publish(port, *(("a", str(number).ljust(100)) for number in range(20)))
        await soon(lambda: plugin.queue.dropped + plugin.queue.count == 20, "all have come")
        assert plugin.queue.bytes <= 1_000
    left = DiskQueue(file, bytes_max=1_000, drops="oldest")
    assert left.first(100)[-1].payload.strip() == b"19"
    left.close()


async def test_only_topics_of_the_filters_are_forwarded(tmp_path: Path) -> None:
    port = free_port()
    async with edge(free_port(), tmp_path / "queue.db", port, filters=["a/+"]) as plugin:
        await publish(port, ("b", "no"), ("a/b", "yes"), ("a/b/c", "no"))
        await soon(lambda: plugin.queue.count == 1, "one waits")
