"""A Java broker (4.9.7, Maven) beside ours: same requests, same records; and a directory goes both ways.

What a record has besides the message (positions, times, the port in ids) is its broker's own. The order of
properties is not looked at: the original has that of its hash table.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from gateway_process import ROOT, GatewayProcess
from java_process import LIBRARIES, JavaBroker, java_marks
from record_oracle import decode, encode_element, properties_of

from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

BORN_MS = 1_700_000_000_000
LEVELS = "broker.delay_levels=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

pytestmark = [
    *java_marks,
    pytest.mark.skipif(
        not list(LIBRARIES.glob("rocketmq-broker-*.jar")),
        reason="rocketmq-broker is not installed (tools/setup.sh dev, with Maven)",
    ),
]


class Work:
    """Requests as the Java client makes them, over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = BlockingConnection("127.0.0.1", port, 30)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, code: int, body: bytes = b"", **ext: Any) -> dict[str, str]:
        request = Command.request(code, {name: str(value) for name, value in ext.items()})
        request.version = 399
        request.body = body
        answer = self._connection.request(request)
        assert answer.code == 0, (ext, answer)
        return dict(answer.ext)

    def send(
        self, body: str | bytes, queue: int = 0, *, topic: str = "Alpha", **properties: str
    ) -> dict[str, str]:
        """Send one message, or a batch that is given as bytes; returns the fields of the answer."""
        extra = {}
        if topic.startswith("%RETRY%"):
            extra = {"j": properties["RECONSUME_TIME"], "l": properties["MAX_RECONSUME_TIMES"]}
        # Clients put no separator behind the last one.
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
        flags = 4 * ("TRAN_MSG" in properties)
        fields = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": flags, "g": BORN_MS, "h": 7}
        is_batch = isinstance(body, bytes)
        return self.ask(
            RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2,
            body if isinstance(body, bytes) else body.encode(),
            **{**fields, "i": text, "j": 0, "k": "false", "m": str(is_batch).lower(), **extra},
        )

    def transaction(self, body: str, outcome: int) -> None:
        half = self.send(body, 2, UNIQ_KEY=body, TRAN_MSG="true", PGROUP="pg", WAIT="true", TAGS="t")
        self.ask(
            RequestCode.END_TRANSACTION,
            producerGroup="pg", tranStateTableOffset=half["queueOffset"], commitLogOffset=position_of(half),
            commitOrRollback=outcome, fromTransactionCheck="false", msgId=body, transactionId=body,
        )  # fmt: skip

    def give_back(self, position: int, level: int = 1, times_max: int = 16) -> None:
        self.ask(
            RequestCode.CONSUMER_SEND_MESSAGE_BACK,
            offset=position, group="cg", delayLevel=level, originMsgId="", originTopic="Alpha",
            unitMode="false", maxReconsumeTimes=times_max,
        )  # fmt: skip

    def end(self, topic: str, queue: int = 0) -> int:
        answer = self.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue)
        return int(answer["offset"])

    def positions(self, topic: str, queue: int = 0) -> list[int]:
        """Where the records of a queue are, in order; as many as one pull gives."""
        request = Command.request(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": "reader", "topic": topic, "queueId": str(queue), "queueOffset": "0",
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0",
            },
        )  # fmt: skip
        answer = self._connection.request(request)
        assert answer.code == 0, answer
        data, at, found = answer.body_bytes(), 0, []
        while at < len(data):
            record, size = decode(data, at)
            found.append(record.position)
            at += size
        return found

    def wait_for(self, topic: str, queue: int, count: int) -> list[int]:
        eventually(lambda: self.end(topic, queue) == count, f"{count} messages in {topic}")
        return self.positions(topic, queue)


def position_of(sent: dict[str, str]) -> int:
    """Where the record of a send is, from its id."""
    return int(sent["msgId"][16:], 16)


def work(port: int) -> None:
    """Everything a broker writes again: what waited, halves, retries, dead letters."""
    with Work(port) as broker:
        broker.send("bare")
        broker.send("full", UNIQ_KEY="K1", WAIT="true", TAGS="A", KEYS="k1 k2", buyer="b")
        broker.send("impatient", WAIT="false", UNIQ_KEY="K2")
        elements = (
            ("B1", "UNIQ_KEY\x01B1\x02WAIT\x01true\x02TAGS\x01A"),
            ("B2", ""),
            ("B3", "KEYS\x01k\x02"),
        )
        batch = b"".join(encode_element(body.encode(), text.encode(), 7) for body, text in elements)
        broker.send(batch, UNIQ_KEY="B1,B2", WAIT="true")

        broker.send("waited", 1, UNIQ_KEY="D1", WAIT="true", DELAY="1", TAGS="t")
        broker.send("waited bare", 1, DELAY="1")
        broker.send("none", 0, UNIQ_KEY="D0", DELAY="0")
        broker.send("too high", 3, UNIQ_KEY="D99", DELAY="99")

        broker.transaction("committed", 8)
        broker.transaction("rolled back", 12)

        broker.give_back(position_of(broker.send("usual retry", 3, UNIQ_KEY="R0", TAGS="t")), level=0)
        broker.give_back(position_of(broker.send("retry", 3, UNIQ_KEY="R1", WAIT="true", TAGS="t")))
        broker.give_back(position_of(broker.send("retry bare", 3)))
        broker.give_back(position_of(broker.send("dead by level", 3, UNIQ_KEY="R2")), level=-1)
        broker.give_back(position_of(broker.send("dead by times", 3, UNIQ_KEY="R3", KEYS="k")), times_max=0)
        # From a consumer that could not give it back otherwise.
        broker.send(
            "from its consumer", topic="%RETRY%cg", UNIQ_KEY="C1", RETRY_TOPIC="Alpha", DELAY="1",
            WAIT="true", ORIGIN_MESSAGE_ID="id", RECONSUME_TIME="1", MAX_RECONSUME_TIMES="16",
        )  # fmt: skip

        broker.send(
            "given up by its consumer", topic="%RETRY%cg", UNIQ_KEY="C2", RETRY_TOPIC="Alpha",
            WAIT="true", ORIGIN_MESSAGE_ID="id", RECONSUME_TIME="16", MAX_RECONSUME_TIMES="16",
        )  # fmt: skip

        # And what was delivered from there is given back in its turn.
        waited = broker.wait_for("Alpha", 1, 2)[0]
        retried = broker.wait_for("%RETRY%cg", 0, 3)[0]
        (committed,) = broker.positions("Alpha", 2)
        for position in (waited, retried, committed):
            broker.give_back(position)
            broker.give_back(position, times_max=0)
        broker.wait_for("%RETRY%cg", 0, 6)


