"""rocketmq-client 5.3.3 (Maven): consumers that the broker tells to consume by message; compressed bodies."""

from __future__ import annotations

from pathlib import Path

from eventually import eventually
from gateway_process import GatewayProcess
from java_process import ROCKETMQ_5, java_processes, rocketmq_5_marks

from iotmq.client import (
    ClientSettings,
    Message,
    ProducerSettings,
    SyncAdmin,
    SyncClient,
    SyncProducer,
    SyncPullConsumer,
)
from iotmq.message.compression import Compression

pytestmark = rocketmq_5_marks

TOPIC, GROUP = "JavaPop", "java-pop"
FLAGS: dict[Compression, int] = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
SENT = [f"pop {number}" for number in range(200)]


def test_three_java_consumers_share_the_messages_of_one_queue(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    with (
        SyncClient(ClientSettings(registries=(gateway.registry,))) as client,
        SyncProducer(client) as producer,
        java_processes(tmp_path, gateway.registry, libraries=ROCKETMQ_5) as javas,
    ):
        admin = SyncAdmin(client)
        admin.create_topic(TOPIC, queues=1)
        java = javas.start("PopClient")
        broker = f"127.0.0.1:{gateway.ports['broker']}"
        java.call("set_mode", broker=broker, topic=TOPIC, group=GROUP, mode="POP")
        for _ in range(3):
            java.call("consume", topic=TOPIC, group=GROUP)

        def each_has_one() -> bool:
            producer.send(Message(TOPIC, b"first"))
            return len({each["consumer"] for each in java.said("received")}) == 3

        eventually(each_has_one, "a message at each consumer", within_s=30)
        for body in SENT:
            producer.send(Message(TOPIC, body.encode()))

        def received() -> list[str] | None:
            bodies = [each["body"] for each in java.said("received") if each["body"] != "first"]
            return bodies if len(bodies) >= len(SENT) else None

        assert sorted(eventually(received, "all messages", within_s=30)) == sorted(SENT)

        def all_is_acknowledged() -> bool:
            [(queue, offsets)] = admin.offsets(TOPIC).items()
            return admin.group_offsets(GROUP, TOPIC)[queue] == offsets.end

        eventually(all_is_acknowledged, "the group's offset at the end", within_s=30)
        assert all(each["receipt"] and each["times"] == 0 for each in java.said("received"))

        # Both ways while messages come.
        sent = []
        for mode in ("PULL", "POP"):
            java.call("set_mode", broker=broker, topic=TOPIC, group=GROUP, mode=mode)
            before = len(java.said("received"))

            def is_switched(mode: str = mode, before: int = before) -> bool:
                sent.append(f"{mode} {len(sent)}")
                producer.send(Message(TOPIC, sent[-1].encode()))
                return any(("receipt" in each) == (mode == "POP") for each in java.said("received")[before:])

            eventually(is_switched, f"messages in the mode {mode}", within_s=30)
        eventually(lambda: {each["body"] for each in java.said("received")} >= {*sent}, "all", within_s=30)
        eventually(all_is_acknowledged, "the group's offset at the end", within_s=30)

        # In order, by attempts; and with another time.
        admin.create_topic("JavaOrder", queues=1)
        for number in range(3):
            producer.send(Message("JavaOrder", b"%d" % number))
        names = {"broker": broker, "name": "broker-a", "topic": "JavaOrder", "group": GROUP}
        first = java.call("pop", **names, count=2, poll_ms=0, attempt="one")
        assert [each["body"] for each in first] == ["0", "1"]
        assert java.call("pop", **names, count=2, poll_ms=0, attempt="two") == []
        again = java.call("pop", **names, count=2, poll_ms=0, attempt="one")
        assert [(each["body"], each["times"]) for each in again] == [("0", 0), ("1", 0)]
        zero, one = ({"offset": each["offset"], "receipt": each["receipt"]} for each in again)
        assert java.call("ack", **names, **first[0]) == "NO_EXIST"
        assert java.call("ack", **names, **zero) == "OK"
        changed = java.call("change", **names, **one, invisible_ms=1)
        assert java.call("ack", **names, **one) == "NO_EXIST"
        [waited] = java.call("pop", **names, count=1, poll_ms=5_000, attempt="three")
        assert (waited["body"], waited["times"]) == ("1", 1)
        assert java.call("ack", **names, offset=one["offset"], receipt=changed) == "NO_EXIST"
        assert java.call("ack", **names, offset=waited["offset"], receipt=waited["receipt"]) == "OK"
        [last] = java.call("pop", **names, count=9, poll_ms=5_000, attempt="four")
        assert last["body"] == "2"


def test_compressed_bodies_are_opened_on_both_sides(gateway: GatewayProcess, tmp_path: Path) -> None:
    bodies = {f"{method} {'telemetry ' * 1_000}": method for method in FLAGS}
    with (
        SyncClient(ClientSettings(registries=(gateway.registry,))) as client,
        java_processes(tmp_path, gateway.registry, libraries=ROCKETMQ_5) as javas,
    ):
        SyncAdmin(client).create_topic("Packed", queues=1)
        java = javas.start("PopClient")
        for body, method in bodies.items():
            with SyncProducer(client, method, ProducerSettings(compression=method)) as producer:
                producer.send(Message("Packed", body.encode()))
        java.call("consume", topic="Packed", group="java-packed")
        said = eventually(
            lambda: len(java.said("received")) >= len(bodies) and java.said("received"),
            "all bodies",
            within_s=30,
        )
        # Its threads take them in any order.
        assert {each["body"] for each in said} == {*bodies}

        for body, method in bodies.items():
            sent = java.call("send", topic="Packed", body=body, compression=method.upper(), within_s=30)
            assert sent == "SEND_OK"
        with SyncPullConsumer(client) as consumer:
            queues = consumer.queues("Packed")
            consumer.assign(dict.fromkeys(queues, len(bodies)))
            found = consumer.getmany(timeout_ms=10_000)
        assert {message.body.decode(): message.record.sys_flag & 0x701 for message in found} == {
            body: FLAGS[method] for body, method in bodies.items()
        }
