"""Native clients of a replicated broker whose master is killed, stops and hands over."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from eventually import eventually
from gateway_process import free_ports
from kill_masters import Change
from replicated_cluster import BROKER, ReplicatedCluster

from iotmq.client import (
    ClientSettings,
    Message,
    PushConsumerSettings,
    ReceivedMessage,
    SyncClient,
    SyncProducer,
    SyncPushConsumer,
    SyncTransactionProducer,
    TransactionState,
)
from iotmq.client.transport.calls import ask, broker_address
from iotmq.errors import IotmqError
from iotmq.remoting.codes import RequestCode

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)"),
]

KEYS = 8
EVERY_WAY = pytest.mark.parametrize("how", ["kill", "hand-over", "stop"])
# What a master that is silent has left is what one that was killed has left.
BOTH_WAYS = pytest.mark.parametrize("how", ["kill", "hand-over"])
SETTINGS = {"broker": {"transaction_check_interval_s": 0.5, "transaction_checks_max": 1000}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    directory = tmp_path_factory.mktemp("native") / "cluster"
    with ReplicatedCluster(directory, port=free_ports(), front_ends=0, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: ReplicatedCluster, request: pytest.FixtureRequest) -> str:
    cluster.wait_in_sync()
    return str(request.node.name).replace("[", "-").strip("]")


@pytest.fixture
def client(cluster: ReplicatedCluster) -> Iterator[SyncClient]:
    with SyncClient(ClientSettings(registries=cluster.registries)) as client:
        yield client


class Sending:
    """A thread that sends numbers, each key's in order; how many were acknowledged."""

    def __init__(self, producer: SyncProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._is_ending = threading.Event()
        self.acknowledged = 0
        self.failures: list[IotmqError] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, count: int = 20) -> None:
        wanted = self.acknowledged + count
        eventually(lambda: self.acknowledged >= wanted or self.failures, "acknowledgements go on")

    def end(self) -> int:
        self._is_ending.set()
        self._thread.join(30.0)
        assert not self.failures, self.failures
        return self.acknowledged

    def _run(self) -> None:
        try:
            for number in itertools.count():
                self._producer.send(Message(self._topic, b"%d" % number, key=f"{number % KEYS}"))
                self.acknowledged += 1
                if self._is_ending.wait(0.002):
                    return
        except IotmqError as error:
            self.failures.append(error)


