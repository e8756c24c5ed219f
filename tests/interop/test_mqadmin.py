"""mqadmin of rocketmq-tools 4.9.8 (Maven), unmodified: what it shows of brokers, groups and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from java_process import JavaProcesses, RunMqadmin, java_marks

from iotmq.client import (
    ClientSettings,
    Message,
    MessageTrace,
    PushConsumerSettings,
    ReceivedMessage,
    SendResult,
    SyncAdmin,
    SyncClient,
    SyncProducer,
    SyncPushConsumer,
)
from iotmq.client.admin.admin import Admin

TOPIC = "AdminTopic"

pytestmark = java_marks


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[SyncClient]:
    with SyncClient(ClientSettings(registries=(gateway.registry,), client_id="native-consumer")) as client:
        SyncAdmin(client).create_topic(TOPIC, queues=2)
        yield client


@pytest.fixture(scope="module")
def sent(client: SyncClient) -> list[SendResult]:
    with SyncProducer(client, "admin-producers") as producer:
        return [
            producer.send(Message(TOPIC, b"body %d" % number, key=f"k{number}", keys=("all",), tags="A"))
            for number in range(10)
        ]


@pytest.fixture(scope="module")
def consumed(client: SyncClient, sent: list[SendResult]) -> Iterator[list[ReceivedMessage]]:
    """Group `billing`, connected, that has consumed everything and said so."""
    seen: list[ReceivedMessage] = []
    settings = PushConsumerSettings(consume_from="first", commit_ms=50)
    consumer = SyncPushConsumer(client, "billing", lambda messages: seen.extend(messages), settings=settings)
    consumer.subscribe(TOPIC)
    admin = Admin(client.asynchronous)
    with consumer:
        eventually(
            lambda: len(seen) == 10 and client.run(admin.groups.progress("billing", TOPIC)).behind == 0,
            "everything is consumed",
        )
        yield seen


def rows(printed: str, first_word: str) -> list[list[str]]:
    """The lines of a table that begin with a word, split at blanks."""
    return [line.split() for line in printed.splitlines() if line.split()[:1] == [first_word]]


def test_the_cluster_is_listed(gateway: GatewayProcess, mqadmin: RunMqadmin, sent: list[SendResult]) -> None:
    (row,) = rows(mqadmin("clusterList"), "DefaultCluster")
    assert row[1:4] == ["broker-a", "0", f"127.0.0.1:{gateway.ports['broker']}"]
    assert row[4:6][0] == "iotmq"
    (totals,) = rows(mqadmin("clusterList", "-m"), "DefaultCluster")
    assert int(totals[4]) >= 10


def test_a_topic_shows_its_queues(mqadmin: RunMqadmin, sent: list[SendResult]) -> None:
    table = rows(mqadmin("topicStatus", "-t", TOPIC), "broker-a")
    assert [(row[1], row[2]) for row in table] == [("0", "0"), ("1", "0")]
    assert sum(int(row[3]) for row in table) == 10
    assert TOPIC in mqadmin("topicList")


def test_a_group_shows_how_far_it_is(mqadmin: RunMqadmin, consumed: list[ReceivedMessage]) -> None:
    table = rows(mqadmin("consumerProgress", "-g", "billing"), TOPIC)
    assert [(row[1], row[5]) for row in table] == [("broker-a", "0"), ("broker-a", "0")]
    assert sum(int(row[4]) for row in table) == 10
    (row,) = rows(mqadmin("consumerProgress"), "billing")
    assert row[1:5] == ["1", "V4_9_8", "PUSH", "CLUSTERING"]


def test_connections_are_shown(
    gateway: GatewayProcess, mqadmin: RunMqadmin, consumed: list[ReceivedMessage]
) -> None:
    printed = mqadmin("consumerConnection", "-g", "billing")
    (row,) = rows(printed, "native-consumer")
    assert row[2:] == ["PYTHON", "V4_9_8"]
    assert re.search(rf"^{TOPIC}\s+\*", printed, re.M)
    assert "CONSUME_FROM_FIRST_OFFSET" in printed


def test_producers_are_shown(gateway: GatewayProcess, mqadmin: RunMqadmin, client: SyncClient) -> None:
    with SyncProducer(client, "live-producers") as producer:
        producer.send(Message("Other", b"x"))
        assert "native-consumer" in mqadmin("producerConnection", "-g", "live-producers", "-t", "Other")
        address = f"127.0.0.1:{gateway.ports['broker']}"
        assert "live-producers" in mqadmin("producer", "-b", address)


def test_a_message_is_found_every_way_and_followed(
    mqadmin: RunMqadmin, sent: list[SendResult], consumed: list[ReceivedMessage]
) -> None:
    result = sent[3]
    (offset_id,) = result.offset_message_ids
    track = "MessageTrack [consumerGroup=billing, trackType=CONSUMED"
    for printed in (
        mqadmin("queryMsgById", "-i", offset_id),
        mqadmin("queryMsgByUniqueKey", "-t", TOPIC, "-i", result.message_id),
        mqadmin(
            "queryMsgByOffset", "-t", TOPIC, "-b", "broker-a",
            "-i", str(result.queue.queue_id), "-o", str(result.queue_offset),
        ),
    ):  # fmt: skip
        assert f"UNIQ_KEY={result.message_id}" in printed
        assert re.search(rf"^CommitLog Offset:\s+{int(offset_id[16:], 16)}$", printed, re.M)
        assert track in printed
    by_key = mqadmin("queryMsgByKey", "-t", TOPIC, "-k", "all")
    assert {row.message_id for row in sent} == set(re.findall(r"^[0-9A-F]{32}", by_key, re.M))


def test_a_broker_says_what_it_does(
    gateway: GatewayProcess, mqadmin: RunMqadmin, sent: list[SendResult]
) -> None:
    printed = mqadmin("brokerStatus", "-b", f"127.0.0.1:{gateway.ports['broker']}")
    values = dict(re.findall(r"^(\S+)\s*: (.*)$", printed, re.M))
    assert int(values["putMessageTimesTotal"]) >= 10
    assert float(values["putLatency99"]) > 0
    assert len(values["putTps"].split()) == 3


def test_statistics_of_all_topics(mqadmin: RunMqadmin, consumed: list[ReceivedMessage]) -> None:
    (row,) = rows(mqadmin("statsAll", "-t", TOPIC), TOPIC)
    # Topic, group, behind, in and out each second, in and out of a day.
    assert (row[1], row[2], row[5], row[6]) == ("billing", "0", "10", "10")
    printed = mqadmin("statsAll")
    assert TOPIC in printed


def test_how_far_all_groups_are(
    gateway: GatewayProcess, mqadmin: RunMqadmin, consumed: list[ReceivedMessage]
) -> None:
    printed = mqadmin("brokerConsumeStats", "-b", f"127.0.0.1:{gateway.ports['broker']}")
    table = rows(printed, TOPIC)
    assert [row[1] for row in table] == ["billing", "billing"]
    assert "Diff Total: 0" in printed


def test_the_entries_of_a_queue(
    gateway: GatewayProcess, mqadmin: RunMqadmin, sent: list[SendResult], consumed: list[ReceivedMessage]
) -> None:
    printed = mqadmin(
        "queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-c", "2",
        "-b", f"127.0.0.1:{gateway.ports['broker']}", "-g", "billing",
    )  # fmt: skip
    assert printed.count("ConsumeQueueData") == 2
    assert "eval=true" in printed


def test_a_consumer_of_ours_says_what_it_is_doing(
    mqadmin: RunMqadmin, consumed: list[ReceivedMessage]
) -> None:
    printed = mqadmin("consumerStatus", "-g", "billing", "-i", "native-consumer", "-s")
    assert re.search(r"PROP_CONSUME_TYPE\s*: CONSUME_PASSIVELY", printed)
    assert len(rows(printed, TOPIC)) >= 4
    assert "thread" in printed


def test_a_consumer_of_ours_tries_one_message(
    mqadmin: RunMqadmin, sent: list[SendResult], consumed: list[ReceivedMessage]
) -> None:
    before = len(consumed)
    printed = mqadmin(
        "queryMsgById", "-i", sent[2].offset_message_ids[0], "-g", "billing", "-d", "native-consumer"
    )
    assert "CR_SUCCESS" in printed
    assert [message.body for message in consumed[before:]] == [b"body 2"]


def test_a_java_consumer_is_asked_through_the_broker(
    javas: JavaProcesses, mqadmin: RunMqadmin, client: SyncClient, sent: list[SendResult]
) -> None:
    java = javas.start("JavaClient")
    java.call("push", group="java-billing", topic=TOPIC)
    java.wait_for("message", 10)
    admin = Admin(client.asynchronous)
    connections = client.run(admin.groups.connections("java-billing"))
    assert connections is not None
    (member,) = connections.connection_set
    assert member.language == "JAVA"

    printed = mqadmin("consumerStatus", "-g", "java-billing", "-i", member.client_id)
    assert len(rows(printed, TOPIC)) >= 4
    info = client.run(admin.groups.running_info("java-billing", member.client_id, with_stack=True))
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert {subscription["topic"] for subscription in info.subscription_set} == {
        TOPIC,
        "%RETRY%java-billing",
    }
    assert "MessageThread" in (info.jstack or "")
    status = client.run(admin.groups.status("java-billing", TOPIC))
    assert sum(status[member.client_id].values()) == 10

    printed = mqadmin(
        "queryMsgById", "-i", sent[5].offset_message_ids[0], "-g", "java-billing", "-d", member.client_id
    )
    assert "CR_SUCCESS" in printed
    java.wait_for("message", 2, body="body 5")
    tried = client.run(
        admin.groups.consume_directly(
            "java-billing", member.client_id, sent[6].offset_message_ids[0], broker_name="broker-a"
        )
    )
    assert tried.consume_result == "CR_SUCCESS"


def test_a_trace_of_clients_is_found_by_the_id_of_its_message(
    mqadmin: RunMqadmin, client: SyncClient
) -> None:
    """As the Java client writes it, which traces itself when it is told to."""
    fields = (
        "Pub", "1700000000000", "DefaultRegion", "traced-group", TOPIC, "7F0000010000", "A", "k1",
        "127.0.0.1:10911", "5", "7", "0", "offset-id", "true", "",
    )  # fmt: skip
    with SyncProducer(client, "_INNER_TRACE_PRODUCER") as producer:
        body = "\x01".join(fields) + "\x02"
        producer.send(Message("RMQ_SYS_TRACE_TOPIC", body.encode(), keys=("7F0000010000",)))
    printed = mqadmin("queryMsgTraceById", "-i", "7F0000010000")
    assert re.search(r"^Pub\s+traced-group\s+", printed, re.M), printed
    assert "7ms" in printed


def test_a_trace_of_our_client_is_shown(gateway: GatewayProcess, mqadmin: RunMqadmin) -> None:
    topic, seen = "TracedTopic", []
    settings = ClientSettings(registries=(gateway.registry,), missing_route_refresh_ms=100)

    def listen(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        seen.extend(messages)
        return [message for message in messages if message.body == b"bad" and not message.redeliveries]

    with SyncClient(settings, interceptors=[MessageTrace(linger_ms=1)]) as client:
        client.admin.create_topic(topic, queues=1)
        consumer = client.push_consumer(
            "traced-readers", listen, settings=PushConsumerSettings(consume_from="first")
        )
        consumer.subscribe(topic)
        with consumer, client.producer("traced-senders") as producer:
            good = producer.send(Message(topic, b"good", keys=("k7",), tags="A"))
            bad = producer.send(Message(topic, b"bad"))
            eventually(lambda: len(seen) == 3, "all is consumed")
    printed = mqadmin("queryMsgTraceById", "-i", good.message_id)
    (sent,) = rows(printed, "Pub")
    (taken,) = rows(printed, "Sub")
    assert (sent[1], sent[-1]) == ("traced-senders", "success")
    assert (taken[1], taken[-1]) == ("traced-readers", "success")
    failed, repeated = rows(mqadmin("queryMsgTraceById", "-i", bad.message_id), "Sub")
    assert sorted((failed[-1], repeated[-1])) == ["failed", "success"]


@pytest.mark.parametrize(
    ("command", "name"),
    [("exportConfigs", "configs"), ("exportMetadata", "metadata"), ("exportMetrics", "metrics")],
)
def test_what_the_tool_exports_is_there(
    mqadmin: RunMqadmin, sent: list[SendResult], tmp_path: Path, command: str, name: str
) -> None:
    assert "success" in mqadmin(command, "-c", "DefaultCluster", "-f", str(tmp_path))
    text = (tmp_path / f"{name}.json").read_text()
    assert "broker-a" in text or TOPIC in text
