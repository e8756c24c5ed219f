"""Between backend services and devices with paho: commands, questions and answers, messages for later."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import read_topic
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from iotmq.client import ClientSettings, IotmqClient, Message, Producer, Requester
from iotmq.errors import RequestTimeoutError

pytestmark = pytest.mark.interop


class Device:
    """A device that answers what it is asked, on its own thread."""

    def __init__(self, gateway: GatewayProcess, *, clean_session: bool = True, client_id: str = "") -> None:
        self.name = client_id or f"paho-{uuid.uuid4().hex[:12]}"
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=self.name,
            protocol=paho.MQTTv311,
            clean_session=clean_session,
        )
        self.messages: list[tuple[str, bytes, int, float]] = []
        self.subscribed = threading.Event()
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self._port = gateway.mqtt_port

    def connect(self, *filters: tuple[str, int]) -> Device:
        self.client.connect("127.0.0.1", self._port, 60)
        self.client.loop_start()
        eventually(self.client.is_connected, "connected")
        if filters:
            self.client.subscribe(list(filters))
            assert self.subscribed.wait(10)
        return self

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_message(self, client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.append((message.topic, message.payload, message.qos, time.monotonic()))
        prefix, _, token = message.topic.rpartition("/")
        if prefix == f"dev/{self.name}/ask":
            # The documented convention: the token is the last level of the question's topic.
            client.publish(f"$reply/{token}", b"answer to " + message.payload, qos=message.qos)


@pytest.fixture
def device(gateway: GatewayProcess) -> Iterator[Device]:
    device = Device(gateway)
    yield device
    device.close()


def asked(
    gateway: GatewayProcess, topic: str, *bodies: bytes, qos: int = 1, timeout_ms: int = 10_000
) -> list[object]:
    """What the answers to some questions at once were, or what was raised."""

    async def ask() -> list[object]:
        async with (
            IotmqClient(ClientSettings(registries=(gateway.registry,))) as client,
            Requester(client) as requester,
        ):
            questions = (
                requester.request(
                    Message("mqtt", body, properties={"MQTT_TOPIC": topic, "MQTT_QOS": str(qos)}),
                    timeout_ms=timeout_ms,
                )
                for body in bodies
            )
            return await asyncio.gather(*questions, return_exceptions=True)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, ask()).result(30)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_device_answers_each_question_of_a_backend_service(
    gateway: GatewayProcess, device: Device, qos: int
) -> None:
    device.connect((f"dev/{device.name}/ask/+", 2))
    bodies = [b"%d" % number for number in range(20)]
    answers = asked(gateway, f"dev/{device.name}/ask/{{reply}}", *bodies, qos=qos)
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.body == b"answer to " + body, answer  # type: ignore[attr-defined]
        assert answer.properties["MQTT_CLIENT_ID"] == device.name  # type: ignore[attr-defined]
    tokens = {topic.rpartition("/")[2] for topic, *_ in device.messages}
    assert len(tokens) == len(bodies)


def test_a_device_on_mqtt_5_answers_by_response_topic_and_correlation_data(gateway: GatewayProcess) -> None:
    name = f"paho5-{uuid.uuid4().hex[:12]}"
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    subscribed = threading.Event()

    def answer(client: paho.Client, _data: object, question: paho.MQTTMessage) -> None:
        asked_with = question.properties
        assert asked_with is not None
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = asked_with.CorrelationData
        client.publish(
            asked_with.ResponseTopic,
            b"answer to " + question.payload,
            qos=question.qos,
            properties=properties,
        )

    client.on_message = answer
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", gateway.mqtt_port, 60)
    client.loop_start()
    eventually(client.is_connected, "connected")
    client.subscribe(f"dev/{name}/ask", 2)
    assert subscribed.wait(10)
    bodies = [b"%d" % number for number in range(10)]
    answers = asked(gateway, f"dev/{name}/ask", *bodies)
    for body, reply in zip(bodies, answers, strict=True):
        assert reply.body == b"answer to " + body, reply  # type: ignore[attr-defined]
        assert reply.properties["MQTT_CLIENT_ID"] == name  # type: ignore[attr-defined]
    client.disconnect()
    client.loop_stop()


def test_a_question_waits_for_a_device_that_is_away(gateway: GatewayProcess) -> None:
    device = Device(gateway, clean_session=False).connect()
    device.client.subscribe(f"dev/{device.name}/ask/+", 1)
    assert device.subscribed.wait(10)
    device.close()
    again = Device(gateway, clean_session=False, client_id=device.name)

    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(asked, gateway, f"dev/{device.name}/ask/{{reply}}", b"late")
        again.connect()
        (answer,) = answers.result(30)
    assert answer.body == b"answer to late", answer  # type: ignore[attr-defined]
    again.close()


def test_an_answer_that_comes_too_late_harms_nobody(gateway: GatewayProcess, device: Device) -> None:
    device.connect(("slow/+", 1), (f"dev/{device.name}/ask/+", 1))
    (outcome,) = asked(gateway, "slow/{reply}", b"?", timeout_ms=300)
    assert isinstance(outcome, RequestTimeoutError)
    (topic, *_) = eventually(lambda: device.messages[:1], "the question")[0]
    device.client.publish("$reply/" + topic.rpartition("/")[2], b"too late", qos=1).wait_for_publish(10)
    (answer,) = asked(gateway, f"dev/{device.name}/ask/{{reply}}", b"next")
    assert answer.body == b"answer to next", answer  # type: ignore[attr-defined]


def test_a_backend_service_sends_to_a_device_and_to_a_filter(gateway: GatewayProcess, device: Device) -> None:
    device.connect((f"cmd/{device.name}", 2), ("all/#", 1))

    async def send() -> None:
        async with (
            IotmqClient(ClientSettings(registries=(gateway.registry,))) as client,
            Producer(client, "cloud") as producer,
        ):
            for topic, qos in ((f"cmd/{device.name}", "2"), ("all/x", "1"), ("cmd/other", "1")):
                await producer.send(
                    Message("commands", topic.encode(), properties={"MQTT_TOPIC": topic, "MQTT_QOS": qos})
                )

    asyncio.run(send())
    eventually(lambda: len(device.messages) == 2, "both")
    got = [(topic, payload, qos) for topic, payload, qos, _ in device.messages]
    assert sorted(got) == sorted(
        [(f"cmd/{device.name}", f"cmd/{device.name}".encode(), 2), ("all/x", b"all/x", 1)]
    )


def test_a_delayed_message_comes_when_its_seconds_are_over(gateway: GatewayProcess, device: Device) -> None:
    device.connect(("later/#", 2))
    sender = Device(gateway).connect()
    begun_s = time.monotonic()
    sender.client.publish("$delayed/1/later/a", b"1 s", qos=2).wait_for_publish(10)
    sender.client.publish("later/a", b"now", qos=1).wait_for_publish(10)
    eventually(lambda: len(device.messages) == 2, "both")
    assert [(topic, payload, qos) for topic, payload, qos, _ in device.messages] == [
        ("later/a", b"now", 1),
        ("later/a", b"1 s", 2),
    ]
    assert device.messages[1][3] - begun_s >= 1.0
    stored = [message for queue in read_topic(gateway.registry, "mqtt").values() for message in queue]
    (record,) = [message for message in stored if message.body == b"1 s"]
    assert record.properties["MQTT_TOPIC"] == "later/a"
    assert record.properties["MQTT_CLIENT_ID"] == sender.name
    sender.close()


def test_a_delay_that_is_none_ends_the_connection(gateway: GatewayProcess, device: Device) -> None:
    device.connect()
    ended = threading.Event()
    device.client.on_disconnect = lambda *_: ended.set()
    device.client.publish("$delayed/soon/a", b"x", qos=1)
    assert ended.wait(10)
