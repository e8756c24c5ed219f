"""A Spark stream over a replicated broker whose master is killed, hands over and stops while it runs."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import paho.mqtt.client as paho
import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from kill_masters import Change
from pyspark.sql import DataFrame, SparkSession
from replicated_cluster import BROKER, ReplicatedCluster

from iotmq.bridge.offsets import QueueKey, StreamOffset, from_json
from iotmq.bridge.spark_session import LOW_LATENCY_OPTIONS, session
from iotmq.client import ClientSettings, Message, SyncClient, SyncProducer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)"),
]

# Below those that tests take one by one; every file with a cluster has its own.
PORT = 16_200
TOPIC = "telemetry"
# A stream that waits for the answer of a master that has stopped would take this long.
REQUEST_TIMEOUT_MS = 30_000
GOES_ON_S = 15.0


class Readings:
    """A thread that stores numbered readings all the time; what was acknowledged, by number."""

    def __init__(self, producer: SyncProducer) -> None:
        self._producer = producer
        self._is_ending = threading.Event()
        self.acknowledged: list[int] = []
        self.failures: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_ending.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                self._producer.send(Message(TOPIC, b"%d" % number, key=f"device-{number % 8}"))
                self.acknowledged.append(number)
                if self._is_ending.wait(0.01):
                    return
        except Exception as error:
            self.failures.append(error)


class CommandSink:
    """Keep the rows of each batch, so that one done again replaces itself; send a command for each row."""

    def __init__(self, producer: SyncProducer) -> None:
        self._producer = producer
        self.batches: dict[int, list[tuple[int, int, int]]] = {}
        self.read: set[int] = set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = [(row[0], row[1], int(bytes(row[2]))) for row in frame.collect()]
        if rows:
            self._producer.send_batch(
                [
                    Message(
                        "commands",
                        b"%d" % number,
                        key=f"{queue_id}",
                        properties={"MQTT_TOPIC": "devices/pump/commands", "MQTT_QOS": "1"},
                    )
                    for queue_id, _, number in rows
                ]
            )
        self.batches[batch_id] = rows
        self.read.update(number for _, _, number in rows)


class Device:
    """A device that gets the commands."""

    def __init__(self, port: int) -> None:
        self.commands: list[int] = []
        self.disconnects = 0
        self._is_subscribed = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="pump", protocol=paho.MQTTv5)
        self.client.on_message = lambda _c, _d, message: self.commands.append(int(message.payload))
        self.client.on_subscribe = lambda *_: self._is_subscribed.set()
        self.client.on_disconnect = self._on_disconnect
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.client.subscribe("devices/pump/commands", qos=1)
        assert self._is_subscribed.wait(30.0)

    def close(self) -> None:
        self.client.on_disconnect = None
        self.client.disconnect()
        self.client.loop_stop()

    def _on_disconnect(self, *_: object) -> None:
        self.disconnects += 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path / "cluster", port=PORT, front_ends=1) as cluster:
        yield cluster


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    running = session(
        "members", cores=1, profile="low_latency",
        conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
    )  # fmt: skip
    yield running
    running.stop()


def test_a_stream_goes_on_and_reads_each_record_once(
    cluster: ReplicatedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.wait_in_sync()
    device = Device(cluster.mqtt_ports[0])
    settings = ClientSettings(registries=cluster.registries)
    with SyncClient(settings) as client, SyncProducer(client) as producer:
        sink = CommandSink(producer)
        readings = Readings(producer)
        eventually(lambda: readings.acknowledged, "the topic is there")
        query = (
            spark.readStream.format("iotmq")
            .schema("partition int, offset bigint, value binary")
            .options(
                **LOW_LATENCY_OPTIONS,
                **{
                    "iotmq.bootstrap.servers": ",".join(cluster.registries),
                    "subscribe": TOPIC,
                    "startingOffsets": "earliest",
                    "requestTimeoutMs": str(REQUEST_TIMEOUT_MS),
                },
            )
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        eventually(lambda: sink.read, "the stream reads", within_s=60.0)
        for how in ("kill", "hand-over", "stop"):
            cluster.wait_in_sync()
            with Change(cluster, how):
                begun_s = time.monotonic()
                number = readings.acknowledged[-1] + 2
                eventually(
                    lambda number=number: max(sink.read) >= number or query.exception(),
                    f"the stream goes on after: {how}",
                    within_s=GOES_ON_S,
                )
                assert query.exception() is None, query.exception()
                took_ms = (time.monotonic() - begun_s) * 1000
                print(f"{how}: new rows {took_ms:.0f} ms after there was another master")
        readings.end()
        assert readings.failures == []
        last = readings.acknowledged[-1]
        eventually(lambda: set(range(last + 1)) <= sink.read or query.exception(), "all is read")
        eventually(lambda: sink.read <= set(device.commands), "all commands come")
        positions = [
            from_json(json.loads(source["endOffset"]))
            for progress in query.recentProgress
            for source in progress["sources"]
        ]
        query.stop()
    assert query.exception() is None, query.exception()
    rows = [row for batch in sink.batches.values() for row in batch]
    assert len({row[:2] for row in rows}) == len(rows), "no record came twice"
    for queue_id in {row[0] for row in rows}:
        offsets = sorted(row[1] for row in rows if row[0] == queue_id)
        assert offsets == list(range(len(offsets))), "no record was left out"
    check_monotone(positions)
    print(f"{len(rows)} rows in {len(sink.batches)} batches, of {len(sink.read)} readings; ", end="")
    print(f"{len(device.commands)} commands")
    assert device.disconnects == 0
    device.close()


def check_monotone(positions: list[StreamOffset]) -> None:
    assert len(positions) > 2
    for before, after in pairwise(positions):
        for queue_id in range(8):
            key = QueueKey(TOPIC, BROKER, queue_id)
            assert after.offsets.get(key, 0) >= before.offsets.get(key, 0), (before, after)
