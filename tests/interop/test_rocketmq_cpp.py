"""The C++ client of the native protocol (PyPI rocketmq 0.4.4, as published): all it can send and consume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.publish
import pytest
from cpp_process import cpp_marks, cpp_process
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import StoredMessage, read_topic
from piped_client import ClientFailedError, PipedClient

from iotmq.client import Admin, ClientSettings, Message, SyncClient, SyncProducer
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

pytestmark = cpp_marks


@pytest.fixture
def cpp(gateway: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    with cpp_process(gateway.registry, tmp_path) as client:
        yield client


def messages(topic: str, *bodies: str, **words: Any) -> list[dict[str, Any]]:
    return [{"topic": topic, "body": body, **words} for body in bodies]


def bodies(lines: list[dict[str, Any]]) -> list[str]:
    return [line["body"] for line in lines]


def stored(gateway: GatewayProcess, topic: str) -> dict[str, StoredMessage]:
    """Body -> record; every body once."""
    found = [each for queue in read_topic(gateway.registry, topic).values() for each in queue]
    by_body = {each.body.decode("utf-8", "replace"): each for each in found}
    assert len(by_body) == len(found)
    return by_body


def send_natively(gateway: GatewayProcess, topic: str, *sent: tuple[str, str]) -> None:
    """Send (body, tag) pairs with our own client."""
    with (
        SyncClient(ClientSettings(registries=(gateway.registry,))) as client,
        SyncProducer(client) as producer,
    ):
        for body, tag in sent:
            producer.send(Message(topic, body.encode(), tags=tag))


def publish_by_mqtt(gateway: GatewayProcess, topic: str, *sent: str) -> None:
    paho.mqtt.publish.multiple(
        [(topic, body, 1, False) for body in sent], hostname="127.0.0.1", port=gateway.mqtt_port,
        client_id="cpp-device",
    )  # fmt: skip


def test_synchronous_sends_are_in_the_log_with_all_they_carry(
    gateway: GatewayProcess, cpp: PipedClient
) -> None:
    cpp.call("producer", group="cpp-sync")
    results = cpp.call(
        "send",
        group="cpp-sync",
        messages=messages("CppSync", "one", "two", tags="red", keys="k1 k2", properties={"colour": "blue"}),
    )
    assert [result["status"] for result in results] == [0, 0]
    found = stored(gateway, "CppSync")
    assert set(found) == {"one", "two"}
    for result, body in zip(results, ("one", "two"), strict=True):
        assert found[body].offset == result["offset"]
        assert found[body].properties["UNIQ_KEY"] == result["id"]
        assert found[body].properties["TAGS"] == "red"
        assert found[body].properties["KEYS"] == "k1 k2"
        assert found[body].properties["colour"] == "blue"


def test_large_bodies_arrive_compressed_as_the_client_sent_them(
    gateway: GatewayProcess, cpp: PipedClient
) -> None:
    """The library compresses bodies over 4 KiB; the broker keeps them as they are, consumers inflate them."""
    body = "temperature=21.5;" * 5_000
    cpp.call("producer", group="cpp-large")
    (result,) = cpp.call("send", group="cpp-large", messages=messages("CppLarge", body))
    assert result["status"] == 0
    (found,) = (each for queue in read_topic(gateway.registry, "CppLarge").values() for each in queue)
    assert len(found.body) < len(body)
    (pulled,) = cpp.call("pull", group="cpp-large-pull", topic="CppLarge")
    assert pulled["body"] == body


def test_oneway_sends_are_stored(gateway: GatewayProcess, cpp: PipedClient) -> None:
    names = [f"oneway-{number}" for number in range(100)]
    cpp.call("producer", group="cpp-oneway")
    # The first send makes the topic; a oneway one would not wait for that.
    cpp.call("send", group="cpp-oneway", messages=messages("CppOneway", "first"))
    cpp.call("send_oneway", group="cpp-oneway", messages=messages("CppOneway", *names))
    cpp.call("send", group="cpp-oneway", messages=messages("CppOneway", "last"))
    assert set(stored(gateway, "CppOneway")) == {"first", *names, "last"}


def test_asynchronous_sends_call_back_with_their_offsets(gateway: GatewayProcess, cpp: PipedClient) -> None:
    names = [f"async-{number}" for number in range(200)]
    cpp.call("producer", group="cpp-async")
    cpp.call("send", group="cpp-async", messages=messages("CppAsync", "first"))
    cpp.call("send_async", group="cpp-async", messages=messages("CppAsync", *names))
    results = cpp.wait_for("async", len(names))
    assert {result["status"] for result in results} == {0}
    found = stored(gateway, "CppAsync")
    assert set(found) == {"first", *names}
    assert all(found[result["body"]].offset == result["offset"] for result in results)


def test_a_batch_is_stored_in_one_queue_in_order(gateway: GatewayProcess, cpp: PipedClient) -> None:
    names = [f"batch-{number}" for number in range(50)]
    cpp.call("producer", group="cpp-batch")
    result = cpp.call("send_batch", group="cpp-batch", messages=messages("CppBatch", *names, tags="b"))
    assert result["status"] == 0
    queues = [queue for queue in read_topic(gateway.registry, "CppBatch").values() if queue]
    assert [[each.body.decode() for each in queue] for queue in queues] == [names]
    assert {each.properties["TAGS"] for each in queues[0]} == {"b"}


def test_ordered_sends_keep_to_their_queue(gateway: GatewayProcess, cpp: PipedClient) -> None:
    cpp.call("producer", group="cpp-order")
    for key in (1, 2):
        names = [f"{key}-{number}" for number in range(20)]
        cpp.call("send_orderly", group="cpp-order", messages=messages("CppOrder", *names), key=key)
    queues = read_topic(gateway.registry, "CppOrder")
    for key in (1, 2):
        assert [each.body.decode() for each in queues[key % len(queues)]] == [f"{key}-{n}" for n in range(20)]


def test_a_send_the_broker_refuses_is_an_error_in_the_client(cpp: PipedClient) -> None:
    cpp.call("producer", group="cpp-refused", timeout_ms=2_000)
    with pytest.raises(ClientFailedError):
        cpp.call("send", group="cpp-refused", messages=messages("no such topic!", "body"), connecting_s=1)
    # The connection it was refused on goes on.
    assert cpp.call("send", group="cpp-refused", messages=messages("CppAfter", "x"))[0]["status"] == 0


def test_the_pull_consumer_gets_everything_and_by_tag(gateway: GatewayProcess, cpp: PipedClient) -> None:
    send_natively(gateway, "CppPull", *((f"native-{number}", "ab"[number % 2]) for number in range(40)))
    # By tag first: the package keeps one table of offsets per topic, whatever the group.
    tagged = cpp.call("pull", group="cpp-pull-b", topic="CppPull", expression="b")
    assert sorted(bodies(tagged)) == sorted(f"native-{number}" for number in range(1, 40, 2))
    assert {each["tags"] for each in tagged} == {"b"}
    send_natively(gateway, "CppPull", ("later", "a"))
    assert bodies(cpp.call("pull", group="cpp-pull", topic="CppPull")) == ["later"]
    assert cpp.call("pull", group="cpp-pull", topic="CppPull") == []


def test_the_pull_consumer_gets_what_spark_has_written(gateway: GatewayProcess, cpp: PipedClient) -> None:
    """Some in batches, and those with a delay of their own one by one."""
    pytest.importorskip("pyspark")
    from sink_harness import record_batches, sink

    send_natively(gateway, "CppSunk", ("first", "t"))
    rows = [
        {
            "value": f"sunk-{number}".encode(),
            "key": f"k{number}",
            "tags": "s",
            "delay_ms": 50 * (number % 10 == 0),
        }
        for number in range(60)
    ]
    for _ in range(2):
        assert sink(gateway.registry, record_batches(rows), topic="CppSunk") == 60
    eventually(lambda: len(stored(gateway, "CppSunk")) == 61, "the delayed ones are there")
    got = cpp.call("pull", group="cpp-sunk", topic="CppSunk")
    assert sorted(bodies(got)) == sorted(["first", *(f"sunk-{number}" for number in range(60))])
    assert {each["tags"] for each in got if each["body"] != "first"} == {"s"}


def test_the_push_consumer_gets_native_messages(gateway: GatewayProcess, cpp: PipedClient) -> None:
    send_natively(gateway, "CppPush", *((f"before-{number}", "t") for number in range(30)))
    cpp.call("push", group="cpp-push", topic="CppPush")
    cpp.wait_for("message", 30)
    send_natively(gateway, "CppPush", *((f"after-{number}", "t") for number in range(30)))
    got = cpp.wait_for("message", 60)
    assert sorted(bodies(got)) == sorted(
        [f"before-{number}" for number in range(30)] + [f"after-{number}" for number in range(30)]
    )
    found = stored(gateway, "CppPush")
    for line in got:
        each = found[line["body"]]
        assert (line["queue_id"], line["queue_offset"], line["position"]) == (
            each.queue_id, each.offset, each.position,
        )  # fmt: skip
        assert line["tags"] == "t"


def test_the_push_consumer_gets_what_devices_publish(gateway: GatewayProcess, cpp: PipedClient) -> None:
    cpp.call("push", group="cpp-devices", topic="mqtt")
    publish_by_mqtt(gateway, "devices/7/telemetry", *(f"t{number}" for number in range(25)))
    got = cpp.wait_for("message", 25)
    # One device, one topic: one queue, in order. The client's threads tell of them as they get to run.
    assert len({line["queue_id"] for line in got}) == 1
    got.sort(key=lambda line: line["queue_offset"])
    assert bodies(got) == [f"t{number}" for number in range(25)]
    assert {(line["mqtt_topic"], line["mqtt_client_id"]) for line in got} == {
        ("devices/7/telemetry", "cpp-device")
    }


def test_the_push_consumer_gets_only_its_tags(gateway: GatewayProcess, cpp: PipedClient) -> None:
    # A consumer learns of a topic that is made later with its next look at the routes, after 30 s.
    send_natively(gateway, "CppTags", ("first", "green"))
    cpp.call("push", group="cpp-tags", topic="CppTags", expression="red || blue")
    send_natively(
        gateway, "CppTags", *((f"{tag}-{n}", tag) for n in range(10) for tag in ("red", "green", "blue"))
    )
    got = cpp.wait_for("message", 20)
    assert sorted(bodies(got)) == sorted(f"{tag}-{n}" for n in range(10) for tag in ("red", "blue"))


def test_a_failed_message_comes_back(gateway: GatewayProcess, cpp: PipedClient, tmp_path: Path) -> None:
    send_natively(gateway, "CppRetry", ("good", "t"))
    # The group's first member makes its retry topic, and would itself see it only after 10 s.
    with cpp_process(gateway.registry, tmp_path / "first") as first:
        first.call("push", group="cpp-retry", topic="CppAfter")
        first.call("shutdown", name="cpp-retry")
    cpp.call("push", group="cpp-retry", topic="CppRetry", fail_first=1)
    got = cpp.wait_for("message", 2)
    assert [(line["is_failing"], line["reconsume_times"], line["topic"]) for line in got] == [
        (True, 0, "CppRetry"),
        (False, 1, "CppRetry"),
    ]
    assert got[0]["id"] == got[1]["id"]


def test_what_fails_too_often_is_a_dead_letter(gateway: GatewayProcess, cpp: PipedClient) -> None:
    """The client leaves it to the group's settings how often a message comes back."""
    with SyncClient(ClientSettings(registries=(gateway.registry,))) as client:
        admin = Admin(client.asynchronous)
        client.run(admin.changes.update_group("cpp-dead", {"retryMaxTimes": 1}))
        # Made by the group's first member otherwise, who would see it only after 10 s.
        client.run(admin.create_topic("%RETRY%cpp-dead", queues=1))
    send_natively(gateway, "CppDead", ("bad", "t"))
    cpp.call("push", group="cpp-dead", topic="CppDead", fail_first=2)
    got = cpp.wait_for("message", 2)
    assert [(line["reconsume_times"], line["topic"]) for line in got] == [(0, "CppDead"), (1, "CppDead")]
    letter = eventually(lambda: stored(gateway, "%DLQ%cpp-dead").get("bad"), "it is a dead letter")
    assert letter is not None
    assert (letter.properties["RETRY_TOPIC"], letter.reconsume_times) == ("CppDead", 2)


