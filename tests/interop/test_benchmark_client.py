"""rocketmq-client and -tools 4.9.8 (Maven), as the OpenMessaging Benchmark's driver calls it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from driver_messages import BYTES, Subscription, sent
from eventually import eventually
from gateway_process import GatewayProcess
from java_process import java_marks, java_processes
from piped_client import PipedClient

from iotmq.client import ClientSettings, SyncClient
from iotmq.client.admin.admin import Admin

pytestmark = java_marks

CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipedClient]:
    with java_processes(tmp_path_factory.mktemp("java"), gateway.registry) as javas:
        started = javas.start("BenchmarkClient")
        started.call("start")
        yield started
        started.call("end")


def consume(client: PipedClient, topic: str, subscription: str, members: int) -> Subscription:
    """Start the members of a consumer group."""
    names = [f"{topic}-{subscription}-{number}" for number in range(members)]
    for name in names:
        client.call("consumer", name=name, topic=topic, subscription=subscription)
    return Subscription(client, names)


def send(client: PipedClient, topic: str, keys: Sequence[str | None], *, first: int = 0, count: int) -> None:
    """All at once, without waiting for one before the next; each key is a sender."""
    failed = client.call("send", topic=topic, keys=keys, bytes=BYTES, first=first, count=count)
    assert failed == []


def test_a_topic_has_the_partitions_it_was_made_with(client: PipedClient, gateway: GatewayProcess) -> None:
    address = f"127.0.0.1:{gateway.ports['broker']}"
    for partitions in (1, 16, 100):
        topic = f"RocketMQ-Benchmark-aB_-{partitions:04}"
        brokers = client.call("create_topic", cluster=CLUSTER, topic=topic, partitions=partitions)
        assert brokers == [address]
        with SyncClient(ClientSettings(registries=(gateway.registry,))) as native:
            (queues,) = native.run(Admin(native.asynchronous).configurations.route(topic))
        assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (partitions, partitions, 6)


def test_each_subscription_gets_every_message_and_its_members_share_them(client: PipedClient) -> None:
    topic = "RocketMQ-Benchmark-shared"
    client.call("create_topic", cluster=CLUSTER, topic=topic, partitions=16)
    subscriptions = [consume(client, topic, f"sub-{number:03}-xY_-", 2) for number in range(2)]

    def is_shared() -> bool:
        """While a queue goes from one member to another both have it, and its messages come twice."""
        send(client, topic, ["key"], count=64)
        for subscription in subscriptions:
            subscription.wait_for(1, 0, 64)
        is_once = all(each.messages == sent(1, 0, 64) and all(each.got.values()) for each in subscriptions)
        for subscription in subscriptions:
            subscription.forget()
        return is_once

    eventually(is_shared, "the queues are shared")
    send(client, topic, [None, "key"], first=64, count=1_000)
    for subscription in subscriptions:
        subscription.wait_for(2, 64, 1_000)
        assert subscription.messages == sent(2, 64, 1_000)
        assert all(subscription.got.values())


def test_many_topics_with_subscriptions_of_their_own(client: PipedClient) -> None:
    topics = [f"RocketMQ-Benchmark-many-{number:04}" for number in range(10)]
    for topic in topics:
        client.call("create_topic", cluster=CLUSTER, topic=topic, partitions=1)
    subscriptions = [
        consume(client, topic, f"sub-{number:03}-{topic[-4:]}", 1) for topic in topics for number in range(3)
    ]
    for topic in topics:
        send(client, topic, [None], count=100)
    for subscription in subscriptions:
        subscription.wait_for(1, 0, 100)
        assert subscription.messages == sent(1, 0, 100)
        client.call("close", name=subscription.members[0])