class Received:
    """What listeners were given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages: list[ReceivedMessage] = []
        self.times: dict[bytes, float] = {}

    def __call__(self, messages: list[ReceivedMessage]) -> None:
        now_s = time.time()
        with self._lock:
            self.messages += messages
            for message in messages:
                self.times.setdefault(message.body, now_s)

    @property
    def bodies(self) -> list[bytes]:
        with self._lock:
            return [message.body for message in self.messages]


@EVERY_WAY
def test_a_group_goes_on_without_a_skip(
    cluster: ReplicatedCluster, client: SyncClient, topic: str, how: str
) -> None:
    received = Received()
    settings = PushConsumerSettings(consume_from="first", commit_ms=200)
    with (
        SyncProducer(client) as producer,
        SyncClient(ClientSettings(registries=cluster.registries)) as other,
    ):
        producer.send(Message(topic, b"0", key="0"))
        consumers = [SyncPushConsumer(each, topic, received, settings=settings) for each in (client, other)]
        for consumer in consumers:
            consumer.subscribe(topic)
            consumer.start()
        queues = len(producer.queues(topic))
        eventually(lambda: [len(c.assigned) for c in consumers] == [queues // 2] * 2, "both have queues")
        assigned = [consumer.assigned for consumer in consumers]
        sending = Sending(producer, topic)
        sending.go_on()
        with Change(cluster, how):
            sending.go_on()
        count = sending.end()
        eventually(lambda: {b"%d" % n for n in range(count)} <= set(received.bodies), "all is received")
        assert [consumer.assigned for consumer in consumers] == assigned, "no queue changed its consumer"
        for consumer in consumers:
            consumer.stop()
    by_queue: dict[int, list[int]] = defaultdict(list)
    for message in received.messages:
        by_queue[message.queue.queue_id].append(message.queue_offset)
    for offsets in by_queue.values():
        firsts = list(dict.fromkeys(offsets))
        assert firsts == list(range(len(firsts))), "in order, and without a skip"
    twice = sum(len(offsets) - len(set(offsets)) for offsets in by_queue.values())
    print(f"{how}: {count} received, twice: {twice}")
    # Consumers hold what they have consumed; a change of master does not make them read it again.
    assert twice == 0


@EVERY_WAY
def test_queue_locks_stay_with_their_client(
    cluster: ReplicatedCluster, client: SyncClient, topic: str, how: str
) -> None:
    with SyncProducer(client) as producer:
        producer.send(Message(topic, b"x"))
        queues = producer.queues(topic)

    def locked(client_id: str, numbers: range) -> set[int]:
        body = {
            "clientId": client_id, "consumerGroup": topic,
            "mqSet": [{"topic": topic, "brokerName": BROKER, "queueId": n} for n in numbers],
        }  # fmt: skip

        async def request() -> dict[str, Any]:
            address = await broker_address(client.asynchronous, queues[0])
            answer = await ask(
                client.asynchronous, address, RequestCode.LOCK_BATCH_QUEUES, {}, json.dumps(body).encode(),
                doing="locks", timeout_s=1.0,
            )  # fmt: skip
            found: dict[str, Any] = json.loads(answer.body_bytes())
            return found

        deadline_s = time.monotonic() + 20.0
        while True:
            try:
                return {queue["queueId"] for queue in client.run(request())["lockOKMQSet"]}
            except IotmqError:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)

    # One of them long before the change, and one in the moment before it.
    assert locked("first", range(2)) == {0, 1}
    assert locked("second", range(4)) == {2, 3}
    assert locked("first", range(4)) == {0, 1}
    with Change(cluster, how):
        assert locked("third", range(4)) == set()
        assert locked("second", range(4)) == {2, 3}
        assert locked("first", range(4)) == {0, 1}
    assert locked("third", range(4)) == set()


@BOTH_WAYS
def test_transactions_prepared_before_the_change(
    cluster: ReplicatedCluster, client: SyncClient, topic: str, how: str
) -> None:
    asked: Counter[str] = Counter()

    def check(message: ReceivedMessage) -> TransactionState:
        asked[message.body.decode()] += 1
        return TransactionState.COMMIT if message.body.startswith(b"checked") else TransactionState.ROLLBACK

    received = Received()
    settings = PushConsumerSettings(consume_from="first")
    with SyncTransactionProducer(client, topic, check, topics=(topic,)) as producer:
        producer.send(Message(topic, b"plain"))
        consumer = SyncPushConsumer(client, topic, received, settings=settings)
        consumer.subscribe(topic)
        consumer.start()
        committed = [producer.begin(Message(topic, b"committed-%d" % n), check_after_s=60) for n in range(5)]
        dropped = [producer.begin(Message(topic, b"dropped-%d" % n), check_after_s=60) for n in range(5)]
        for n in range(5):
            producer.begin(Message(topic, b"checked-%d" % n), check_after_s=2)
            producer.begin(Message(topic, b"forgotten-%d" % n), check_after_s=2)
        ends = (b"committed-%d", b"checked-%d")
        expected = {b"plain"} | {text % n for text in ends for n in range(5)}
        with Change(cluster, how):
            for transaction in committed:
                transaction.commit()
            for transaction in dropped:
                transaction.rollback()
            eventually(lambda: set(received.bodies) >= expected, "all that is committed comes")
            eventually(
                lambda: sum(name.startswith("forgotten") for name in asked) == 5, "the others are asked about"
            )
        producer.send(Message(topic, b"last"))
        eventually(lambda: b"last" in received.bodies, "the last message")
        consumer.stop()
    assert Counter(received.bodies) == Counter([*expected, b"last"])
    assert not [name for name in asked if name.startswith(("committed", "dropped"))]


@BOTH_WAYS
def test_delayed_messages_come_once_and_not_early(
    cluster: ReplicatedCluster, client: SyncClient, topic: str, how: str
) -> None:
    received = Received()
    with SyncProducer(client) as producer:
        producer.send(Message(topic, b"first"))
        consumer = SyncPushConsumer(
            client, topic, received, settings=PushConsumerSettings(consume_from="first")
        )
        consumer.subscribe(topic)
        consumer.start()
        due: dict[bytes, float] = {b"first": 0.0, b"last": 0.0}
        for number in range(20):
            delay_ms = 200 + 150 * number
            due[b"%d" % number] = time.time() + delay_ms / 1000
            producer.send(Message(topic, b"%d" % number, delay_ms=delay_ms))
        with Change(cluster, how):
            eventually(lambda: len(set(received.bodies)) == 21, "all delayed messages")
        producer.send(Message(topic, b"last"))
        eventually(lambda: b"last" in received.bodies, "the last message")
        consumer.stop()
    assert Counter(received.bodies) == Counter(due.keys())
    for body, at_s in received.times.items():
        assert at_s >= due[body] - 0.001, body
