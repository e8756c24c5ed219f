"""Master and slave with a Java broker (4.9.7, Maven) as the other one, and a Java consumer that reads on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from java_process import LIBRARIES, JavaBroker, java_marks, java_processes

from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

SEGMENT_BYTES = 16 << 20
BODY = "b" * 60_000

pytestmark = [
    *java_marks,
    pytest.mark.skipif(
        not list(LIBRARIES.glob("rocketmq-broker-*.jar")),
        reason="rocketmq-broker is not installed (tools/setup.sh dev, with Maven)",
    ),
    # A slave asks for tables after 3 s, and every 10 s; a Java slave reports first after 5 s.
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("registry") / "data", role="registry") as gateway:
        yield gateway


class Connection:
    """Requests to one broker."""

    def __init__(self, port: int) -> None:
        self._connection = BlockingConnection("127.0.0.1", port, 30)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, code: int, body: bytes = b"", **ext: Any) -> Command:
        request = Command.request(code, {name: str(value) for name, value in ext.items()})
        request.version = 399
        request.body = body
        return self._connection.request(request)

    def send(self, topic: str, number: int) -> Command:
        """Send a message; its queue is one of four."""
        fields = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": number % 4, "f": 0, "g": 1, "h": 7}
        properties = {"i": f"UNIQ_KEY\x01K{number}", "j": 0, "k": "false", "m": "false"}
        return self.ask(RequestCode.SEND_MESSAGE_V2, f"{number} {BODY}".encode(), **{**fields, **properties})

    def commit(self, topic: str, queue_id: int, offset: int) -> None:
        answer = self.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="workers", topic=topic, queueId=queue_id, commitOffset=offset,
        )  # fmt: skip
        assert answer.code == 0

    def offset(self, topic: str, queue_id: int) -> int:
        """The committed offset of the group, -1 for none."""
        answer = self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="workers", topic=topic, queueId=queue_id
        )
        return int(answer.ext["offset"]) if answer.code == 0 else -1

    def end(self, topic: str, queue_id: int) -> int:
        """The end of a queue, -1 for a topic that is not known yet."""
        answer = self.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id)
        return int(answer.ext["offset"]) if answer.code == 0 else -1

    def make_group(self) -> None:
        body = b'{"groupName":"workers","retryMaxTimes":7,"consumeEnable":true,"retryQueueNums":1}'
        assert self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body).code == 0


def log_files(data: Path) -> bytes:
    """All of the log's files, one behind the other."""
    return b"".join(path.read_bytes() for path in sorted((data / "commitlog").iterdir()))


def ours(data: Path, registry: GatewayProcess, *settings: str) -> GatewayProcess:
    return GatewayProcess(
        data,
        f'broker.registries=["{registry.registry}"]',
        "replication.mode=static",
        *settings,
        role="broker",
    )


def consumed(javas: Any, topic: str, group: str, count: int) -> set[int]:
    """The numbers of the messages that a Java consumer gets, once it has so many."""
    consumer = javas.start("JavaClient")
    consumer.call("push", group=group, topic=topic)

    def numbers() -> set[int]:
        return {int(line["body"].split()[0]) for line in consumer.said("message")}

    eventually(lambda: len(numbers()) >= count, f"{count} messages of {topic}", within_s=90)
    return numbers()


