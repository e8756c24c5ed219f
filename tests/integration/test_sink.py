"""The sink of Spark without Spark, against real brokers: each row is stored once, whatever is killed."""

from __future__ import annotations

import os
import queue
import random
import shutil
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from gateway_process import GatewayProcess, free_ports
from kill_masters import Change
from log_reader import StoredMessage, read_bodies, read_topic
from replicated_cluster import ReplicatedCluster
from sink_harness import record_batches, sink
from sink_writer import write

from iotmq.bridge.sink.errors import (
    SinkError,
    SinkOrderError,
    SinkRefusedError,
    SinkRowError,
    SinkRowsChangedError,
    SinkTopicError,
    SinkUnavailableError,
)

ROWS = 4_000
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "15"))
WRITER = Path(__file__).parents[1] / "oracles" / "sink_writer.py"
ACCOUNTS = """
accounts:
  - accessKey: administrator
    secretKey: administrator-secret
    admin: true
  - accessKey: spark-writer
    secretKey: spark-writer-secret
    defaultTopicPerm: PUB
  - accessKey: spark-reader
    secretKey: spark-reader-secret
    defaultTopicPerm: SUB
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("sink") / "data") as gateway:
        yield gateway


def admin(gateway: GatewayProcess, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "iotmq", "admin", *words, "--registry", gateway.registry],
        check=True, timeout=60, capture_output=True,
    )  # fmt: skip


def make_topic(gateway: GatewayProcess, topic: str, queues: int = 4) -> str:
    admin(gateway, "topic", "create", topic, "--queues", str(queues))
    return topic


def messages(gateway: GatewayProcess, topic: str) -> list[StoredMessage]:
    return [message for of_queue in read_topic(gateway.registry, topic).values() for message in of_queue]


def assert_all_once(registry: str, topic: str, batches: int, rows: int = ROWS) -> None:
    found = Counter(read_bodies(registry, topic))
    expected = {b"%d:%d" % (batch, number) for batch in range(batches) for number in range(rows)}
    assert found.keys() == expected, "rows are lost, or others are there"
    assert set(found.values()) == {1}, (
        f"{[body for body, count in found.items() if count > 1][:10]} are doubled"
    )


def test_all_columns_become_what_they_say(gateway: GatewayProcess) -> None:
    topic = make_topic(gateway, "AllColumns")
    row = {
        "value": b"\x00body\xff", "key": "pump-7", "tags": "hot", "mqtt_topic": "devices/pump-7/cmd",
        "qos": 1,
        "retain": False, "ttl_ms": 60_000, "content_type": "application/json", "response_topic": "answers/1",
        "correlation_data": b"\x01\x02\x03\x04", "properties": {"site": "north", "unit": "ü"},
        "headers": [{"key": "h", "value": b"one"}, {"key": "empty", "value": None}],
    }  # fmt: skip
    nulls = dict.fromkeys(row, None) | {"value": b""}
    assert sink(gateway.registry, record_batches([row, nulls]), topic=topic) == 2
    found = {message.body: message for message in messages(gateway, topic)}
    expected = {
        "KEYS": "pump-7", "TAGS": "hot", "MQTT_TOPIC": "devices/pump-7/cmd", "MQTT_QOS": "1",
        "MSG_TTL_MS": "60000",
        "MQTT_CONTENT_TYPE": "application/json", "MQTT_RESPONSE_TOPIC": "answers/1",
        "MQTT_CORRELATION_DATA": "AQIDBA==", "site": "north", "unit": "ü", "h": "one",
    }  # fmt: skip
    full = dict(found[row["value"]].properties)  # type: ignore[index]
    assert full.pop("BATCH_NUMBER").startswith("query/0 0 ")
    assert full == expected | {"CLUSTER": full["CLUSTER"]}
    assert found[b""].properties.keys() == {"BATCH_NUMBER", "CLUSTER"}
    assert found[row["value"]].queue_id == zlib.crc32(b"pump-7") % 4  # type: ignore[index]


def test_topics_and_queues_of_rows(gateway: GatewayProcess) -> None:
    one, other = make_topic(gateway, "OfRowsA", 3), make_topic(gateway, "OfRowsB", 2)
    rows = [
        {
            "value": b"%d" % n,
            "topic": (one, other)[n % 2],
            "partition": n // 2 % 2 if n < 40 else None,
            "key": f"k{n}",
        }
        for n in range(80)
    ]
    assert sink(gateway.registry, record_batches(rows, rows_max=7)) == 80
    for topic, count in ((one, 3), (other, 2)):
        of_topic = {int(message.body): message.queue_id for message in messages(gateway, topic)}
        assert of_topic == {
            n: row["partition"] if n < 40 else zlib.crc32(str(row["key"]).encode()) % count
            for n, row in enumerate(rows)
            if row["topic"] == topic
        }


def test_devices_get_rows_and_retained_ones_later(gateway: GatewayProcess) -> None:
    topic = make_topic(gateway, "ToDevices")
    got: queue.Queue[tuple[str, bytes, int, bool]] = queue.Queue()
    subscribed = threading.Event()

    def device(name: str) -> paho.Client:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, name)
        client.on_message = lambda *words: got.put(
            (words[2].topic, words[2].payload, words[2].qos, words[2].retain)
        )
        client.on_subscribe = lambda *_: subscribed.set()
        client.connect("127.0.0.1", gateway.mqtt_port)
        client.subscribe("sunk/+/cmd", qos=1)
        client.loop_start()
        assert subscribed.wait(20)
        return client

    first = device("sunk-first")
    rows = [
        {
            "value": b"%d" % n,
            "mqtt_topic": f"sunk/{n}/cmd",
            "qos": n % 2,
            "retain": n == 3,
            "delay_ms": 300 if n == 4 else 0,
        }
        for n in range(5)
    ]
    for _ in range(2):
        sink(gateway.registry, record_batches(rows), topic=topic, producer="commands/0")
    found = [got.get(timeout=20) for _ in range(5)]
    assert sorted(found) == [(f"sunk/{n}/cmd", b"%d" % n, n % 2, False) for n in range(5)]
    assert found[-1][1] == b"4", "the delayed one comes last"
    subscribed.clear()
    later = device("sunk-later")
    assert got.get(timeout=20) == ("sunk/3/cmd", b"3", 1, True)
    for client in (first, later):
        client.disconnect()
        client.loop_stop()
    assert got.empty()
    # Delivered copies keep the number and change nothing.
    sink(gateway.registry, record_batches(rows), topic=topic, producer="commands/0")
    assert sorted(message.body for message in messages(gateway, topic)) == [b"%d" % n for n in range(5)]


def test_a_task_that_is_killed_and_one_that_runs_twice(gateway: GatewayProcess) -> None:
    """By kill -9 at random rows; the last time two do the same work at once."""
    topic = make_topic(gateway, "Killed", 3)
    random_ = random.Random(SEED)
    for batch in range(2):
        for _ in range(2):
            process = start_writer(gateway, topic, batch)
            kill_at = random_.randrange(ROWS)
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= kill_at:
                    break
            process.kill()
            process.wait()
            process.stdout.close()
        both = [start_writer(gateway, topic, batch) for _ in range(2)]
        for process in both:
            process.communicate(timeout=60)
            assert process.returncode == 0
    assert_all_once(gateway.registry, topic, 2)


def start_writer(gateway: GatewayProcess, topic: str, batch: int) -> subprocess.Popen[str]:
    words = [sys.executable, str(WRITER), gateway.registry, topic, str(ROWS), str(batch)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_broker_that_is_killed_meanwhile(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data") as gateway:
        topic = make_topic(gateway, "BrokerKilled", 3)
        for batch in range(2):
            process = start_writer(gateway, topic, batch)
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= ROWS // 3:
                    break
            gateway.restart()
            process.communicate(timeout=60)
            assert process.returncode == 0, "it waits for the broker"
        assert_all_once(gateway.registry, topic, 2)
        # All of it is known from the log.
        for batch in range(2):
            write(gateway.registry, topic, ROWS, batch)
        gateway.restart()
        write(gateway.registry, topic, ROWS, 1)
        assert_all_once(gateway.registry, topic, 2)
        assert gateway.metric("iotmq_broker_batch_producers") == 1
        assert gateway.metric("iotmq_broker_found_numbered_batches_total") > 0


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)")
def test_another_master_knows_what_is_stored(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path / "cluster", port=free_ports(), front_ends=1) as cluster:
        cluster.wait_in_sync()
        registry = cluster.registries[0]
        subprocess.run(
            [sys.executable, "-m", "iotmq", "admin", "topic", "create", "Moved", "--registry", registry],
            check=True, timeout=60,
        )  # fmt: skip
        write(registry, "Moved", ROWS, 0)
        for batch, how in ((1, "kill"), (2, "hand-over")):
            cluster.wait_in_sync()
            process = subprocess.Popen(
                [sys.executable, str(WRITER), registry, "Moved", str(ROWS), str(batch)],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= ROWS // 3:
                    break
            with Change(cluster, how):
                process.communicate(timeout=120)
                assert process.returncode == 0
                write(registry, "Moved", ROWS, batch - 1)
                write(registry, "Moved", ROWS, batch)
        assert_all_once(registry, "Moved", 3)


def test_a_repeated_batch_uses_the_queues_of_the_first_try(gateway: GatewayProcess) -> None:
    topic = make_topic(gateway, "MoreQueues", 2)
    rows = [{"value": b"%d" % n, "key": f"k{n}"} for n in range(3_000)]
    batches = record_batches(rows)

    def broken() -> Iterator[object]:
        yield from batches
        raise RuntimeError("the task ends here")

    options = {"topic": topic, "batchBytes": "4096"}
    with pytest.raises(RuntimeError, match="ends here"):
        sink(gateway.registry, broken(), **options)  # type: ignore[arg-type]
    begun = len(eventually(lambda: read_bodies(gateway.registry, topic), "some rows are stored"))
    assert 0 < begun < 3_000
    admin(gateway, "topic", "scale", topic, "--queues", "5")
    # Another size of batches would change their numbers, too.
    sink(gateway.registry, batches, topic=topic, batchBytes="9000")
    found = {int(message.body): message.queue_id for message in messages(gateway, topic)}
    assert found == {n: zlib.crc32(b"k%d" % n) % 2 for n in range(3_000)}
    sink(gateway.registry, batches, batch=1, topic=topic)
    assert {message.queue_id for message in messages(gateway, topic)} == set(range(5))


def test_rows_that_differ_when_they_are_repeated_are_an_error(gateway: GatewayProcess) -> None:
    topic = make_topic(gateway, "Differs", 1)
    rows = [{"value": b"%d" % n} for n in range(1_000)]
    options = {"topic": topic, "batchBytes": "4096"}
    sink(gateway.registry, record_batches(rows), **options)
    others = [{"value": b"%d" % (n + 1)} for n in range(1_000)]
    with pytest.raises(
        SinkRowsChangedError, match=r"batch 0, partition 0, was written .*'Differs'.*checkpoint"
    ):
        sink(gateway.registry, record_batches(others), **options)
    with pytest.raises(SinkRowsChangedError, match="requests there, and now"):
        sink(gateway.registry, record_batches(rows[:500]), **options)
    assert len(read_bodies(gateway.registry, topic)) == 1_000


def test_topics_that_take_nothing(gateway: GatewayProcess) -> None:
    rows = record_batches([{"value": b"x"}])
    with pytest.raises(SinkTopicError, match="'NoSuchTopic' does not exist: make it"):
        sink(gateway.registry, rows, topic="NoSuchTopic")
    topic = make_topic(gateway, "Frozen", 2)
    admin(gateway, "topic", "update", topic, "--perm", "r")
    eventually(lambda: refusal(gateway, topic), "the topic takes nothing")
    with pytest.raises(SinkTopicError, match="'Frozen' takes no messages"):
        sink(gateway.registry, rows, topic=topic)


def refusal(gateway: GatewayProcess, topic: str) -> str:
    try:
        sink(gateway.registry, record_batches([{"value": b"x"}]), topic=topic, producer="probe/0")
    except SinkError as error:
        return str(error)
    return ""


def test_rows_that_cannot_be_messages_are_named(gateway: GatewayProcess) -> None:
    topic = make_topic(gateway, "BadRows", 1)
    good = [{"value": b"%d" % n, "mqtt_topic": "a", "qos": 1, "ttl_ms": 5, "delay_ms": 0} for n in range(30)]
    for change, problem in [
        ({"value": None}, "column value is null"),
        ({"mqtt_topic": "a/#"}, "column mqtt_topic is no MQTT topic"),
        ({"mqtt_topic": "a" * 4_097}, "column mqtt_topic has more than 4096 bytes"),
        ({"qos": 3}, "column qos is not from 0 to 2"),
        ({"ttl_ms": 0}, "column ttl_ms is not from 1"),
        ({"delay_ms": -1}, "column delay_ms is not from 0"),
    ]:
        rows = [*good[:17], good[17] | change, *good[18:]]
        with pytest.raises(SinkRowError, match=f"partition 0: row 17: {problem}"):
            sink(
                gateway.registry,
                record_batches(rows, rows_max=10),
                topic=topic,
                producer=f"bad-{problem[-6:-1]}/0",
            )
    for pairs, problem in [
        ([("", "x")], "has no name"),
        ([("a\x01", "x")], "contains"),
        ([("a", "x\x02")], "contains"),
        ([("MQTT_TOPIC", "x")], "a column of its own"),
    ]:
        rows = [{"value": b"x", "properties": [("a", "b")]}] * 3 + [{"value": b"x", "properties": pairs}]
        with pytest.raises(SinkRowError, match=f"row 3: column properties .*{problem}"):
            sink(gateway.registry, record_batches(rows, rows_max=2), topic=topic)
    with pytest.raises(
        SinkRowError, match="row 0: column partition is 1, and topic 'BadRows' has no such queue"
    ):
        sink(gateway.registry, record_batches([{"value": b"x", "partition": 1}]), topic=topic)
    with pytest.raises(SinkRowError, match="row 1: column topic is null"):
        sink(
            gateway.registry,
            record_batches([{"value": b"x", "topic": topic}, {"value": b"x", "topic": None}]),
        )
    large = [{"value": b"x"}, {"value": b"y" * (4 << 20)}]
    with pytest.raises(
        SinkRefusedError, match=r"1 rows from row 1 of partition 0 .*'BadRows'.*record_bytes_max"
    ):
        sink(gateway.registry, record_batches(large), topic=topic, producer="large/0")


def test_an_account_without_the_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the topic, and of the MQTT topic of a row."""
    accounts = tmp_path / "data" / "config" / "plain_acl.yml"
    accounts.parent.mkdir(parents=True)
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    with GatewayProcess(tmp_path / "data", "broker.acl_enabled=true") as gateway:
        writer, reader = (
            {"topic": "Closed", "accessKey": name, "secretKey": f"{name}-secret"}
            for name in ("spark-writer", "spark-reader")
        )
        monkeypatch.setenv("IOTMQ_ACCESS_KEY", "administrator")
        monkeypatch.setenv("IOTMQ_SECRET_KEY", "administrator-secret")
        make_topic(gateway, "Closed", 1)
        plain = record_batches([{"value": b"x"}])
        command = record_batches([{"value": b"x", "mqtt_topic": "devices/1/cmd"}])
        assert sink(gateway.registry, plain, **writer) == 1
        with pytest.raises(SinkTopicError, match=r"takes no rows for topic 'Closed'.*reader"):
            sink(gateway.registry, plain, **reader)
        with pytest.raises(SinkRefusedError, match=r"1 rows from row 0 .*devices/1/cmd"):
            sink(gateway.registry, command, batch=1, **writer)
        with pytest.raises(SinkTopicError, match="'Closed'"):
            sink(gateway.registry, plain, topic="Closed")


