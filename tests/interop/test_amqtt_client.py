"""amqtt's asyncio client against the gateway, through its own session and QoS handling."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest
from amqtt.client import MQTTClient
from gateway_process import GatewayProcess
from log_reader import read_topic

pytestmark = pytest.mark.interop


@contextlib.asynccontextmanager
async def client(gateway: GatewayProcess, name: str, **config: object) -> AsyncIterator[MQTTClient]:
    logging.getLogger("amqtt").setLevel(logging.ERROR)
    each = MQTTClient(client_id=name, config={"auto_reconnect": False, "keep_alive": 60, **config})
    async with asyncio.timeout(60):
        await each.connect(f"mqtt://127.0.0.1:{gateway.mqtt_port}/", cleansession=True)
        try:
            yield each
        finally:
            await each.disconnect()


async def receive(each: MQTTClient, count: int) -> list[tuple[str, bytes]]:
    messages = []
    for _ in range(count):
        message = await each.deliver_message(timeout_duration=15)
        assert message is not None
        messages.append((message.topic, bytes(message.data)))
    return messages


async def stored(gateway: GatewayProcess, mqtt_topic: str) -> list[bytes]:
    queues = await asyncio.to_thread(read_topic, gateway.registry, "mqtt")
    return [
        message.body
        for messages in queues.values()
        for message in messages
        if message.properties["MQTT_TOPIC"] == mqtt_topic
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_and_receive(gateway: GatewayProcess, qos: int) -> None:
    payloads = [b"%d" % number for number in range(50)]
    async with (
        client(gateway, f"amqtt-sub-{qos}") as subscriber,
        client(gateway, f"amqtt-pub-{qos}") as publisher,
    ):
        assert list(await subscriber.subscribe([(f"amqtt/{qos}/+", qos)])) == [qos]
        for payload in payloads:
            await publisher.publish(f"amqtt/{qos}/t", payload, qos=qos)
        got = await receive(subscriber, len(payloads))
        assert got == [(f"amqtt/{qos}/t", payload) for payload in payloads]
        assert await stored(gateway, f"amqtt/{qos}/t") == payloads


async def test_several_filters_and_unsubscribe(gateway: GatewayProcess) -> None:
    async with client(gateway, "amqtt-filters") as each:
        assert list(await each.subscribe([("f/a", 0), ("f/b/#", 1), ("f/c", 1)])) == [0, 1, 1]
        await each.unsubscribe(["f/c"])
        for topic in ("f/a", "f/c", "f/b/deep/er"):
            await each.publish(topic, topic.encode(), qos=1)
        assert await receive(each, 2) == [("f/a", b"f/a"), ("f/b/deep/er", b"f/b/deep/er")]


async def test_pings_keep_the_connection(gateway: GatewayProcess) -> None:
    async with client(gateway, "amqtt-ping") as each:
        await each.ping()
        await each.publish("amqtt/ping", b"still here", qos=1)
    assert await stored(gateway, "amqtt/ping") == [b"still here"]


async def test_a_will_follows_a_lost_connection(gateway: GatewayProcess) -> None:
    will = {"topic": "amqtt/will", "message": "lost", "qos": 1, "retain": False}
    async with client(gateway, "amqtt-watcher") as watcher:
        await watcher.subscribe([("amqtt/will", 1)])
        with contextlib.suppress(Exception):
            async with client(gateway, "amqtt-doomed", will=will) as doomed:
                await doomed._handler.writer.close()
        assert await receive(watcher, 1) == [("amqtt/will", b"lost")]
