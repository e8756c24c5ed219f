"""Topics that the ingress has other names for: decided once per topic, or per device and topic."""

from __future__ import annotations

from typing import Any

import pytest
from fake_gateway import FakeLoop, FakeTransport, Front, ScriptedGateway, receive, split_output

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_5, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.routes import RouteSettings
from iotmq.mqtt_front.settings.topics import RewriteSettings


class CountingRewrites(TopicRewrites):
    """Counts how often it is asked."""

    asked = 0

    def published(self, topic: str, names: DeviceNames | None) -> str:
        self.asked += 1
        return super().published(topic, names)


class Bench:
    def __init__(self, *rules: tuple[str, str, str]) -> None:
        self.gateway = ScriptedGateway(queues=1, record_bytes_max=100_000)
        self.loop = FakeLoop()
        self.rewrites = CountingRewrites(
            RewriteSettings(filter=topic_filter, pattern=pattern, template=template)
            for topic_filter, pattern, template in rules
        )
        self.ingress = Ingress(
            Router([RouteSettings(filter="new/#", topic="New")], default_topic="mqtt"),
            self.gateway,
            self.loop,  # type: ignore[arg-type]
            MqttSettings(batch_bytes_max=64 * 1024, pending_bytes_max=1 << 20, retry_interval_s=1),
            rewrites=self.rewrites,
        )
        self.front = Front(self.ingress, loop=self.loop, packet_bytes_max=1 << 20)
        self.ingress.group = self.front.group

    def connect(
        self, client_id: str = "d", user_name: str | None = None, **how: Any
    ) -> tuple[Device, FakeTransport]:
        device, transport = self.front.connect(client_id, **how)
        device.names = DeviceNames(client_id, user_name).key()
        return device, transport

    def topics(self) -> list[tuple[str, str]]:
        """(broker topic, MQTT topic) of what was handed over."""
        self.loop.run()
        found = [
            (batch.topic, message.properties["MQTT_TOPIC"])
            for batch in self.gateway.handed
            for message in batch.messages
        ]
        for batch in self.gateway.handed:
            batch.answer(0, "")
        self.gateway.handed.clear()
        self.loop.run()
        return found


def publish(topic: str, *, qos: int = 0, packet_id: int = 1, level: int = 4) -> bytes:
    properties = NO_PROPERTIES if level == PROTOCOL_LEVEL_5 else None
    return packets.encode_publish(topic, b"x", qos=qos, packet_id=packet_id, properties=properties)


def test_a_message_is_stored_under_the_new_name_whose_route_it_takes() -> None:
    bench = Bench(("old/#", "^old/(.+)$", "new/$1"))
    device, _ = bench.connect()
    receive(device, publish("old/a") + publish("old/b") + publish("other"))
    assert sorted(bench.topics()) == [("New", "new/a"), ("New", "new/b"), ("mqtt", "other")]


def test_a_name_is_decided_once_per_topic() -> None:
    bench = Bench(("old/#", "^old/(.+)$", "new/$1"))
    devices = [bench.connect(f"d{number}")[0] for number in range(3)]
    for _ in range(10):
        for device in devices:
            receive(device, publish("old/a") + publish("other"))
    assert len(bench.topics()) == 60
    assert bench.rewrites.asked == 2


def test_a_name_that_depends_on_the_device_is_decided_once_per_device_and_topic() -> None:
    bench = Bench(("old/#", "^old/(.+)$", "new/%c/%u/$1"))
    one, two = bench.connect("one", "ann")[0], bench.connect("two", "bob")[0]
    for _ in range(10):
        receive(one, publish("old/a"))
        receive(two, publish("old/a") + publish("old/b"))
    found = bench.topics()
    assert len(found) == 30
    assert set(found) == {("New", "new/one/ann/a"), ("New", "new/two/bob/a"), ("New", "new/two/bob/b")}
    assert bench.rewrites.asked == 3
    again, _ = bench.connect("one", "eve")
    receive(again, publish("old/a"))
    assert bench.topics() == [("New", "new/one/eve/a")], "the same client id with another user name"


def test_names_are_decided_anew_when_routes_change() -> None:
    bench = Bench(("old/#", "^old/(.+)$", "new/%c/$1"))
    device, _ = bench.connect()
    receive(device, publish("old/a"))
    bench.ingress.forget_routes()
    receive(device, publish("old/a"))
    assert bench.topics() == [("New", "new/d/a")] * 2
    assert bench.rewrites.asked == 2


def test_a_new_name_may_delay_the_message_once() -> None:
    bench = Bench(("later/#", "^later/(.+)$", "$delayed/5/$1"), ("old/a", "^.*$", "new"))
    device, _ = bench.connect()
    receive(device, publish("later/x") + publish("$delayed/7/old/a"))
    bench.loop.run()
    delays = {
        message.properties["MQTT_TOPIC"]: message.properties["TIMER_DELAY_SEC"]
        for batch in bench.gateway.handed
        for message in batch.messages
        if batch.is_delayed
    }
    assert delays == {"x": "5", "new": "7"}


@pytest.mark.parametrize("template", ["$1", "$SYS/$1x", "$reply/$1x", "$delayed/x/y", "$delayed/5/$SYS/x"])
def test_a_message_whose_new_name_is_none_is_refused_and_the_connection_stays(template: str) -> None:
    bench = Bench(("old/#", "^old/(.*)$", template))
    device, transport = bench.connect(properties=NO_PROPERTIES)
    transport.take()
    receive(device, publish("old/", level=5) + publish("old/", qos=1, packet_id=7, level=5))
    receive(device, publish("old/", qos=2, packet_id=8, level=5) + publish("ok", level=5))
    assert bench.topics() == [("mqtt", "ok")]
    assert [(first >> 4, body) for first, body in split_output(transport.take())] == [
        (packets.PUBACK, b"\0\7\x90"),
        (packets.PUBREC, b"\0\x08\x90"),
    ]
    assert bench.ingress.rewrites_refused == 3
    assert device.close_reason is None


def test_a_connection_of_3_1_1_ends_with_such_a_message_that_waits_for_an_answer() -> None:
    bench = Bench(("old/#", "^old/(.*)$", "$1"))
    device, _ = bench.connect()
    receive(device, publish("old/"))
    assert device.close_reason is None, "nobody waits for QoS 0"
    receive(device, publish("old/", qos=1))
    assert device.close_reason is reason_codes.TOPIC_NAME_INVALID
    assert bench.ingress.rewrites_refused == 2


def test_wills_are_rewritten_as_well() -> None:
    bench = Bench(("old/#", "^old/(.*)$", "new/%c/$1"))
    device, _ = bench.connect("one")
    bench.ingress.publish_will(device, Will("old/state", b"gone", 0, False))
    assert bench.topics() == [("New", "new/one/state")]
    kept = bench.ingress.encode_will(device, Will("old/state", b"gone", 0, False))
    assert kept is not None
    assert kept.topic == "New"
    refused, _ = bench.connect("#")
    bench.ingress.publish_will(refused, Will("old/state", b"gone", 0, False))
    assert bench.topics() == []
    assert (bench.ingress.rewrites_refused, bench.ingress.not_stored) == (1, 1)
