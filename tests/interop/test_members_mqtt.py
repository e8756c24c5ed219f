"""Devices (paho-mqtt) of a replicated broker whose master is killed, stops and hands over: none notices."""

from __future__ import annotations

import itertools
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import free_ports
from kill_masters import Change
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from replicated_cluster import ReplicatedCluster

from iotmq.client import ClientSettings, Message, SyncClient, SyncRequester

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)"),
]

WAYS = ("kill", "hand-over", "stop")
EVERY_WAY = pytest.mark.parametrize("how", WAYS)
# What a master that is silent has left is what one that was killed has left.
BOTH_WAYS = pytest.mark.parametrize("how", ["kill", "hand-over"])
QUOTA_EXCEEDED = 0x97
# What was acknowledged in the last moments of a broker may come twice; some seconds of a busy machine.
UNSAVED_S = 2.0
# A front end claims its devices at another master within so many seconds.
CLAIMED_S = 11
# An MQTT clock that ticks in whole seconds on the way may make a delay this much shorter.
EARLY_S = 0.05


def properties(packet_type: int, **values: Any) -> Properties:
    found = Properties(packet_type)
    for name, value in values.items():
        setattr(found, name, value)
    return found


class Device:
    """A paho client of MQTT 5, and everything it was told."""

    def __init__(
        self, cluster: ReplicatedCluster, client_id: str, *, front_end: int = 0, kept_s: int = 300,
        will: str = "", on_message: Callable[[paho.Client, paho.MQTTMessage], None] | None = None,
    ) -> None:  # fmt: skip
        self.messages: list[tuple[str, bytes]] = []
        self.times: list[float] = []
        self.is_duplicate: list[bool] = []
        self.disconnects = 0
        self.sessions_present: list[bool] = []
        self.granted: dict[int, int] = {}
        self._on_message = on_message
        self._port = cluster.mqtt_ports[front_end]
        self._kept_s = kept_s
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
        self.client.on_message = self._receive
        self.client.on_connect = lambda _c, _d, flags, _r, _p: self.sessions_present.append(
            flags.session_present
        )
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        if will:
            self.client.will_set(will, client_id.encode(), qos=1)
        self.connect()

    def connect(self) -> None:
        """Connect, or come back."""
        before = len(self.sessions_present)
        self.client.connect(
            "127.0.0.1", self._port, clean_start=False,
            properties=properties(PacketTypes.CONNECT, SessionExpiryInterval=self._kept_s, ReceiveMaximum=20),
        )  # fmt: skip
        self.client.loop_start()
        eventually(lambda: len(self.sessions_present) > before, "CONNACK")

    def subscribe(self, topic_filter: str, qos: int = 1) -> int:
        _, packet_id = self.client.subscribe(topic_filter, options=SubscribeOptions(qos=qos))
        assert packet_id is not None
        eventually(lambda: packet_id in self.granted, "SUBACK")
        return self.granted[packet_id]

    def unsubscribe(self, topic_filter: str) -> None:
        done = threading.Event()
        self.client.on_unsubscribe = lambda *_: done.set()
        self.client.unsubscribe(topic_filter)
        assert done.wait(30.0), "UNSUBACK"

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish, and wait for the acknowledgement."""
        sent = self.client.publish(topic, payload, qos=qos, retain=retain)
        sent.wait_for_publish(30.0)
        assert sent.is_published()

    def die(self) -> None:
        """End the connection without a DISCONNECT."""
        self.client.on_disconnect = None
        self.client.loop_stop()
        found = self.client.socket()
        assert found is not None
        found.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Disconnect; the session stays."""
        self.client.on_disconnect = None
        self.client.disconnect()
        self.client.loop_stop()

    def numbers(self, topic: str) -> list[int]:
        return [int(payload) for name, payload in self.messages.copy() if name == topic]

    def _receive(self, client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self.times.append(time.monotonic())
        self.is_duplicate.append(message.dup)
        self.messages.append((message.topic, message.payload))
        if self._on_message is not None:
            self._on_message(client, message)

    def _on_disconnect(self, *_: object) -> None:
        self.disconnects += 1

    def _on_subscribe(self, _c: object, _d: object, packet_id: int, codes: list[Any], _p: object) -> None:
        self.granted[packet_id] = int(codes[0].value)


class Publishing:
    """A thread in which a device publishes numbers, by turns to each of some topics."""

    def __init__(self, device: Device, *topics: tuple[str, int]) -> None:
        self._device = device
        self._topics = topics
        self._is_ending = threading.Event()
        self.sent: list[paho.MQTTMessageInfo] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def acknowledged(self) -> int:
        return sum(info.is_published() for info in self.sent.copy())

    def end(self) -> int:
        """End it when all is acknowledged; how many numbers each topic got."""
        self._is_ending.set()
        self._thread.join(30.0)
        eventually(lambda: self.acknowledged == len(self.sent), "all is acknowledged")
        return len(self.sent) // len(self._topics)

    def _run(self) -> None:
        for number in itertools.count():
            for topic, qos in self._topics:
                self.sent.append(self._device.client.publish(topic, b"%d" % number, qos=qos))
            if self._is_ending.wait(0.005):
                return


class Devices:
    """Makes devices of one test."""

    def __init__(self, cluster: ReplicatedCluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self.all: list[Device] = []

    def __call__(self, name: str, **more: Any) -> Device:
        device = Device(self._cluster, f"{self._prefix}-{name}", **more)
        self.all.append(device)
        return device


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("mqtt") / "cluster", port=free_ports()) as cluster:
        yield cluster


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """The first level of a test's topics."""
    return str(request.node.name).replace("[", "-").strip("]")


@pytest.fixture
def devices(cluster: ReplicatedCluster, root: str) -> Iterator[Devices]:
    cluster.wait_in_sync()
    made = Devices(cluster, root)
    yield made
    ends = {device.client._client_id.decode(): device.disconnects for device in made.all}
    for device in made.all:
        device.leave()
    assert not any(ends.values()), ends


def go_on(publishing: Publishing, count: int = 50) -> None:
    """Wait until so many more messages are acknowledged."""
    wanted = publishing.acknowledged + count
    eventually(lambda: publishing.acknowledged >= wanted, "acknowledgements go on")


@EVERY_WAY
def test_messages_in_flight_both_ways(
    cluster: ReplicatedCluster, devices: Devices, root: str, how: str
) -> None:
    subscriber = devices("subscriber", front_end=1)
    subscriber.subscribe(f"{root}/+", 2)
    publishing = Publishing(devices("publisher"), (f"{root}/once", 2), (f"{root}/least", 1))
    go_on(publishing)
    with Change(cluster, how):
        go_on(publishing)
    count = publishing.end()
    eventually(lambda: subscriber.numbers(f"{root}/once")[-1:] == [count - 1], "the last of QoS 2")
    eventually(lambda: set(range(count)) <= set(subscriber.numbers(f"{root}/least")), "all of QoS 1")
    once = subscriber.numbers(f"{root}/once")
    assert sorted(once) == list(range(count)), "QoS 2: once"
    assert once == list(range(count)), "QoS 2: in order"
    least = subscriber.numbers(f"{root}/least")
    assert list(dict.fromkeys(least)) == list(range(count)), "QoS 1: in order"
    print(f"{how}: {count} each, QoS 1 twice: {len(least) - count}")


@BOTH_WAYS
def test_retained_messages(cluster: ReplicatedCluster, devices: Devices, root: str, how: str) -> None:
    publisher = devices("publisher")
    for number in range(10):
        publisher.publish(f"{root}/{number}", b"old", retain=True)
    sent = []

    def change_some(numbers: range) -> None:
        for number in numbers:
            payload = b"" if number % 2 else b"new"
            sent.append(publisher.client.publish(f"{root}/{number}", payload, qos=1, retain=True))

    change_some(range(5))
    with Change(cluster, how):
        change_some(range(5, 8))
        eventually(lambda: all(info.is_published() for info in sent), "PUBACKs")
    subscriber = devices("subscriber", front_end=1)
    subscriber.subscribe(f"{root}/+", 1)
    expected = {f"{root}/{n}": b"new" for n in (0, 2, 4, 6)} | {f"{root}/{n}": b"old" for n in (8, 9)}
    publisher.publish(f"{root}/end", b"")
    # A message that is published may overtake retained ones that are still read.
    eventually(
        lambda: {(f"{root}/end", b""), *expected.items()} <= set(subscriber.messages), "the last message"
    )
    assert Counter(subscriber.messages) == Counter([*expected.items(), (f"{root}/end", b"")])
    for number in (0, 2, 4, 6, 8, 9):
        publisher.publish(f"{root}/{number}", b"", retain=True)


def test_wills_are_published_once(cluster: ReplicatedCluster, devices: Devices, root: str) -> None:
    watcher = devices("watcher", front_end=1)
    watcher.subscribe(f"{root}/#", 2)
    for number in range(4):
        devices(f"living-{number}", will=f"{root}/will", kept_s=number % 2, front_end=number // 2)

    def make(how: str, number: int) -> Device:
        name = f"{root}-{how}-{number}"
        return Device(cluster, name, will=f"{root}/will", front_end=number % 2, kept_s=0)

    names: set[bytes] = set()
    for how in WAYS:
        cluster.wait_in_sync()
        dying = [make(how, number) for number in range(6)]
        names |= {device.client._client_id for device in dying}
        for device in dying[:2]:
            device.die()
        with Change(cluster, how):
            for device in dying[2:4]:
                device.die()
        for device in dying[4:]:
            device.die()
        count = len(names)
        eventually(lambda count=count: len(watcher.messages) >= count, f"all wills after: {how}")
    # Those of devices that live would come when their front ends had not claimed them in this time.
    watcher.publish(f"$delayed/{CLAIMED_S}/{root}/end", b"", qos=1)
    eventually(lambda: (f"{root}/end", b"") in watcher.messages, "the end")
    assert sorted(payload for topic, payload in watcher.messages if topic == f"{root}/will") == sorted(names)


@EVERY_WAY
def test_exclusive_and_shared_subscriptions(
    cluster: ReplicatedCluster, devices: Devices, root: str, how: str
) -> None:
    first, second = devices("first"), devices("second", front_end=1)
    assert first.subscribe(f"$exclusive/{root}/one", 1) == 1
    assert second.subscribe(f"$exclusive/{root}/one", 1) == QUOTA_EXCEEDED
    members = [devices(f"member-{n}", front_end=n % 2) for n in range(3)]
    for member in members:
        member.subscribe(f"$share/group/{root}/work", 1)
    publishing = Publishing(devices("publisher"), (f"{root}/work", 2), (f"{root}/one", 2))
    eventually(lambda: all(member.messages for member in members), "all members get messages")
    changed_s = time.monotonic()
    with Change(cluster, how):
        go_on(publishing)
        assert second.subscribe(f"$exclusive/{root}/one", 1) == QUOTA_EXCEEDED
    count = publishing.end()

    def worked() -> dict[int, list[float]]:
        """When members got each number."""
        found: dict[int, list[float]] = {}
        for member in members:
            for at_s, (_, payload) in zip(member.times.copy(), member.messages.copy(), strict=False):
                found.setdefault(int(payload), []).append(at_s)
        return found

    eventually(lambda: len(worked()) == count, "every message reaches a member")
    twice = {number: times for number, times in worked().items() if len(times) > 1}
    print(f"{how}: {count} shared, twice: {len(twice)}")
    if how == "hand-over":
        assert not twice, "the next master knows what is done"
    for times in twice.values():
        assert changed_s - UNSAVED_S < min(times), "only what was acknowledged shortly before"
    eventually(lambda: len(set(first.numbers(f"{root}/one"))) == count, "all of the exclusive filter")
    assert not second.messages
    first.unsubscribe(f"$exclusive/{root}/one")
    assert second.subscribe(f"$exclusive/{root}/one", 1) == 1


@BOTH_WAYS
def test_a_session_that_is_away_comes_back(
    cluster: ReplicatedCluster, devices: Devices, root: str, how: str
) -> None:
    away = devices("away")
    away.subscribe(f"{root}/+", 2)
    publishing = Publishing(devices("publisher", front_end=1), (f"{root}/a", 2), (f"{root}/b", 1))
    eventually(lambda: len(away.messages) > 20, "messages")
    away.leave()
    go_on(publishing)
    with Change(cluster, how):
        go_on(publishing)
    count = publishing.end()
    away.connect()
    assert away.sessions_present == [False, True]
    eventually(lambda: away.numbers(f"{root}/a")[-1:] == [count - 1], "the last of QoS 2")
    eventually(lambda: set(away.numbers(f"{root}/b")) == set(range(count)), "all of QoS 1")
    assert away.numbers(f"{root}/a") == list(range(count))


@BOTH_WAYS
def test_delayed_messages_come_once_and_not_early(
    cluster: ReplicatedCluster, devices: Devices, root: str, how: str
) -> None:
    subscriber = devices("subscriber", front_end=1)
    subscriber.subscribe(f"{root}/+", 2)
    publisher = devices("publisher")
    sent_s = []
    for number in range(12):
        sent_s.append(time.monotonic())
        publisher.publish(f"$delayed/{1 + number % 4}/{root}/later", b"%d" % number, qos=2)
    with Change(cluster, how):
        pass
    eventually(lambda: len(subscriber.messages) >= 12, "all delayed messages")
    publisher.publish(f"{root}/end", b"99", qos=2)
    eventually(lambda: subscriber.numbers(f"{root}/end"), "the end")
    assert sorted(subscriber.numbers(f"{root}/later")) == list(range(12))
    for number, at_s in zip(subscriber.numbers(f"{root}/later"), subscriber.times, strict=False):
        assert at_s - sent_s[number] >= 1 + number % 4 - EARLY_S


@BOTH_WAYS
def test_requests_are_answered(cluster: ReplicatedCluster, devices: Devices, root: str, how: str) -> None:
    def answer(client: paho.Client, message: paho.MQTTMessage) -> None:
        assert message.properties is not None
        client.publish(message.properties.ResponseTopic, b"re: " + message.payload, qos=1)

    device = devices("pump", on_message=answer)
    device.subscribe(f"{root}/ask", 1)
    with (
        SyncClient(ClientSettings(registries=cluster.registries)) as client,
        SyncRequester(client) as requester,
    ):

        def ask(text: bytes) -> None:
            request = Message("requests", text, properties={"MQTT_TOPIC": f"{root}/ask", "MQTT_QOS": "1"})
            assert requester.request(request, timeout_ms=10_000).body == b"re: " + text

        ask(b"before")
        with Change(cluster, how):
            ask(b"after")
        ask(b"later")