def stored(data: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Topic and queue -> its records in order, with what must be alike in both."""
    found = defaultdict(list)
    log = (data / "commitlog" / f"{0:020d}").read_bytes()
    at = 0
    while int.from_bytes(log[at : at + 4], "big"):
        record, size = decode(log, at)
        at += size
        properties = properties_of(record.properties)
        if len(properties.get(b"ORIGIN_MESSAGE_ID", b"")) == 32:
            properties[b"ORIGIN_MESSAGE_ID"] = b"an id of the broker's"
        is_waiting_again = record.topic == "%RETRY%cg"
        found[record.topic, record.queue_id].append(
            {
                "body": record.body,
                "properties": properties,
                "properties_bytes": len(record.properties),
                "queue_offset": record.queue_offset,
                "flag": record.flag,
                # Ours has another use for the prepared position of what waited: it names the waiting record.
                "sys_flag": record.sys_flag & ~0x0C if is_waiting_again else record.sys_flag,
                "reconsume_times": record.reconsume_times,
                "born_timestamp_ms": record.born_timestamp_ms if record.topic != OP else None,
                "size": size,
            }
        )
    return dict(found)


def check(data: Path) -> None:
    """`iotmq store check` finds nothing wrong."""
    words = [sys.executable, "-m", "iotmq", "store", "check", "--data", str(data)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def java_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a Java broker leaves behind."""
    data = tmp_path_factory.mktemp("java") / "data"
    with JavaBroker(data) as java:
        work(java.port)
    return data


def test_the_same_requests_make_the_same_records(java_data: Path, tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data", LEVELS) as ours:
        work(ours.ports["broker"])
    theirs, own = stored(java_data), stored(tmp_path / "data")
    assert set(own) >= set(theirs)
    for queue, records in theirs.items():
        for one, other in zip(own[queue], records, strict=True):
            assert one == other, queue
    assert own.keys() == theirs.keys()


def test_a_directory_goes_from_one_to_the_other_and_back(java_data: Path) -> None:
    """Whoever has it finds all records, and what the other leaves is sound."""
    check(java_data)
    before = stored(java_data)
    ours = GatewayProcess(java_data, LEVELS)
    with ours, Work(ours.ports["broker"]) as broker:
        for queue in range(4):
            assert broker.end("Alpha", queue) == len(before["Alpha", queue])
        broker.send("by ours", 1, UNIQ_KEY="O1", WAIT="true")
        broker.send("by ours, later", 1, UNIQ_KEY="O2", DELAY="1")
        broker.transaction("committed by ours", 8)
        broker.wait_for("Alpha", 1, len(before["Alpha", 1]) + 2)
    check(java_data)

    between = stored(java_data)
    with JavaBroker(java_data) as java, Work(java.port) as broker:
        for queue in range(4):
            assert broker.end("Alpha", queue) == len(between["Alpha", queue])
        assert len(broker.positions("%DLQ%cg")) == len(between["%DLQ%cg", 0])
        broker.send("by Java", 1, UNIQ_KEY="J1", DELAY="1")
        # Nothing that ours has delivered comes a second time.
        broker.wait_for("Alpha", 1, len(between["Alpha", 1]) + 1)
    check(java_data)

    after = stored(java_data)
    with GatewayProcess(java_data, LEVELS) as ours, Work(ours.ports["broker"]) as broker:
        for queue in range(4):
            assert len(broker.positions("Alpha", queue)) == len(after["Alpha", queue])
    check(java_data)
    assert [record["body"] for record in after["Alpha", 1]] == [
        b"waited", b"waited bare", b"by ours", b"by ours, later", b"by Java",
    ]  # fmt: skip


def test_a_new_topic_of_a_java_broker_leaves_the_routes_to_the_others(tmp_path: Path) -> None:
    """It tells registries of the new one alone."""
    topics = [f"T{number}" for number in range(3)]
    with (
        GatewayProcess(tmp_path / "registry", role="registry") as registry,
        JavaBroker(tmp_path / "java", f"namesrvAddr={registry.registry}") as java,
        Work(java.port) as broker,
        Work(registry.ports["registry"]) as routes,
    ):
        for topic in topics:
            broker.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=topic, defaultTopic="TBW102", readQueueNums=2, writeQueueNums=2, perm=6,
                topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
            )  # fmt: skip
            routes.ask(RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic=topic)
        for topic in topics:
            routes.ask(RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic=topic)
        broker.send("found", topic="T0")
