"""HiveMQ's client 1.3.8 (Maven), called as the MQTT driver of the OpenMessaging Benchmark calls it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from driver_messages import BYTES, Subscription, sent
from gateway_process import GatewayProcess
from java_process import HIVEMQ, hivemq_marks, java_processes
from piped_client import PipedClient

pytestmark = hivemq_marks

KEPT_S = 259_200


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipedClient]:
    directory: Path = tmp_path_factory.mktemp("java")
    with java_processes(directory, str(gateway.mqtt_port), libraries=HIVEMQ) as javas:
        yield javas.start("HiveMqClient")


def consume(
    client: PipedClient, topic: str, subscription: str, *members: str, qos: int = 1, is_clean: bool = True
) -> Subscription:
    """Connect members of a shared subscription."""
    for member in members:
        answer = client.call(
            "consumer", name=member, topic=topic, subscription=subscription, qos=qos,
            clean=is_clean, expiry_s=KEPT_S, receive_maximum=256,
        )  # fmt: skip
        assert answer == {"reason": "SUCCESS", "session_present": False, "can_share": True}
        client.wait_for("subscribed", 1, name=member)
    return Subscription(client, members)


def send(client: PipedClient, topic: str, *producers: str, qos: int = 1, first: int = 0, count: int) -> None:
    """All at once, without waiting for one before the next."""
    failed = client.call("send", names=producers, topic=topic, qos=qos, bytes=BYTES, first=first, count=count)
    assert failed == []


@pytest.mark.parametrize(("qos", "is_clean"), [*product((0, 1, 2), (True,)), (1, False)])
def test_each_subscription_gets_every_message_once_with_the_time_it_was_sent(
    client: PipedClient, qos: int, is_clean: bool
) -> None:
    name = f"{qos}{is_clean}"
    topic = f"benchmark/test-aB_-{name}-0000"
    # What is sent at once with QoS 0 must fit into the way to a consumer.
    count = 100 if qos == 0 else 1_000
    subscriptions = [
        consume(
            client, topic, f"sub-{number:03}-xY_-{name}", *(f"{name}-{number}-{each}" for each in range(2)),
            qos=qos, is_clean=is_clean,
        )
        for number in range(2)
    ]  # fmt: skip
    assert {line["result"] for line in client.said("subscribed") if line["name"].startswith(name)} == {
        f"[GRANTED_QOS_{qos}]"
    }
    producers = [f"benchmark_pub_{name}_{each}" for each in range(2)]
    for producer in producers:
        client.call("producer", name=producer)
    send(client, topic, *producers, qos=qos, count=count)
    for subscription in subscriptions:
        subscription.wait_for(2, 0, count)
        assert subscription.messages == sent(2, 0, count)
        for got in subscription.got.values():
            # Both take part, and see what a producer sends in its order.
            assert got
            for producer in range(2):
                numbers = [seen.number for seen in got if seen.producer == producer]
                assert numbers == sorted(numbers)


def test_a_kept_consumer_that_comes_back_gets_what_was_sent_meanwhile(client: PipedClient) -> None:
    topic = "benchmark/test-kept-0000"
    subscription = consume(client, topic, "sub-000-kept", "kept", is_clean=False)
    client.call("producer", name="for-kept")
    client.call("close", name="kept")
    send(client, topic, "for-kept", count=500)
    answer = client.call(
        "consumer", name="kept", topic=topic, subscription="sub-000-kept", qos=1, clean=False,
        expiry_s=KEPT_S, receive_maximum=256,
    )  # fmt: skip
    assert answer["session_present"] is True
    subscription.wait_for(1, 0, 500)
    assert subscription.messages == sent(1, 0, 500)


def test_clients_connect_again_by_themselves_and_go_on(client: PipedClient, gateway: GatewayProcess) -> None:
    topic = "benchmark/test-again-0000"
    consume(client, topic, "sub-000-again", "again-kept", is_clean=False)
    consume(client, topic, "sub-000-again", "again-clean")
    both = Subscription(client, ("again-kept", "again-clean"))
    client.call("producer", name="for-again")
    send(client, topic, "for-again", count=100)
    gateway.restart()
    for name in (*both.members, "for-again"):
        client.wait_for("connected", 2, name=name)
    send(client, topic, "for-again", first=100, count=100)
    both.wait_for(1, 0, 200)
    assert set(both.messages) == set(sent(1, 0, 200))