def test_a_delayed_message_comes_later(gateway: GatewayProcess, cpp: PipedClient) -> None:
    """Level 1 is a second here."""
    cpp.call("producer", group="cpp-delay-producer")
    cpp.call("send", group="cpp-delay-producer", messages=messages("CppDelay", "first"))
    cpp.call("push", group="cpp-delay", topic="CppDelay")
    cpp.wait_for("message", 1)
    cpp.call("send", group="cpp-delay-producer", messages=messages("CppDelay", "late", delay_level=1))
    (late,) = cpp.wait_for("message", 1, body="late")
    assert late["topic"] == "CppDelay"
    assert late["store_timestamp_ms"] - late["born_timestamp_ms"] >= 1_000


def test_a_broadcast_consumer_gets_everything(
    gateway: GatewayProcess, cpp: PipedClient, tmp_path: Path
) -> None:
    send_natively(gateway, "CppBroadcast", ("first", "t"))
    names = [f"m{number}" for number in range(20)]
    with cpp_process(gateway.registry, tmp_path / "other") as other:
        for each, instance in ((cpp, "one"), (other, "two")):
            each.call("push", group="cpp-broadcast", topic="CppBroadcast", instance=instance, broadcast=True)

        def consumes(each: PipedClient) -> bool:
            send_natively(gateway, "CppBroadcast", ("warm", "t"))
            return bool(each.said("message"))

        # Each begins at the end of its queues, once it has them.
        for each in (cpp, other):
            eventually(lambda each=each: consumes(each), "it consumes", step_s=0.2)
        send_natively(gateway, "CppBroadcast", *((name, "t") for name in names))
        for each in (cpp, other):
            eventually(
                lambda each=each: set(names) <= set(bodies(each.said("message"))), "each one has everything"
            )


