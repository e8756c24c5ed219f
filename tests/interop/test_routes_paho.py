"""Routes from end to end: paho publishes, consumers and Spark see keys, tags and properties; reload."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import StoredMessage, read_topic
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from iotmq.client import ClientSettings, IotmqClient, PushConsumer, PushConsumerSettings, ReceivedMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

FRAME = bytes.fromhex("0103020017f84a")
ROUTES = """
[[routes]]
name = "alarms"
filter = "plant/+/state"
topic = "alarms"
when = ["{json:temperature} > 30"]
key = "{json:id}"
tags = "{property:unit}"
properties = { site = "{json:where.0}", origin = "{client_id}" }

[[routes]]
filter = "meters/#"
topic = "frames"
checksum = { algorithm = "modbus" }
quarantine_answer = "refuse"
"""


@pytest.fixture(scope="module")
def routes_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("routes") / "routes.toml"
    path.write_text(ROUTES)
    return path


@pytest.fixture(scope="module")
def gateway(routes_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    data = tmp_path_factory.mktemp("gateway") / "data"
    with GatewayProcess(
        data, f"mqtt.routes_file={routes_file}", "mqtt.routes_reload_interval_s=0.05"
    ) as running:
        yield running


class Device:
    """A paho client, and how each of its messages was answered."""

    def __init__(self, gateway: GatewayProcess, client_id: str, version: int = paho.MQTTv5) -> None:
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version)
        self.answers: dict[int, str] = {}
        self.is_connected = False
        self.ends = 0
        self.received: list[paho.MQTTMessage] = []
        self.client.on_publish = self._on_publish
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = lambda _client, _data, message: self.received.append(message)
        self.client.connect("127.0.0.1", gateway.mqtt_port)
        self.client.loop_start()
        eventually(lambda: self.is_connected, "CONNACK")

    def subscribe(self, topic_filter: str) -> None:
        """Return when it is subscribed."""
        done: list[int] = []
        self.client.on_subscribe = lambda _client, _data, packet_id, *_: done.append(packet_id)
        packet_id = self.client.subscribe(topic_filter, qos=1)[1]
        eventually(lambda: packet_id in done, "SUBACK")

    def publish(self, topic: str, payload: bytes, **pairs: str) -> str:
        """The answer to a message of QoS 1."""
        properties: Any = None
        if pairs:
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = list(pairs.items())
        number = self.client.publish(topic, payload, qos=1, properties=properties).mid
        return eventually(lambda: self.answers.get(number), "PUBACK")  # type: ignore[return-value]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_publish(self, _client: object, _data: object, number: int, reason: Any, *_: object) -> None:
        self.answers[number] = str(reason)

    def _on_connect(self, *_: object) -> None:
        self.is_connected = True

    def _on_disconnect(self, *_: object) -> None:
        self.ends += 1


def test_native_consumers_see_key_tag_and_properties(gateway: GatewayProcess) -> None:
    device = Device(gateway, "pump")
    payload = b'{"temperature": 31, "id": "p-7", "where": ["north"]}'
    assert device.publish("plant/1/state", payload, unit="C") == "Success"
    assert device.publish("plant/1/state", b'{"temperature": 29}') == "Success"
    device.close()
    [message] = stored(gateway, "alarms")
    assert message.body == payload
    assert (message.properties["KEYS"], message.properties["TAGS"]) == ("p-7", "C")
    assert message.properties["site"] == "north"
    assert message.properties["origin"] == "pump"
    assert message.properties["MQTT_TOPIC"] == "plant/1/state"
    assert message.properties["MQTT_USER.unit"] == "C"
    assert [message.body for message in stored(gateway, "mqtt")] == [b'{"temperature": 29}']


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_consumer_group_and_spark_see_them_where_they_look(
    gateway: GatewayProcess, spark: SparkSession
) -> None:
    device = Device(gateway, "valve")
    assert (
        device.publish("plant/2/state", b'{"temperature": 40, "id": "v-2", "where": ["south"]}', unit="F")
        == "Success"
    )
    device.close()
    message = asyncio.run(consumed_with_tag(gateway, "alarms", "F"))
    assert (message.keys, message.tags, message.properties["site"]) == (["v-2"], "F", "south")
    frame = spark.read.format("iotmq").options(
        **{"iotmq.bootstrap.servers": gateway.registry, "subscribe": "alarms"}
    )
    columns = "key string, tags string, mqtt_topic string, client_id string, properties map<string, string>"
    rows = [row for row in frame.schema(columns).load().collect() if row.tags == "F"]
    assert [(row.key, row.mqtt_topic, row.client_id, row.properties["site"]) for row in rows] == [
        ("v-2", "plant/2/state", "valve", "south")
    ]


def test_damaged_frames_are_refused_and_put_aside(gateway: GatewayProcess) -> None:
    device, older = Device(gateway, "meter"), Device(gateway, "older", paho.MQTTv311)
    older.subscribe("meters/#")
    assert device.publish("meters/7", FRAME) == "Success"
    assert device.publish("meters/7", FRAME[:-1] + b"\0") == "Payload format invalid"
    assert older.publish("meters/8", b"\0\0\0") == "Success", "before MQTT 5 there is no word for it"
    eventually(lambda: older.received, "the frame that is right")
    assert [message.payload for message in older.received] == [FRAME], "no other comes to a subscriber"
    device.close()
    older.close()
    assert [message.body for message in stored(gateway, "frames")] == [FRAME]
    put_aside = stored(gateway, "mqtt-quarantine")
    assert {message.properties["MQTT_QUARANTINED_TOPIC"] for message in put_aside} == {"meters/7", "meters/8"}
    assert all("checksum modbus" in message.properties["MQTT_QUARANTINE_REASON"] for message in put_aside)


def test_routes_change_while_devices_stay_connected(gateway: GatewayProcess, routes_file: Path) -> None:
    device = Device(gateway, "stays")
    device.publish("plant/9/level", b"1")
    write(routes_file, ROUTES + '[[routes]]\nfilter = "plant/+/level"\ntopic = "levels"\nkey = "{1}"\n')
    eventually(lambda: gateway.metric("iotmq_mqtt_route_reloads_total") == 1, "the new routes are used")
    assert device.publish("plant/9/level", b"2") == "Success"
    write(routes_file, "[[routes]]\nfilter = 5\n")
    eventually(lambda: gateway.metric("iotmq_mqtt_route_failed_reloads_total") == 1, "the error was noticed")
    assert device.publish("plant/9/level", b"3") == "Success"
    assert device.ends == 0
    device.close()
    assert [message.body for message in stored(gateway, "levels")] == [b"2", b"3"]
    assert "the changed routes are not used" in gateway.log_text()


def stored(gateway: GatewayProcess, topic: str) -> list[StoredMessage]:
    return [message for queue in read_topic(gateway.registry, topic).values() for message in queue]


async def consumed_with_tag(gateway: GatewayProcess, topic: str, tag: str) -> ReceivedMessage:
    """The first message that a consumer group with this tag in its subscription gets."""
    found: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    def listen(batch: Sequence[ReceivedMessage]) -> None:
        for message in batch:
            found.put_nowait(message)

    settings = PushConsumerSettings(consume_from="first", rebalance_ms=500)
    async with IotmqClient(ClientSettings(registries=(gateway.registry,))) as client:
        consumer = PushConsumer(client, "g-routes", listen, settings=settings)
        await consumer.subscribe(topic, tag)
        async with consumer, asyncio.timeout(30):
            return await found.get()


def write(path: Path, text: str) -> None:
    """Replace the file as editors do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)
