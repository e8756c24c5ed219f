"""rocketmq-client 4.9.8 (Maven), the Java client of the native protocol: transactions and request-reply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from java_process import JavaProcesses, java_marks, java_processes
from log_reader import StoredMessage, read_topic
from piped_client import ClientFailedError, PipedClient

from iotmq.client import (
    ClientSettings,
    Message,
    PushConsumerSettings,
    ReceivedMessage,
    SyncAdmin,
    SyncClient,
    SyncPushConsumer,
    SyncReplier,
    SyncRequester,
)

pytestmark = java_marks


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """It asks about transactions every half second, from a second on."""
    data = tmp_path_factory.mktemp("gateway") / "data"
    with GatewayProcess(
        data,
        "broker.transaction_timeout_s=1",
        "broker.transaction_check_interval_s=0.5",
        "broker.transaction_checks_max=100",
    ) as running:
        yield running


@pytest.fixture
def javas(gateway: GatewayProcess, tmp_path: Path) -> Iterator[JavaProcesses]:
    with java_processes(tmp_path, gateway.registry) as running:
        yield running


@pytest.fixture
def java(javas: JavaProcesses) -> PipedClient:
    return javas.start("JavaClient")


def stored(gateway: GatewayProcess, topic: str) -> dict[str, StoredMessage]:
    """Body -> record; every body once."""
    found = [each for queue in read_topic(gateway.registry, topic).values() for each in queue]
    by_body = {each.body.decode(): each for each in found}
    assert len(by_body) == len(found)
    return by_body


def make_topic(gateway: GatewayProcess, topic: str) -> None:
    """Consumers of a topic that is made later would learn of it within 30 s only."""
    with SyncClient(ClientSettings(registries=(gateway.registry,))) as client:
        SyncAdmin(client).create_topic(topic, queues=2)


def in_transaction(java: PipedClient, body: str, execute: str, **words: Any) -> dict[str, Any]:
    result: dict[str, Any] = java.call(
        "send_in_transaction", group="java-orders", topic="JavaOrders", body=body, execute=execute, **words
    )
    return result


def test_transactions_are_committed_rolled_back_and_asked_about(
    gateway: GatewayProcess, java: PipedClient
) -> None:
    java.call("transaction_producer", group="java-orders")
    committed = in_transaction(java, "committed", "COMMIT_MESSAGE", tags="a", keys="k1")
    in_transaction(java, "rolled back", "ROLLBACK_MESSAGE")
    in_transaction(java, "committed later", "UNKNOW", check="COMMIT_MESSAGE", tags="b")
    in_transaction(java, "rolled back later", "UNKNOW", check="ROLLBACK_MESSAGE")
    assert (committed["status"], committed["state"]) == ("SEND_OK", "COMMIT_MESSAGE")
    assert committed["transaction_id"] == committed["id"]

    java.call("push", group="java-billing", topic="JavaOrders")
    first, second = sorted(java.wait_for("message", 2), key=lambda line: len(str(line["body"])))
    assert (first["body"], first["id"], first["tags"], first["keys"]) == (
        "committed",
        committed["id"],
        "a",
        "k1",
    )
    # A commit, and where its half stood.
    assert first["sys_flag"] & 12 == 8
    (half,) = (
        each
        for queue in read_topic(gateway.registry, "RMQ_SYS_TRANS_HALF_TOPIC").values()
        for each in queue
        if each.body == b"committed"
    )
    assert (first["prepared_position"], committed["offset"]) == (half.position, half.offset)
    assert (second["body"], second["tags"]) == ("committed later", "b")
    # Consumers know which transaction a message is from.
    assert [line["transaction_id"] for line in (first, second)] == [first["id"], second["id"]]

    checks = java.wait_for("check", 2)
    assert {line["body"] for line in checks} == {"committed later", "rolled back later"}
    assert {line["topic"] for line in checks} == {"JavaOrders"}
    assert {line["times"] for line in checks} == {"1"}
    assert second["id"] in {line["transaction_id"] for line in checks}
    # Both are answered: nobody is asked again.
    eventually(
        lambda: "iotmq_broker_transactions_pending 0" in gateway.http("/metrics")[1],
        "no transaction is pending",
    )
    assert set(stored(gateway, "JavaOrders")) == {"committed", "committed later"}


def test_a_transaction_nobody_ends_is_asked_about_again(gateway: GatewayProcess, java: PipedClient) -> None:
    java.call("transaction_producer", group="java-orders")
    in_transaction(java, "never", "UNKNOW")
    checks = java.wait_for("check", 4, body="never")
    assert [line["times"] for line in checks[:4]] == ["1", "2", "3", "4"]
    assert len({line["transaction_id"] for line in checks}) == 1
    # Each is about another copy of the half.
    assert len({line["id"] for line in checks}) == len(checks)
    assert "never" not in stored(gateway, "JavaOrders")


def test_after_a_kill_the_broker_asks_another_producer(gateway: GatewayProcess, javas: JavaProcesses) -> None:
    """kill -9 between the half and its end: cursors and op records of the log decide."""
    first = javas.start("JavaClient")
    first.call("transaction_producer", group="java-orders")
    in_transaction(first, "done before", "COMMIT_MESSAGE")
    in_transaction(first, "orphan", "UNKNOW")
    first.__exit__()
    gateway.restart()
    second = javas.start("JavaClient")
    second.call("transaction_producer", group="java-orders")
    # It has no connection to the broker before it sends something.
    in_transaction(second, "done after", "COMMIT_MESSAGE")
    second.call(
        "send_in_transaction", group="java-orders", topic="JavaOther", body="orphan", execute="UNKNOW",
        check="COMMIT_MESSAGE",
    )  # fmt: skip
    eventually(lambda: "orphan" in stored(gateway, "JavaOrders"), "the other one commits it")
    assert {"done before", "done after"} <= set(stored(gateway, "JavaOrders"))


def test_java_asks_and_java_replies(java: PipedClient, gateway: GatewayProcess) -> None:
    make_topic(gateway, "JavaQuestions")
    java.call("producer", group="java-asker")
    java.call("producer", group="java-replier")
    java.call("push", group="java-service", topic="JavaQuestions", replies_by="java-replier")
    reply = java.call("request", group="java-asker", topic="JavaQuestions", body="hello", timeout_ms=20_000)
    assert reply == {"topic": "DefaultCluster_REPLY_TOPIC", "body": "re: hello"}
    (replied,) = java.wait_for("replied", 1)
    assert replied["status"] == "SEND_OK"
    assert set(stored(gateway, "DefaultCluster_REPLY_TOPIC")) == {"re: hello"}
    with pytest.raises(ClientFailedError, match="Timeout"):
        java.call("request", group="java-asker", topic="JavaNobody", body="?", timeout_ms=500)


def test_java_asks_and_the_native_client_replies_and_the_other_way_round(
    java: PipedClient, gateway: GatewayProcess
) -> None:
    settings = ClientSettings(registries=(gateway.registry,), missing_route_refresh_ms=100)
    java.call("producer", group="java-asker-2")
    with SyncClient(settings) as client:
        replier = SyncReplier(client)

        def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                replier.reply(message, b"native: " + message.body)

        consumer = SyncPushConsumer(
            client, "native-service", listen, settings=PushConsumerSettings(consume_from="first")
        )
        consumer.subscribe("NativeQuestions")
        with consumer:
            reply = java.call(
                "request", group="java-asker-2", topic="NativeQuestions", body="hello", timeout_ms=20_000
            )
        assert reply["body"] == "native: hello"

    make_topic(gateway, "JavaAnswers")
    java.call("producer", group="java-replier-2")
    java.call("push", group="java-service-2", topic="JavaAnswers", replies_by="java-replier-2")
    with SyncClient(settings) as client, SyncRequester(client) as requester:
        answer = requester.request(Message("JavaAnswers", b"hi", tags="t"), timeout_ms=20_000)
        assert answer.body == b"re: hi"
