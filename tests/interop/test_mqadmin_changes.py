"""mqadmin of rocketmq-tools 4.9.8 (Maven), unmodified: what it changes at brokers and registries."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from java_process import JavaProcesses, RunMqadmin, java_marks

from iotmq.client import (
    ClientSettings,
    Message,
    MessageQueue,
    PushConsumerSettings,
    ReceivedMessage,
    SyncAdmin,
    SyncClient,
    SyncProducer,
    SyncPushConsumer,
)
from iotmq.client.admin.admin import Admin
from iotmq.errors import BrokerError, RouteNotFoundError

CLUSTER = "DefaultCluster"

pytestmark = java_marks


@pytest.fixture(scope="module")
def address(gateway: GatewayProcess) -> str:
    return f"127.0.0.1:{gateway.ports['broker']}"


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[SyncClient]:
    settings = ClientSettings(registries=(gateway.registry,), route_refresh_ms=200)
    with SyncClient(settings) as client:
        yield client


@pytest.fixture(scope="module")
def admin(client: SyncClient) -> Admin:
    return Admin(client.asynchronous)


def send(client: SyncClient, topic: str, *bodies: bytes) -> None:
    with SyncProducer(client, "pg") as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def test_a_topic_is_made_changed_and_deleted(
    mqadmin: RunMqadmin, client: SyncClient, admin: Admin, address: str
) -> None:
    mqadmin("updateTopic", "-c", CLUSTER, "-t", "T1", "-r", "4", "-w", "2")
    eventually(lambda: "T1" in client.run(admin.topics()), "the registry has it")
    (queues,) = client.run(admin.configurations.route("T1"))
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (4, 2, 6)
    mqadmin("updateTopicPerm", "-b", address, "-t", "T1", "-p", "4")
    eventually(
        lambda: client.run(admin.configurations.route("T1"))[0].perm == 4, "the route has the permission"
    )
    printed = mqadmin("deleteTopic", "-c", CLUSTER, "-t", "T1")
    assert "delete topic [T1] from cluster [DefaultCluster] success" in printed
    assert "T1" not in client.run(admin.topics())
    assert "T1" not in client.run(admin.configurations.topics())["broker-a"]
    # One that was never there is deleted, too: not every broker of a cluster has every topic.
    assert "success" in mqadmin("deleteTopic", "-c", CLUSTER, "-t", "Never")


def test_an_ordered_topic_has_its_order_in_the_registry(
    mqadmin: RunMqadmin, client: SyncClient, admin: Admin
) -> None:
    mqadmin("updateTopic", "-c", CLUSTER, "-t", "Ordered", "-r", "2", "-w", "2", "-o", "true")
    assert client.run(admin.changes.value("ORDER_TOPIC_CONFIG", "Ordered")) == "broker-a:2"
    mqadmin("updateOrderConf", "-m", "put", "-t", "Ordered", "-v", "broker-a:1")
    assert "broker-a:1" in mqadmin("updateOrderConf", "-m", "get", "-t", "Ordered")
    mqadmin("updateOrderConf", "-m", "delete", "-t", "Ordered")
    assert client.run(admin.changes.value("ORDER_TOPIC_CONFIG", "Ordered")) is None


def test_a_group_is_made_and_deleted_with_its_offsets(
    mqadmin: RunMqadmin, client: SyncClient, admin: Admin, address: str
) -> None:
    SyncAdmin(client).create_topic("T2", queues=1)
    mqadmin("updateSubGroup", "-b", address, "-g", "made", "-r", "5")
    assert client.run(admin.configurations.groups())["broker-a"]["made"].retry_max_times == 5
    queue = MessageQueue("T2", "broker-a", 0)
    send(client, "T2", b"x")
    client.run(admin.set_group_offset("made", queue, 1))
    mqadmin("deleteSubGroup", "-b", address, "-g", "made", "-r", "true")
    assert "made" not in client.run(admin.configurations.groups())["broker-a"]
    assert client.run(admin.group_offsets("made", "T2"))[queue] in (None, 0)


def test_a_group_without_members_is_moved_and_cloned(
    mqadmin: RunMqadmin, client: SyncClient, admin: Admin
) -> None:
    SyncAdmin(client).create_topic("T3", queues=1)
    send(client, "T3", b"a", b"b", b"c")
    queue = MessageQueue("T3", "broker-a", 0)
    client.run(admin.set_group_offset("offline", queue, 3))
    # The tool looks for the group by its retry topic, which its first heartbeat would make.
    SyncAdmin(client).create_topic("%RETRY%offline", queues=1)
    mqadmin("resetOffsetByTime", "-g", "offline", "-t", "T3", "-s", "0")
    assert client.run(admin.group_offsets("offline", "T3"))[queue] == 0
    client.run(admin.set_group_offset("offline", queue, 2))
    mqadmin("cloneGroupOffset", "-s", "offline", "-d", "cloned", "-t", "T3", "-o", "true")
    assert client.run(admin.group_offsets("cloned", "T3"))[queue] == 2


def test_a_live_group_is_moved_and_skips(mqadmin: RunMqadmin, client: SyncClient, admin: Admin) -> None:
    SyncAdmin(client).create_topic("T4", queues=1)
    begun_ms = int(time.time() * 1000) - 60_000
    send(client, "T4", b"a", b"b")
    seen: list[bytes] = []

    def listen(messages: list[ReceivedMessage]) -> None:
        seen.extend(message.body for message in messages)

    settings = PushConsumerSettings(consume_from="first", commit_ms=50)
    consumer = SyncPushConsumer(client, "live", listen, settings=settings)
    consumer.subscribe("T4")
    with consumer:
        eventually(
            lambda: (
                client.run(admin.groups.progress("live", "T4")).queues
                and client.run(admin.groups.progress("live", "T4")).behind == 0
            ),
            "everything is consumed",
        )
        assert seen == [b"a", b"b"]
        printed = mqadmin("resetOffsetByTime", "-g", "live", "-t", "T4", "-s", str(begun_ms))
        assert "broker-a" in printed
        eventually(lambda: seen == [b"a", b"b", b"a", b"b"], "it was consumed again")
        mqadmin("skipAccumulatedMessage", "-g", "live", "-t", "T4")
        send(client, "T4", b"c")
        eventually(lambda: seen[-1:] == [b"c"], "it goes on")


def test_a_java_consumer_goes_where_it_is_told(
    javas: JavaProcesses, mqadmin: RunMqadmin, client: SyncClient, admin: Admin
) -> None:
    SyncAdmin(client).create_topic("T6", queues=2)
    send(client, "T6", b"a", b"b", b"c")
    consumer = javas.start("JavaClient")
    consumer.call("push", group="java-moved", topic="T6")
    consumer.wait_for("message", 3)
    eventually(
        lambda: (
            len(client.run(admin.groups.progress("java-moved", "T6")).queues) == 2
            and client.run(admin.groups.progress("java-moved", "T6")).behind == 0
        ),
        "it has said that it consumed them",
        within_s=30,
    )
    mqadmin("resetOffsetByTime", "-g", "java-moved", "-t", "T6", "-s", "0")
    # The client drops what it has, waits ten seconds for what is under way, and commits.
    got = consumer.wait_for("message", 6, within_s=60)
    assert sorted(line["body"] for line in got) == ["a", "a", "b", "b", "c", "c"]


def test_settings_of_a_broker_are_shown_and_changed(
    mqadmin: RunMqadmin, client: SyncClient, admin: Admin, address: str
) -> None:
    printed = mqadmin("getBrokerConfig", "-b", address)
    assert "brokerName" in printed
    assert "autoCreateTopicEnable" in printed
    assert "success" in mqadmin("updateBrokerConfig", "-b", address, "-k", "fileReservedTime", "-v", "48")
    assert client.run(admin.changes.broker_settings("broker-a"))["store.retention_hours"] == "48"
    mqadmin("updateBrokerConfig", "-c", CLUSTER, "-k", "brokerPermission", "-v", "4")
    with SyncProducer(client, "pg") as producer, pytest.raises((BrokerError, RouteNotFoundError)):
        producer.send(Message("T2", b"x"), timeout_ms=2_000)
    mqadmin("updateBrokerConfig", "-c", CLUSTER, "-k", "brokerPermission", "-v", "6")
    eventually(lambda: client.run(admin.configurations.route("T2"))[0].perm == 6, "the route says so")


def test_a_setting_that_may_not_change_is_refused_with_a_reason(
    gateway: GatewayProcess, mqadmin: RunMqadmin, address: str
) -> None:
    with pytest.raises(AssertionError, match="cannot change while the broker runs"):
        mqadmin("updateBrokerConfig", "-b", address, "-k", "listenPort", "-v", "1")


def test_write_permission_is_wiped_and_added(
    gateway: GatewayProcess, mqadmin: RunMqadmin, client: SyncClient, admin: Admin
) -> None:
    SyncAdmin(client).create_topic("T5", queues=1)
    printed = mqadmin("wipeWritePerm", "-b", "broker-a", "-n", gateway.registry)
    assert "wipe write perm of broker[broker-a] in name server" in printed
    assert client.run(admin.configurations.route("T5"))[0].perm == 4
    printed = mqadmin("addWritePerm", "-b", "broker-a", "-n", gateway.registry)
    assert "add write perm of broker[broker-a] in name server" in printed
    assert client.run(admin.configurations.route("T5"))[0].perm == 6


def test_registries_keep_values_and_change_settings(
    mqadmin: RunMqadmin, client: SyncClient, admin: Admin
) -> None:
    mqadmin("updateKvConfig", "-s", "N", "-k", "k", "-v", "v")
    assert client.run(admin.changes.value("N", "k")) == "v"
    mqadmin("deleteKvConfig", "-s", "N", "-k", "k")
    assert client.run(admin.changes.value("N", "k")) is None
    mqadmin("updateNamesrvConfig", "-k", "broker_timeout_s", "-v", "99")
    assert "99.0" in mqadmin("getNamesrvConfig")


def test_what_is_left_over_is_cleaned(mqadmin: RunMqadmin, address: str) -> None:
    for command in ("cleanUnusedTopic", "cleanExpiredCQ", "deleteExpiredCommitLog"):
        assert "success" in mqadmin(command, "-b", address)