def test_an_ordered_consumer_keeps_the_order_of_a_queue(gateway: GatewayProcess, cpp: PipedClient) -> None:
    """It locks its queues at the broker, and tries a failed message again before the next one."""
    names = [f"step-{number}" for number in range(15)]
    cpp.call("producer", group="cpp-steps")
    cpp.call("send_orderly", group="cpp-steps", messages=messages("CppSteps", *names), key=1)
    cpp.call("push", group="cpp-ordered", topic="CppSteps", orderly=True)
    assert bodies(cpp.wait_for("message", len(names))) == names


def test_a_group_shares_its_queues_and_goes_on_where_it_stopped(
    gateway: GatewayProcess, cpp: PipedClient, tmp_path: Path
) -> None:
    send_natively(gateway, "CppGroup", ("first", "t"))
    cpp.call("push", group="cpp-group", topic="CppGroup", instance="one")
    assert bodies(cpp.wait_for("message", 1)) == ["first"]
    with cpp_process(gateway.registry, tmp_path / "two") as other:
        other.call("push", group="cpp-group", topic="CppGroup", instance="two")
        names = [f"shared-{number}" for number in range(80)]
        # Until the members have shared the queues, one of them has all.
        for _ in range(40):
            send_natively(gateway, "CppGroup", *((name, "t") for name in names[:4]))
            cpp_got, other_got = bodies(cpp.said("message")), bodies(other.said("message"))
            if cpp_got and other_got:
                break
        assert other_got
        send_natively(gateway, "CppGroup", *((name, "t") for name in names[4:]))
        eventually(
            lambda: set(names) <= {*bodies(cpp.said("message")), *bodies(other.said("message"))},
            "both together got everything",
        )
        # Offsets are stored when a consumer ends.
        other.call("shutdown", name="two")
        cpp.call("shutdown", name="one")
    with cpp_process(gateway.registry, tmp_path / "three") as third:
        third.call("push", group="cpp-group", topic="CppGroup", instance="three")
        send_natively(gateway, "CppGroup", ("last", "t"))
        third.wait_for("message", 1, body="last")
        assert "first" not in bodies(third.said("message"))