def test_a_broker_that_stays_away_is_waited_for_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create = [sys.executable, "-m", "iotmq", "admin", "topic", "create", "Away", "--registry"]
    with GatewayProcess(tmp_path / "data", role="registry") as registry:
        data = tmp_path / "broker"
        with GatewayProcess(data, f"broker.registries=['{registry.registry}']", role="broker") as broker:
            subprocess.run(
                [*create, registry.registry], check=True, timeout=60,
            )  # fmt: skip
            sink(registry.registry, record_batches([{"value": b"x"}]), topic="Away")

            def killed() -> Iterator[object]:
                yield from record_batches([{"value": b"1"}])
                broker.kill()
                yield from record_batches([{"value": b"2" * 5_000}, {"value": b"3"}])

            with pytest.raises(
                SinkUnavailableError, match=r"storing 1 rows from row .*'Away'.*retryTimeoutMs"
            ):
                sink(
                    registry.registry, killed(), batch=1, topic="Away", batchBytes="4096",
                    retryTimeoutMs="500",
                )  # type: ignore[arg-type]  # fmt: skip
            assert "waiting for broker" in caplog.text
            broker.start()


def test_a_broker_that_has_lost_what_was_sent_is_told_apart(tmp_path: Path) -> None:
    """Nothing is left out: what was sent before the broker lost its disk is missed there."""
    with GatewayProcess(tmp_path / "data") as gateway:
        topic = make_topic(gateway, "Lost", 1)

        def interrupted() -> Iterator[object]:
            yield from record_batches([{"value": b"%d" % n} for n in range(1_000)])
            eventually(lambda: len(read_bodies(gateway.registry, topic)) > 500, "most of it is stored")
            gateway.kill()
            shutil.rmtree(gateway.data)
            gateway.start()
            make_topic(gateway, topic, 1)
            yield from record_batches([{"value": b"%d" % n} for n in range(1_000, 2_000)])

        with pytest.raises(
            SinkOrderError, match=r"does not have what was sent to topic 'Lost' before .* rows from"
        ):
            sink(
                gateway.registry, interrupted(), topic=topic, batchBytes="4096", inFlightBytes="4096",
            )  # type: ignore[arg-type]  # fmt: skip
        assert read_bodies(gateway.registry, topic) == []
        assert gateway.metric("iotmq_broker_out_of_order_batches_total") == 1
