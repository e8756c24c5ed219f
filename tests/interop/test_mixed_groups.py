"""The Java clients of RocketMQ 4.9 and 5, the C++ client and ours share groups, and send to each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cpp_process import cpp_marks, cpp_process
from eventually import eventually
from gateway_process import GatewayProcess
from java_process import LIBRARIES, ROCKETMQ_5, java_marks, java_processes, rocketmq_5_marks
from native_process import native_process
from piped_client import PipedClient
from shared_group import SharedGroup

from iotmq.client import (
    ClientSettings,
    Message,
    PushConsumerSettings,
    ReceivedMessage,
    SyncClient,
    SyncProducer,
    TransactionState,
)

pytestmark = [*java_marks, *rocketmq_5_marks, *cpp_marks]


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[SyncClient]:
    with SyncClient(ClientSettings(registries=(gateway.registry,))) as client:
        yield client


@pytest.fixture(scope="module")
def producer(client: SyncClient) -> Iterator[SyncProducer]:
    with client.producer() as producer:
        yield producer


@pytest.fixture(scope="module")
def java4(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipedClient]:
    with java_processes(tmp_path_factory.mktemp("java4"), gateway.registry, libraries=LIBRARIES) as javas:
        yield javas.start("JavaClient")


@pytest.fixture(scope="module")
def java5(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipedClient]:
    with java_processes(tmp_path_factory.mktemp("java5"), gateway.registry, libraries=ROCKETMQ_5) as javas:
        yield javas.start("JavaClient")


@pytest.fixture
def cpp(gateway: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    with cpp_process(gateway.registry, tmp_path) as client:
        yield client


@pytest.fixture
def own(gateway: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    with native_process(gateway.registry, tmp_path) as client:
        yield client


# In order without the C++ client: it keeps its locks when it leaves, and commits no queue that it gives on.
@pytest.mark.parametrize(
    ("is_orderly", "kinds", "leaving"),
    [
        (False, ("java4", "java5", "cpp", "own"), ("cpp", "own", "java4")),
        (True, ("java4", "java5", "own"), ("own", "java4")),
    ],
    ids=["unordered", "in order"],
)
def test_all_kinds_of_clients_share_the_queues_and_what_one_leaves_the_others_take_over(
    is_orderly: bool, kinds: tuple[str, ...], leaving: tuple[str, ...],
    client: SyncClient, producer: SyncProducer, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    name = f"mixed-{'in-order' if is_orderly else 'unordered'}"
    group = SharedGroup(client, producer, name, name, is_orderly=is_orderly)
    for kind in kinds:
        group.join(kind, request.getfixturevalue(kind))
    once: set[str] = set()
    for leaver in leaving:
        sent = group.send(5)
        group.check_owners(sent)
        once |= sent | group.leave(leaver)
    once |= group.send(5)
    group.join("own", request.getfixturevalue("own"))
    once |= group.send(5) | group.leave("java5") | group.send(5)
    group.check_once(once)
    if is_orderly:
        group.check_order()


SENT: dict[str, dict[str, Any]] = {
    "plain": {"tags": "a", "keys": "k1 k2", "properties": {"colour": "red", "weight": "5"}},
    "other tag": {"tags": "b", "properties": {"colour": "green", "weight": "1"}},
    # Longer than what producers compress.
    "long " * 2_000: {"tags": "c", "properties": {"weight": "7"}},
    "delayed": {"tags": "a", "delay_level": 1},
}
IN_TRANSACTION = ("committed", "rolled back", "committed later", "rolled back later")
FILTERS = {
    "all": {*SENT, "committed", "committed later"},
    "a || c": {"plain", "long " * 2_000, "delayed", "committed", "committed later"},
    "weight > 3": {"plain", "long " * 2_000},
}


@pytest.mark.parametrize("kind", ["java4", "java5"])
def test_what_java_sends_comes_to_our_consumers_by_their_filters(
    kind: str, client: SyncClient, request: pytest.FixtureRequest
) -> None:
    java: PipedClient = request.getfixturevalue(kind)
    topic = f"sent-by-{kind}"
    client.admin.create_topic(topic, queues=2)
    received: dict[str, list[ReceivedMessage]] = {expression: [] for expression in FILTERS}
    with ExitStack() as stack:
        for number, (expression, found) in enumerate(received.items()):
            settings = PushConsumerSettings(consume_from="first")
            consumer = client.push_consumer(f"{topic}-{number}", found.extend, settings=settings)
            is_sql = ">" in expression
            consumer.subscribe(topic, "*" if is_sql or expression == "all" else expression,
                               sql=expression if is_sql else None)  # fmt: skip
            stack.enter_context(consumer)
        java.call("producer", group=topic)
        messages = [{"body": body, **words} for body, words in SENT.items()]
        assert java.call("send", group=topic, topic=topic, messages=messages) == ["SEND_OK"] * len(SENT)
        java.call("transaction_producer", group=f"{topic}-transactions")
        ids = {}
        for body in IN_TRANSACTION:
            outcome = "COMMIT_MESSAGE" if body.startswith("committed") else "ROLLBACK_MESSAGE"
            execute, check = ("UNKNOW", outcome) if body.endswith("later") else (outcome, "UNKNOW")
            ids[body] = java.call(
                "send_in_transaction", group=f"{topic}-transactions", topic=topic, body=body, tags="a",
                execute=execute, check=check,
            )["id"]  # fmt: skip
        asked = java.wait_for("check", 2, topic=topic)
        assert {line["body"] for line in asked} == {"committed later", "rolled back later"}
        eventually(
            lambda: all(len(received[expression]) >= len(bodies) for expression, bodies in FILTERS.items()),
            "each consumer has what it asks for",
        )
    for expression, bodies in FILTERS.items():
        assert sorted(message.body.decode() for message in received[expression]) == sorted(bodies)
    by_body = {message.body.decode(): message for message in received["all"]}
    plain = by_body["plain"]
    assert (plain.tags, plain.keys, plain.properties["colour"]) == ("a", ["k1", "k2"], "red")
    delayed = by_body["delayed"]
    assert delayed.store_timestamp_ms - delayed.born_timestamp_ms >= 1_000
    assert by_body["committed"].message_id == ids["committed"]


@pytest.mark.parametrize("kind", ["java4", "java5"])
def test_what_we_send_comes_to_consumers_of_java_by_their_filters(
    kind: str, client: SyncClient, request: pytest.FixtureRequest
) -> None:
    java: PipedClient = request.getfixturevalue(kind)
    topic = f"sent-to-{kind}"
    client.admin.create_topic(topic, queues=2)
    groups = {expression: f"{topic}-{number}" for number, expression in enumerate(FILTERS)}
    for expression, group in groups.items():
        words = {"sql": expression} if ">" in expression else {"expression": expression.replace("all", "*")}
        java.call("push", group=group, topic=topic, **words)
    asked = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body.decode())
        return outcome_of(asked[-1])

    def outcome_of(body: str) -> TransactionState:
        return TransactionState.COMMIT if body.startswith("committed") else TransactionState.ROLLBACK

    with client.transaction_producer(topic, check) as producer:
        for body, words in SENT.items():
            words = {**words, "keys": words.get("keys", "").split()}
            sent = producer.send(Message(topic, body.encode(), **words))
            if body == "plain":
                plain_id = sent.message_id
        for body in IN_TRANSACTION:
            state = TransactionState.UNKNOWN if body.endswith("later") else outcome_of(body)
            half = Message(topic, body.encode(), tags="a")
            producer.send_in_transaction(half, lambda _, state=state: state)
        for expression, bodies in FILTERS.items():
            lines = java.wait_for("message", len(bodies), topic=topic, group=groups[expression])
            assert sorted(line["body"] for line in lines) == sorted(bodies)
        eventually(lambda: len(asked) >= 2, "the broker has asked")
    assert {*asked} == {"committed later", "rolled back later"}
    (plain,) = java.said("message", topic=topic, group=groups["all"], body="plain")
    assert (plain["tags"], plain["keys"], plain["colour"]) == ("a", "k1 k2", "red")
    assert plain["id"] == plain_id


def test_what_a_killed_one_has_committed_comes_to_no_other_and_all_after_it_does(
    client: SyncClient, producer: SyncProducer, java4: PipedClient, java5: PipedClient, own: PipedClient
) -> None:
    """Each is killed once, and one of another kind goes on. This ends the clients of the other tests."""
    group = SharedGroup(client, producer, "mixed-killed", "mixed-killed", is_orderly=False)
    group.join("java4", java4)
    group.join("own", own)
    once = group.send(5)
    group.kill("java4")
    once |= group.send(5)
    group.join("java5", java5)
    once |= group.send(5)
    group.kill("own")
    once |= group.send(5)
    group.check_once(once)
