"""paho-mqtt as MQTT 3.1.1 client: everything it can ask of the gateway, and what the log has of it."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import read_bodies, read_topic
from mqtt_roles import TwoFrontEnds, mqtt_roles

pytestmark = pytest.mark.interop

PACKET_BYTES_MAX = 1024 * 1024  # mqtt.packet_bytes_max, by default


@pytest.fixture(scope="module", params=["one process", "two front ends"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess | TwoFrontEnds]:
    """The whole gateway in one process; or a broker and two front ends, and clients at both in turn."""
    directory = tmp_path_factory.mktemp("gateway")
    if request.param == "one process":
        with GatewayProcess(directory / "data") as running:
            yield running
    else:
        with mqtt_roles(directory, broker_settings=()) as roles:
            yield TwoFrontEnds(roles)


class Device:
    """A paho client with its network thread, and all it has seen."""

    def __init__(self, gateway: GatewayProcess, client_id: str = "", **options: object) -> None:
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id or f"paho-{uuid.uuid4().hex[:12]}",
            protocol=paho.MQTTv311,
            **options,  # type: ignore[arg-type]
        )
        self.client.max_inflight_messages_set(1_000)
        self.client.max_queued_messages_set(0)
        self.client.reconnect_delay_set(min_delay=1, max_delay=1)
        self.messages: list[tuple[str, bytes]] = []
        self.qos: list[int] = []
        self.retained: list[bool] = []
        self.codes: list[int] = []
        """What CONNACKs said."""
        self.disconnects = 0
        self.granted: dict[int, list[int]] = {}
        self.unsubscribed: set[int] = set()
        self.published: list[int] = []
        """Packet ids whose exchange is over."""
        self._port = gateway.mqtt_port
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = self._on_unsubscribe

    def connect(self, keep_alive_s: int = 60) -> None:
        self.client.connect("127.0.0.1", self._port, keep_alive_s)
        self.client.loop_start()
        eventually(self.client.is_connected, "connected")

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def drop(self) -> None:
        """End the connection without DISCONNECT."""
        connection = self.client.socket()
        assert connection is not None
        connection.shutdown(socket.SHUT_RDWR)

    def subscribe(self, topic_filter: str, qos: int = 1) -> list[int]:
        """The codes of the SUBACK."""
        _, packet_id = self.client.subscribe(topic_filter, qos)
        assert packet_id is not None
        return eventually(lambda: self.granted.get(packet_id), "SUBACK")  # type: ignore[return-value]

    def unsubscribe(self, topic_filter: str) -> None:
        _, packet_id = self.client.unsubscribe(topic_filter)
        eventually(lambda: packet_id in self.unsubscribed, "UNSUBACK")

    def publish(self, topic: str, *payloads: bytes, qos: int = 1) -> None:
        """Returns when the last one is acknowledged; with QoS 0 when it is written."""
        sent = [self.client.publish(topic, payload, qos) for payload in payloads]
        for each in sent:
            each.wait_for_publish(30)
            assert each.is_published()

    def wait_for(self, count: int, *, within_s: float = 15) -> list[tuple[str, bytes]]:
        eventually(lambda: len(self.messages) >= count, f"{count} messages", within_s=within_s)
        return self.messages

    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.messages]

    def _on_publish(self, _client: object, _data: object, packet_id: int, *_: object) -> None:
        self.published.append(packet_id)

    def _on_connect(self, _client: object, _data: object, _flags: object, code: object, *_: object) -> None:
        self.codes.append(int(code.value))  # type: ignore[attr-defined]

    def _on_disconnect(self, *_: object) -> None:
        self.disconnects += 1

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.append((message.topic, message.payload))
        self.qos.append(message.qos)
        self.retained.append(message.retain)

    def _on_subscribe(self, _c: object, _d: object, packet_id: int, codes: list[object], _p: object) -> None:
        self.granted[packet_id] = [int(code.value) for code in codes]  # type: ignore[attr-defined]

    def _on_unsubscribe(self, _c: object, _d: object, packet_id: int, _codes: object, _p: object) -> None:
        self.unsubscribed.add(packet_id)


@contextlib.contextmanager
def device(gateway: GatewayProcess, client_id: str = "", **options: object) -> Iterator[Device]:
    each = Device(gateway, client_id, **options)
    each.connect()
    try:
        yield each
    finally:
        each.close()


def stored(gateway: GatewayProcess, mqtt_topic: str) -> list[bytes]:
    """The payloads the log has of an MQTT topic, in order; one topic is in one queue."""
    queues = [
        [message for message in messages if message.properties.get("MQTT_TOPIC") == mqtt_topic]
        for messages in read_topic(gateway.registry, "mqtt").values()
    ]
    found = [messages for messages in queues if messages]
    assert len(found) <= 1
    return [message.body for message in found[0]] if found else []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_qos_is_stored_once_and_in_order(gateway: GatewayProcess, qos: int) -> None:
    payloads = [b"%d" % number for number in range(500)]
    with device(gateway, f"publisher-{qos}") as publisher:
        publisher.publish(f"qos/{qos}", *payloads, qos=qos)
        # A PUBACK of something later: QoS 0 before it is stored, too.
        publisher.publish(f"qos/{qos}", b"end")
    assert stored(gateway, f"qos/{qos}") == [*payloads, b"end"]


def test_records_carry_topic_client_and_qos(gateway: GatewayProcess) -> None:
    with device(gateway, "who-i-am") as publisher:
        publisher.publish("line/3/температура", b"21.5", qos=1)
    (message,) = [
        message
        for messages in read_topic(gateway.registry, "mqtt").values()
        for message in messages
        if message.properties["MQTT_CLIENT_ID"] == "who-i-am"
    ]
    assert message.body == b"21.5"
    assert message.properties["MQTT_TOPIC"] == "line/3/температура"
    assert message.properties["MQTT_QOS"] == "1"


@pytest.mark.parametrize("qos", [0, 1])
def test_live_delivery_is_in_order(gateway: GatewayProcess, qos: int) -> None:
    payloads = [b"%d" % number for number in range(1_000)]
    with device(gateway) as subscriber, device(gateway) as publisher:
        assert subscriber.subscribe(f"live/{qos}", qos) == [qos]
        publisher.publish(f"live/{qos}", *payloads)
        subscriber.wait_for(len(payloads))
        assert subscriber.payloads() == payloads
        assert set(subscriber.qos) == {qos}
        assert not any(subscriber.retained)


def test_a_subscriber_gets_at_most_the_publishers_qos(gateway: GatewayProcess) -> None:
    with device(gateway) as subscriber, device(gateway) as publisher:
        assert subscriber.subscribe("downgrade", 2) == [2]
        publisher.publish("downgrade", b"zero", qos=0)
        publisher.publish("downgrade", b"one", qos=1)
        publisher.publish("downgrade", b"two", qos=2)
        subscriber.wait_for(3)
        assert list(zip(subscriber.payloads(), subscriber.qos, strict=True)) == [
            (b"zero", 0),
            (b"one", 1),
            (b"two", 2),
        ]


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("w1/+/temp", ["w1/a/temp", "w1//temp"], ["w1/a/b/temp", "w1/temp", "w1/a/temp/x"]),
        ("w2/#", ["w2", "w2/", "w2/a", "w2/a/b/c"], ["w22/a", "W2/a"]),
        ("+/w3", ["a/w3", "/w3"], ["a/b/w3", "w3"]),
        ("w4/+", ["w4/a", "w4/"], ["w4", "w4/a/b"]),
        ("/w5", ["/w5"], ["w5"]),
    ],
)
def test_wildcards(
    gateway: GatewayProcess, topic_filter: str, matching: list[str], others: list[str]
) -> None:
    with device(gateway) as subscriber, device(gateway) as publisher:
        assert subscriber.subscribe(topic_filter) == [1]
        for topic in [*others, *matching]:
            publisher.publish(topic, topic.encode())
        subscriber.wait_for(len(matching))
        # What came after all of them came, so nothing more is on the way.
        subscriber.subscribe("marker/" + topic_filter.replace("+", "p").replace("#", "h"))
        publisher.publish("marker/" + topic_filter.replace("+", "p").replace("#", "h"), b"end")
        subscriber.wait_for(len(matching) + 1)
        assert [topic for topic, _ in subscriber.messages[:-1]] == matching


def test_a_message_comes_once_for_overlapping_subscriptions_or_once_each(gateway: GatewayProcess) -> None:
    """Section 3.3.5 leaves it open; either way no message is missed."""
    with device(gateway) as subscriber, device(gateway) as publisher:
        subscriber.subscribe("overlap/#")
        subscriber.subscribe("overlap/+")
        publisher.publish("overlap/a", b"1", b"2")
        subscriber.subscribe("overlap-end")
        publisher.publish("overlap-end", b"end")
        eventually(lambda: b"end" in subscriber.payloads(), "the last message")
        assert set(Counter(subscriber.payloads())) == {b"1", b"2", b"end"}
        assert max(Counter(subscriber.payloads()).values()) <= 2


def test_unsubscribed_means_nothing_more(gateway: GatewayProcess) -> None:
    with device(gateway) as subscriber, device(gateway) as publisher:
        subscriber.subscribe("on/off")
        subscriber.subscribe("on/always")
        publisher.publish("on/off", b"1")
        subscriber.wait_for(1)
        subscriber.unsubscribe("on/off")
        publisher.publish("on/off", b"2")
        publisher.publish("on/always", b"3")
        subscriber.wait_for(2)
        subscriber.subscribe("on/off")
        publisher.publish("on/off", b"4")
        subscriber.wait_for(3)
        assert subscriber.payloads() == [b"1", b"3", b"4"]


def test_unsubscribing_from_nothing_is_answered(gateway: GatewayProcess) -> None:
    """[MQTT-3.10.4-5], also when the session never had a subscription."""
    with device(gateway) as each:
        each.unsubscribe("never/subscribed")
        each.publish("still/served", b"x")
        assert each.disconnects == 0


def test_bad_filters_end_the_connection(gateway: GatewayProcess) -> None:
    """paho checks filters itself, so the packet is built here."""
    with device(gateway) as subscriber:
        connection = subscriber.client.socket()
        assert connection is not None
        connection.send(b"\x82\x09\x00\x01\x00\x04a/#b\x01")
        eventually(lambda: subscriber.disconnects, "hung up on")


def test_the_server_says_what_it_is_below_sys_and_nobody_else_does(gateway: GatewayProcess) -> None:
    with device(gateway) as listener, device(gateway) as publisher:
        listener.subscribe("$SYS/broker/+")
        listener.subscribe("$SYS/broker/clients/connected")
        messages = dict(listener.wait_for(3)[:3])
        assert messages["$SYS/broker/version"].startswith(b"iotmq version ")
        assert messages["$SYS/broker/uptime"].endswith(b" seconds")
        assert all(listener.retained[:3])
        publisher.client.publish("$SYS/broker/version", b"mine", 1)
        eventually(lambda: publisher.disconnects, "hung up on")
        assert b"mine" not in listener.payloads()
    assert stored(gateway, "$SYS/broker/version") == []


def test_a_will_is_published_when_the_device_is_lost_and_only_then(gateway: GatewayProcess) -> None:
    with device(gateway) as watcher:
        watcher.subscribe("wills/+")
        polite = Device(gateway)
        polite.client.will_set("wills/polite", b"gone", 1)
        polite.connect()
        polite.close()
        lost = Device(gateway)
        lost.client.will_set("wills/lost", b"gone", 1)
        lost.connect()
        lost.client.loop_stop()
        lost.drop()
        watcher.wait_for(1)
        assert watcher.messages == [("wills/lost", b"gone")]
    eventually(lambda: stored(gateway, "wills/lost") == [b"gone"], "the will is in the log")
    assert stored(gateway, "wills/polite") == []


def test_a_second_connection_of_a_client_id_takes_over(gateway: GatewayProcess) -> None:
    with device(gateway, "the-same") as first:
        first.client.loop_stop()
        with device(gateway, "the-same") as second:
            first_socket = first.client.socket()
            assert first_socket is not None
            first_socket.setblocking(True)
            first_socket.settimeout(10)
            assert first_socket.recv(1) == b""
            second.subscribe("take/over")
            second.publish("take/over", b"mine")
            second.wait_for(1)


def test_a_dropped_device_comes_back_and_sends_again(gateway: GatewayProcess) -> None:
    """paho sends again what was not acknowledged; nothing is missing and the order holds."""
    payloads = [b"%04d" % number for number in range(400)]
    with device(gateway, "comes-back", clean_session=True) as publisher:
        for number, payload in enumerate(payloads):
            if number in (100, 250):
                connections = 1 if number == 100 else 2
                eventually(lambda expected=connections: len(publisher.codes) == expected, "is back")
                publisher.drop()
            publisher.client.publish("comes/back", payload, 1)
        eventually(lambda: len(publisher.published) == len(payloads), "all are acknowledged in the end")
        assert publisher.codes == [0, 0, 0]
    assert list(dict.fromkeys(stored(gateway, "comes/back"))) == payloads


def test_large_payloads_up_to_the_limit_and_past_it(gateway: GatewayProcess) -> None:
    topic = "large/payload"
    largest = PACKET_BYTES_MAX - len(topic) - 4
    with device(gateway) as subscriber, device(gateway) as publisher:
        subscriber.subscribe("large/#")
        for size in (0, 1, 127, 128, 16_383, 16_384, 70_000, 300_000, largest):
            payload = bytes(size)
            publisher.publish(topic, payload)
            subscriber.wait_for(1)
            assert subscriber.messages.pop() == (topic, payload)
        publisher.client.publish(topic, bytes(largest + 1), 1)
        eventually(lambda: publisher.disconnects, "hung up on for a packet past the maximum")
        assert subscriber.disconnects == 0
    assert len(stored(gateway, topic)) == 9


def test_keep_alive_is_answered(gateway: GatewayProcess) -> None:
    """With 1 s paho pings; it is not taken for dead, and a ping is answered."""
    quiet = Device(gateway)
    quiet.connect(keep_alive_s=1)
    pings = threading.Event()
    quiet.client.on_log = lambda _c, _d, _level, text: "PINGRESP" in text and pings.set()
    assert pings.wait(5)
    assert quiet.disconnects == 0
    quiet.close()


def test_many_devices_at_once(gateway: GatewayProcess) -> None:
    """One thread per device is paho's price, so here they share a loop of sockets."""
    count, each_sends = 150, 10
    with device(gateway) as watcher:
        watcher.subscribe("many/#")
        devices = [Device(gateway, f"many-{number}") for number in range(count)]
        for each in devices:
            each.client.connect("127.0.0.1", gateway.mqtt_port)
        for each in devices:
            while not each.client.is_connected():
                assert each.client.loop(1) == paho.MQTT_ERR_SUCCESS
        for number, each in enumerate(devices):
            for place in range(each_sends):
                each.client.publish(f"many/{number}", b"%d-%d" % (number, place), 1)
        for each in devices:
            while each.client._out_messages:
                assert each.client.loop(1) == paho.MQTT_ERR_SUCCESS
        watcher.wait_for(count * each_sends)
        by_topic: dict[str, list[bytes]] = {}
        for topic, payload in watcher.messages:
            by_topic.setdefault(topic, []).append(payload)
        assert by_topic == {
            f"many/{n}": [b"%d-%d" % (n, place) for place in range(each_sends)] for n in range(count)
        }
        for each in devices:
            each.client.disconnect()
    bodies = set(read_bodies(gateway.registry, "mqtt"))
    assert {b"%d-%d" % (n, place) for n in range(count) for place in range(each_sends)} <= bodies


def test_a_restart_of_the_gateway_loses_nothing(gateway: GatewayProcess) -> None:
    """Last in this file. Devices come back by themselves, and so does what they had not got rid of."""
    with device(gateway, "survivor") as publisher:
        publisher.publish("survive", b"before")
        gateway.kill()
        eventually(lambda: publisher.disconnects, "the connection ends")
        publisher.client.publish("survive", b"meanwhile", 1)
        gateway.start()
        eventually(lambda: len(publisher.published) == 2, "what was sent meanwhile is acknowledged")
        publisher.publish("survive", b"after")
    assert list(dict.fromkeys(stored(gateway, "survive"))) == [b"before", b"meanwhile", b"after"]
