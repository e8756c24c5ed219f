"""paho-mqtt as MQTT 5 and MQTT 3.1 client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import read_topic
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

pytestmark = pytest.mark.interop


def properties(packet_type: int, **values: Any) -> Properties:
    found = Properties(packet_type)
    for name, value in values.items():
        setattr(found, name, value)
    return found


class Device5:
    """A paho client of MQTT 5 and everything it was told."""

    def __init__(self, gateway: GatewayProcess, client_id: str = "", **connect: Any) -> None:
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
        self.messages: list[paho.MQTTMessage] = []
        self.connacks: list[tuple[bool, int, Properties]] = []
        self.ends: list[int] = []
        self.granted: dict[int, list[int]] = {}
        self.unsubscribed: dict[int, list[int]] = {}
        self.client.on_message = lambda _client, _data, message: self.messages.append(message)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = self._on_unsubscribe
        is_clean = connect.pop("is_clean", True)
        will = connect.pop("will", None)
        if will is not None:
            self.client.will_set(*will)
        self.client.connect(
            "127.0.0.1",
            gateway.mqtt_port,
            clean_start=is_clean,
            properties=properties(PacketTypes.CONNECT, **connect),
        )
        self.client.loop_start()
        eventually(lambda: self.connacks, "CONNACK")

    def subscribe(self, topic_filter: str, identifier: int = 0, **options: Any) -> list[int]:
        wanted = properties(PacketTypes.SUBSCRIBE)
        if identifier:
            wanted.SubscriptionIdentifier = identifier
        _, packet_id = self.client.subscribe(
            topic_filter, options=SubscribeOptions(**({"qos": 1} | options)), properties=wanted
        )
        assert packet_id is not None
        return eventually(lambda: self.granted.get(packet_id), "SUBACK")  # type: ignore[return-value]

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, **values: Any) -> None:
        sent = self.client.publish(
            topic, payload, qos=qos, properties=properties(PacketTypes.PUBLISH, **values)
        )
        sent.wait_for_publish(20)
        assert sent.is_published()

    def wait_for(self, count: int) -> list[paho.MQTTMessage]:
        eventually(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(self, _client: object, _data: object, flags: Any, code: Any, told: Properties) -> None:
        self.connacks.append((flags.session_present, int(code.value), told))

    def _on_disconnect(self, _client: object, _data: object, _flags: Any, code: Any, _told: object) -> None:
        self.ends.append(int(code.value))

    def _on_subscribe(self, _c: object, _d: object, packet_id: int, codes: list[Any], _p: object) -> None:
        self.granted[packet_id] = [int(code.value) for code in codes]

    def _on_unsubscribe(self, _c: object, _d: object, packet_id: int, codes: list[Any], _p: object) -> None:
        self.unsubscribed[packet_id] = [int(code.value) for code in codes]


@pytest.fixture
def opened() -> Iterator[list[Device5]]:
    """Those in here are closed at the end."""
    devices: list[Device5] = []
    yield devices
    for device in devices:
        device.close()


def test_a_message_arrives_with_everything_it_had(gateway: GatewayProcess, opened: list[Device5]) -> None:
    subscriber, publisher = Device5(gateway), Device5(gateway, "publisher-5")
    opened += [subscriber, publisher]
    assert subscriber.connacks[0][2].AssignedClientIdentifier
    assert subscriber.subscribe("v5/#", 77, qos=2) == [2]
    for qos in (0, 1, 2):
        publisher.publish(
            f"v5/{qos}",
            b"x",
            qos=qos,
            PayloadFormatIndicator=1,
            MessageExpiryInterval=100,
            ContentType="text/plain",
            ResponseTopic="v5/answers",
            CorrelationData=b"\0\xff",
            UserProperty=[("a", "1"), ("a", "2"), ("北", "line\n")],
        )
    for message in subscriber.wait_for(3):
        told = message.properties
        assert message.topic == f"v5/{message.qos}"
        assert told.PayloadFormatIndicator == 1
        assert 98 <= told.MessageExpiryInterval <= 100
        assert told.ContentType == "text/plain"
        assert told.ResponseTopic == "v5/answers"
        assert told.CorrelationData == b"\0\xff"
        assert told.UserProperty == [("a", "1"), ("a", "2"), ("北", "line\n")]
        assert told.SubscriptionIdentifier == [77]
    (record,) = [
        record
        for records in read_topic(gateway.registry, "mqtt").values()
        for record in records
        if record.properties.get("MQTT_TOPIC") == "v5/1"
    ]
    assert record.properties["MQTT_CONTENT_TYPE"] == "text/plain"
    assert record.properties["MQTT_USER.北"] == "line\n"
    assert record.properties["MSG_TTL_MS"] == "100000"


def test_a_session_is_resumed_and_taken_over(gateway: GatewayProcess, opened: list[Device5]) -> None:
    name = f"kept-{uuid.uuid4().hex[:8]}"
    first = Device5(gateway, name, SessionExpiryInterval=600)
    first.subscribe(f"{name}/#", 5)
    first.close()
    publisher = Device5(gateway)
    publisher.publish(f"{name}/a", b"while away")
    again = Device5(gateway, name, is_clean=False, SessionExpiryInterval=600)
    opened += [publisher, again]
    assert again.connacks[0][0], "session present"
    assert again.wait_for(1)[0].payload == b"while away"
    other = Device5(gateway, name, is_clean=False, SessionExpiryInterval=600)
    opened.append(other)
    eventually(lambda: 0x8E in again.ends, "a DISCONNECT that says why")
    again.client.loop_stop()


def test_flow_control_both_ways(gateway: GatewayProcess, opened: list[Device5]) -> None:
    """A device that takes two at a time gets hundreds; one that publishes keeps to what it was told."""
    subscriber, publisher = Device5(gateway, ReceiveMaximum=2), Device5(gateway)
    opened += [subscriber, publisher]
    assert publisher.connacks[0][2].ReceiveMaximum == 1_024
    subscriber.subscribe("flow", qos=2)
    sent = [publisher.client.publish("flow", b"%d" % number, qos=1 + number % 2) for number in range(300)]
    for one in sent:
        one.wait_for_publish(20)
    assert sorted(int(message.payload) for message in subscriber.wait_for(300)) == list(range(300))


def test_a_topic_is_known_by_its_alias(gateway: GatewayProcess, opened: list[Device5]) -> None:
    subscriber, publisher = Device5(gateway), Device5(gateway)
    opened += [subscriber, publisher]
    subscriber.subscribe("alias/#")
    publisher.publish("alias/of/a/long/topic", b"0", TopicAlias=1)
    publisher.publish("", b"1", TopicAlias=1)
    assert [(m.topic, m.payload) for m in subscriber.wait_for(2)] == [
        ("alias/of/a/long/topic", b"0"),
        ("alias/of/a/long/topic", b"1"),
    ]


def test_a_device_does_not_hear_itself_when_it_does_not_want_to(
    gateway: GatewayProcess, opened: list[Device5]
) -> None:
    one, other = Device5(gateway, "hears-others"), Device5(gateway, "speaks")
    opened += [one, other]
    one.subscribe("talk", noLocal=True)
    one.publish("talk", b"own")
    other.publish("talk", b"other")
    assert one.wait_for(1)[0].payload == b"other"
    _, packet_id = one.client.unsubscribe(["talk", "nothing"])
    assert eventually(lambda: one.unsubscribed.get(packet_id or 0), "UNSUBACK") == [0, 0x11]


def test_an_authentication_method_is_refused_with_its_code(gateway: GatewayProcess) -> None:
    device = Device5(gateway, AuthenticationMethod="SCRAM-SHA-1")
    device.client.loop_stop()
    assert device.connacks[0][1] == 0x8C


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1(gateway: GatewayProcess, qos: int) -> None:
    """MQIsdp, as devices of long ago speak it."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=f"old-{qos}", protocol=paho.MQTTv31)
    messages: list[bytes] = []
    granted: list[Any] = []
    client.on_message = lambda _client, _data, message: messages.append(message.payload)
    client.on_subscribe = lambda _client, _data, _id, codes, _properties: granted.extend(codes)
    client.connect("127.0.0.1", gateway.mqtt_port)
    client.loop_start()
    eventually(client.is_connected, "connected")
    client.subscribe(f"old/{qos}", qos)
    eventually(lambda: granted, "SUBACK")
    for number in range(20):
        client.publish(f"old/{qos}", b"%d" % number, qos=qos).wait_for_publish(20)
    eventually(lambda: len(messages) == 20, "all of them")
    assert messages == [b"%d" % number for number in range(20)]
    client.disconnect()
    client.loop_stop()