def test_the_half_of_a_transaction_waits_until_it_is_ended(gateway: GatewayProcess, cpp: PipedClient) -> None:
    """The package has no transactional producer, but its library prepares what says TRAN_MSG."""
    cpp.call("producer", group="cpp-half")
    cpp.call("send", group="cpp-half", messages=messages("CppHalf", "plain"))
    half = {"TRAN_MSG": "true", "PGROUP": "cpp-half"}
    (kept,) = cpp.call(
        "send", group="cpp-half", messages=messages("CppHalf", "kept", tags="t", properties=half)
    )
    (dropped,) = cpp.call("send", group="cpp-half", messages=messages("CppHalf", "dropped", properties=half))
    assert (kept["status"], dropped["status"]) == (0, 0)
    assert set(stored(gateway, "CppHalf")) == {"plain"}
    halves = stored(gateway, "RMQ_SYS_TRANS_HALF_TOPIC")
    assert {halves[body].offset for body in ("kept", "dropped")} == {kept["offset"], dropped["offset"]}
    with BlockingConnection("127.0.0.1", gateway.ports["broker"]) as connection:
        for body, result, outcome in (("kept", kept, 8), ("dropped", dropped, 12)):
            answer = connection.request(
                Command.request(
                    RequestCode.END_TRANSACTION,
                    {
                        "producerGroup": "cpp-half",
                        "tranStateTableOffset": str(result["offset"]),
                        "commitLogOffset": str(halves[body].position),
                        "commitOrRollback": str(outcome),
                        "msgId": result["id"],
                    },
                )
            )
            assert answer.code == 0
    cpp.call("push", group="cpp-half-consumer", topic="CppHalf")
    assert sorted(bodies(cpp.wait_for("message", 2))) == ["kept", "plain"]
    # Nobody ends this one: the library's producer is asked about it, and goes on sending.
    cpp.call("send", group="cpp-half", messages=messages("CppHalf", "left", properties=half))
    eventually(
        lambda: gateway.metrics()["iotmq_broker_transaction_checks_total"] > 0,
        "it is asked, at the latest after its next heartbeat",
        within_s=45,
    )
    cpp.call("send", group="cpp-half", messages=messages("CppHalf", "after"))
    assert set(stored(gateway, "CppHalf")) == {"plain", "kept", "after"}


def test_a_consumer_says_what_it_is_doing_through_the_broker(
    gateway: GatewayProcess, cpp: PipedClient
) -> None:
    send_natively(gateway, "CppAsked", ("one", "t"))
    cpp.call("push", group="cpp-asked", topic="CppAsked")
    cpp.wait_for("message", 1)
    with SyncClient(ClientSettings(registries=(gateway.registry,))) as client:
        groups = Admin(client.asynchronous).groups
        connections = client.run(groups.connections("cpp-asked"))
        assert connections is not None
        (member,) = connections.connection_set
        assert (member.language, member.version) == ("CPP", 63)
        info = client.run(groups.running_info("cpp-asked", member.client_id))
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {row["topic"] for row in info.subscription_set} == {"CppAsked", "%RETRY%cpp-asked"}