def test_our_slave_of_a_java_master(tmp_path: Path, registry: GatewayProcess) -> None:
    with (
        java_processes(tmp_path / "clients", registry.registry) as javas,
        JavaBroker(
            tmp_path / "java",
            f"namesrvAddr={registry.registry}",
            "brokerIP2=127.0.0.1",
            "autoCreateSubscriptionGroup=true",
        ) as java,
    ):
        with Connection(java.port) as master:
            master.make_group()
            for number in range(300):
                assert master.send("JavaMaster", number).code == 0
            master.commit("JavaMaster", 1, 20)
        slave_data = tmp_path / "slave"
        with ours(slave_data, registry, "replication.role=slave", "replication.broker_id=1") as slave:
            with Connection(slave.ports["broker"]) as copy:
                eventually(
                    lambda: [copy.end("JavaMaster", queue) for queue in range(4)] == [75] * 4,
                    "the slave has every message",
                )
                eventually(lambda: copy.offset("JavaMaster", 1) == 20, "the slave has the offset")
                assert copy.send("JavaMaster", 0).code == 14
                # What the slave's group committed while it had more than its master stays.
                copy.commit("JavaMaster", 1, 25)
            with Connection(java.port) as master:
                master.commit("JavaMaster", 1, 22)
                # It goes on where it was, and asks for the tables soon after its start.
                slave.terminate()
                slave.start()
                for number in range(300, 600):
                    assert master.send("JavaMaster", number).code == 0
            with Connection(slave.ports["broker"]) as copy:
                eventually(
                    lambda: [copy.end("JavaMaster", queue) for queue in range(4)] == [150] * 4,
                    "the slave has every message again",
                )
                eventually(
                    lambda: slave.metric("iotmq_ha_slave_tables_polls_total") >= 1, "the slave has asked"
                )
                assert copy.offset("JavaMaster", 1) == 25
                assert slave.metric("iotmq_ha_slave_tables_failures_total") == 0
                groups = copy.ask(RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG).body_bytes()
                assert json.loads(groups)["subscriptionGroupTable"]["workers"]["retryMaxTimes"] == 7
            java.__exit__()
            end_position = int(slave.metric("iotmq_store_appended_position_bytes"))
            assert end_position > 2 * SEGMENT_BYTES, "there are blanks among it"
            assert consumed(javas, "JavaMaster", "after", 600) == set(range(600)), "from the slave"
        assert log_files(slave_data)[:end_position] == log_files(java.data)[:end_position]


def test_a_java_slave_of_our_sync_master(tmp_path: Path, registry: GatewayProcess) -> None:
    master_data, java_data = tmp_path / "master", tmp_path / "java"
    settings = ("replication.role=sync_master", "replication.vip_port_enabled=true")
    with (
        java_processes(tmp_path / "clients", registry.registry) as javas,
        ours(master_data, registry, *settings) as master,
        Connection(master.ports["broker"]) as connection,
    ):
        connection.make_group()
        for number in range(300):
            assert connection.send("OurMaster", number).code == 11, "there is no slave"
        connection.commit("OurMaster", 1, 20)
        role = (f"namesrvAddr={registry.registry}", "brokerRole=SLAVE", "brokerId=1")
        with JavaBroker(java_data, *role, "brokerIP2=127.0.0.1") as java:
            end_position = int(master.metric("iotmq_store_appended_position_bytes"))
            eventually(
                lambda: master.metric("iotmq_ha_reported_position_bytes") >= end_position,
                "the slave has the whole log",
            )
            for number in range(300, 600):
                assert connection.send("OurMaster", number).code == 0, "the slave has it"
            with Connection(java.port) as copy:
                eventually(
                    lambda: [copy.end("OurMaster", queue) for queue in range(4)] == [150] * 4,
                    "the slave shows every message",
                )
                eventually(lambda: copy.offset("OurMaster", 1) == 20, "the slave has the offset")
                groups = copy.ask(RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG).body_bytes()
                assert b'"workers"' in bytes(groups)
                eventually(
                    lambda: b'"OurMaster"' in bytes(copy.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body_bytes()),
                    "the slave has the topic",
                )
            vip = 'iotmq_remoting_connections_opened_total{listener="broker-vip"}'
            assert master.metrics()[vip] > 0, "a Java slave asks for topics there"
            end_position = int(master.metric("iotmq_store_appended_position_bytes"))
            assert end_position > 2 * SEGMENT_BYTES, "there are blanks among it"
            master.kill()
            assert consumed(javas, "OurMaster", "after", 600) == set(range(600)), "from the slave"
    assert log_files(java_data)[:end_position] == log_files(master_data)[:end_position]
