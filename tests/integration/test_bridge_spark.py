"""Format iotmq in a real Spark session, over a real registry, broker and store."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from gateway_process import free_ports
from kill_masters import Change
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from replicated_cluster import BROKER, ReplicatedCluster
from shared_spark import CONF
from spark_over_members import TOPIC as READINGS_TOPIC
from spark_over_members import CommandSink, Device, Readings

from iotmq.bridge.jobs.readings import SOURCE_SCHEMA, device_readings
from iotmq.bridge.jobs.telemetry_windows import window_statistics
from iotmq.bridge.jobs.windows_table import render_rows, shown_rows
from iotmq.bridge.offsets import QueueKey, StreamOffset, from_json
from iotmq.bridge.spark_session import LOW_LATENCY_OPTIONS
from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.client import SyncClient, SyncProducer
from iotmq.client.admin.changes import AdminChanges
from iotmq.client.admin.queue_scaling import QueueScaling
from iotmq.client.client import IotmqClient
from iotmq.client.transport.settings import ClientSettings
from iotmq.message.properties import KEYS, MQTT_CLIENT_ID, MQTT_TOPIC, TAGS, encode_properties
from iotmq.message.records.record import encode_batch
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

QUEUES = 4
STEP_S = 90.0
# A stream that waits for the answer of a master that has stopped would take this long.
REQUEST_TIMEOUT_MS = 30_000
GOES_ON_S = 25.0
Result = TypeVar("Result")


class Gateway:
    """Registry and broker in a thread with a loop of its own; the broker can be stopped and started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._registry = Registry(RegistrySettings(listen_port=0))
        self._call(self._registry.start())
        self.address = f"127.0.0.1:{self._registry.port}"
        self._port = 0
        self.start_broker()

    def start_broker(self) -> None:
        settings = BrokerSettings(
            listen_port=self._port,
            registries=(self.address,),
            default_topic_queues=QUEUES,
            registration_interval_s=0.5,
        )
        self._host = resolve_store_host(settings)
        self._store = Store.open(
            self._directory, StoreSettings(segment_bytes=64 * 1024 * 1024), store_host=self._host
        )
        self._broker = Broker(settings, self._store, directory=self._directory, store_host=self._host)
        self._call(self._broker.start())
        self._port = self._broker.port

    def stop_broker(self) -> None:
        self._call(self._broker.stop())
        self._store.close()

    def stop(self) -> None:
        self.stop_broker()
        self._call(self._registry.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def create(self, topic: str) -> None:
        """Make a topic and wait until clients can find it."""
        self._call(self._create(topic))
        deadline_s = time.monotonic() + 10
        while topic not in self._known_topics():
            assert time.monotonic() < deadline_s, f"{topic} does not reach the registry"
            threading.Event().wait(0.02)

    def produce(self, topic: str, queue_id: int, elements: list[tuple[bytes, dict[str, str]]]) -> None:
        """Store messages in one queue."""
        batch = encode_batch([(body, encode_properties(properties), 0) for body, properties in elements])
        self._call(self._append(topic, queue_id, batch))

    def shrink(self, topic: str, queue_count: int) -> None:
        """Remove the last queues of a topic, whatever is in them, and wait until its route says so."""
        self._call(self._shrink(topic, queue_count))
        self._wait_for_route(topic, queue_count)

    def progress(self, group: str, topic: str) -> dict[int, int]:
        """What a group has committed in the queues that a topic has."""

        async def look() -> dict[int, int]:
            config = self._broker.topics.find(topic)
            assert config is not None
            committed = self._broker.offsets.of_topic(group, topic)
            return {n: committed[n] for n in range(config.read_queue_nums) if n in committed}

        return self._call(look())

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until nobody can find it."""
        self._call(self._delete(topic))
        self._wait_for_route(topic, 0)

    async def _shrink(self, topic: str, queue_count: int) -> None:
        async with IotmqClient(ClientSettings(registries=(self.address,))) as client:
            scaling = QueueScaling(client)
            await scaling.freeze(topic, range(queue_count, QUEUES))
            await scaling.remove(topic, queue_count, is_forced=True)

    async def _delete(self, topic: str) -> None:
        async with IotmqClient(ClientSettings(registries=(self.address,))) as client:
            await AdminChanges(client).delete_topic(topic)

    def _wait_for_route(self, topic: str, queue_count: int) -> None:
        deadline_s = time.monotonic() + STEP_S
        while True:
            route = self._registry.routes.route(topic)
            there = sum(queues.read_queue_count for _, queues in route.queues) if route else 0
            if there == queue_count:
                return
            assert time.monotonic() < deadline_s, f"{topic} has no {queue_count} queues"
            threading.Event().wait(0.02)

    async def _create(self, topic: str) -> None:
        self._broker.writer.queue_count(topic, create=True)

    async def _append(self, topic: str, queue_id: int, batch: bytes) -> None:
        stored: list[StoredBatch | RefusedBatch] = []
        self._broker.writer.append(
            topic, queue_id, batch, born_timestamp_ms=now_ms(), born_host=self._host, done=stored.append
        )
        assert isinstance(stored[0], StoredBatch), stored[0]

    def _known_topics(self) -> list[str]:
        from iotmq.bridge.cluster import Cluster, Retry

        host, _, port = self.address.partition(":")
        cluster = Cluster(((host, int(port)),), request_timeout_s=5, retry=Retry(5))
        try:
            return cluster.topics()
        finally:
            cluster.close()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    started = Gateway(tmp_path_factory.mktemp("gateway"))
    yield started
    started.stop()


@pytest.fixture
def topic(gateway: Gateway, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").strip("]")[:100]
    gateway.create(name)
    return name


def numbered(queue_id: int, start: int, end: int) -> list[tuple[bytes, dict[str, str]]]:
    return [
        (b"%d/%d" % (queue_id, n), {KEYS: f"k{n}", MQTT_TOPIC: f"a/{n}", MQTT_CLIENT_ID: "c", TAGS: "x"})
        for n in range(start, end)
    ]


def options(gateway: Gateway, topic: str, **more: str) -> dict[str, str]:
    return {"iotmq.bootstrap.servers": gateway.address, "subscribe": topic, "retryTimeoutMs": "30000", **more}


class Collected:
    """A sink that keeps rows by batch, so that a batch done again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int, str]]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset", "value").collect()
        self.batches[batch_id] = [(row[0], row[1], bytes(row[2]).decode()) for row in rows]

    @property
    def rows(self) -> list[tuple[int, int, str]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def expected(*queues: tuple[int, int, int]) -> list[tuple[int, int, str]]:
    return sorted((q, n, f"{q}/{n}") for q, start, end in queues for n in range(start, end))


def start(
    spark: SparkSession, source: dict[str, str], sink: Collected, checkpoint: Path, *, available_now: bool
) -> StreamingQuery:
    frame = spark.readStream.format("iotmq").options(**source).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="100 milliseconds").start()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(STEP_S), "the query does not end"


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline_s = time.monotonic() + STEP_S
    while not condition():
        failure = query.exception()
        assert failure is None, failure
        assert time.monotonic() < deadline_s, query.lastProgress
        threading.Event().wait(0.05)


def test_a_batch_has_every_record_once(spark: SparkSession, gateway: Gateway, topic: str) -> None:
    for queue_id, count in enumerate((1000, 0, 1, 2500)):
        if count:
            gateway.produce(topic, queue_id, numbered(queue_id, 0, count))
    frame = spark.read.format("iotmq").options(**options(gateway, topic)).load()
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.collect()
    assert sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows) == expected(
        (0, 0, 1000), (2, 0, 1), (3, 0, 2500)
    )
    row = next(row for row in rows if row.partition == 3 and row.offset == 17)
    assert (row.key, row.topic, row.mqtt_topic, row.client_id, row.tags) == ("k17", topic, "a/17", "c", "x")
    # Spark gives naive local times to Python.
    assert abs(row.timestamp.timestamp() * 1000 - now_ms()) < 120_000
    by_sql = frame.where("partition = 0").selectExpr("sum(offset)").collect()
    assert by_sql[0][0] == 999 * 1000 // 2


def test_headers_projection_and_ranges(spark: SparkSession, gateway: Gateway, topic: str) -> None:
    gateway.produce(topic, 1, numbered(1, 0, 100))
    reader = spark.read.format("iotmq").options(
        **options(gateway, topic, startingOffsets=f'{{"{topic}": {{"0": 0, "1": 40, "2": 0, "3": -2}}}}')
    )
    frame = reader.schema("properties map<string, string>, broker string, offset bigint").load()
    rows = frame.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(40, 100))
    assert rows[0].broker == "broker-a"
    assert rows[0].properties[MQTT_TOPIC] == "a/40"
    assert frame.where("element_at(properties, 'TAGS') = 'x'").count() == 60


def first_lines(error: BaseException) -> str:
    """What is read before the eye is tired."""
    return "\n".join(str(error).splitlines()[:5])


def test_wrong_options_and_topics_reach_the_user_by_name(spark: SparkSession, gateway: Gateway) -> None:
    reader = spark.read.format("iotmq")
    with pytest.raises(PySparkException) as caught:
        reader.options(**options(gateway, "x", failOnDataLos="false")).load().count()
    assert "ConfigError: unknown option 'failondatalos'" in first_lines(caught.value)
    assert "did you mean failOnDataLoss" in first_lines(caught.value)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("iotmq").options(**options(gateway, "no-such-topic")).load().count()
    assert "TopicMissingError: topic 'no-such-topic' does not exist" in first_lines(caught.value)


def test_nothing_to_read_is_no_rows(spark: SparkSession, gateway: Gateway, topic: str) -> None:
    assert spark.read.format("iotmq").options(**options(gateway, topic)).load().count() == 0
    pattern = {"iotmq.bootstrap.servers": gateway.address, "subscribePattern": "no-such-.*"}
    assert spark.read.format("iotmq").options(**pattern).load().count() == 0


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, gateway: Gateway, topic: str, tmp_path: Path
) -> None:
    gateway.produce(topic, 0, numbered(0, 0, 500))
    gateway.produce(topic, 3, numbered(3, 0, 20))
    source = options(gateway, topic, startingOffsets="earliest", maxOffsetsPerTrigger="200")
    sink = Collected()
    finish(start(spark, source, sink, tmp_path / "checkpoint", available_now=True))
    assert sink.rows == expected((0, 0, 500), (3, 0, 20))
    assert [len(rows) for _, rows in sorted(sink.batches.items())] == [200, 200, 120]
    gateway.produce(topic, 0, numbered(0, 500, 510))
    gateway.produce(topic, 1, numbered(1, 0, 5))
    finish(start(spark, source, sink, tmp_path / "checkpoint", available_now=True))
    assert sink.rows == expected((0, 0, 510), (1, 0, 5), (3, 0, 20))
    assert len(sink.batches) == 4


def test_a_running_stream_from_latest_survives_a_broker_restart_and_its_own(
    spark: SparkSession, gateway: Gateway, topic: str, tmp_path: Path
) -> None:
    gateway.produce(topic, 0, numbered(0, 0, 30))
    source = options(gateway, topic, **LOW_LATENCY_OPTIONS)
    sink = Collected()
    query = start(spark, source, sink, tmp_path / "checkpoint", available_now=False)
    try:
        wait_until(lambda: 0 in sink.batches, query)  # the start is pinned
        assert sink.rows == []
        gateway.produce(topic, 0, numbered(0, 30, 60))
        gateway.produce(topic, 2, numbered(2, 0, 7))
        wait_until(lambda: len(sink.rows) == 37, query)
        gateway.stop_broker()
        gateway.start_broker()
        gateway.produce(topic, 1, numbered(1, 0, 9))
        wait_until(lambda: len(sink.rows) == 46, query)
    finally:
        query.stop()
    gateway.produce(topic, 1, numbered(1, 9, 12))
    finish(start(spark, source, sink, tmp_path / "checkpoint", available_now=True))
    assert sink.rows == expected((0, 30, 60), (1, 0, 12), (2, 0, 7))


def test_a_stream_goes_on_over_expired_records_a_removed_queue_and_a_deleted_topic(
    spark: SparkSession, gateway: Gateway, topic: str, tmp_path: Path
) -> None:
    other = topic + "-other"
    gateway.create(other)
    short = [(body, {**properties, "MSG_TTL_MS": "1"}) for body, properties in numbered(0, 5, 10)]
    gateway.produce(topic, 0, [*numbered(0, 0, 5), *short, *numbered(0, 10, 20)])
    gateway.produce(topic, 3, numbered(3, 0, 5))
    gateway.produce(other, 1, numbered(1, 0, 3))
    expired_ms = now_ms() + 1
    while now_ms() <= expired_ms:
        threading.Event().wait(0.001)
    source = options(gateway, f"{topic},{other}", startingOffsets="earliest")
    sink = Collected()
    query = start(spark, source, sink, tmp_path / "checkpoint", available_now=False)
    try:
        read = (0, 0, 5), (0, 10, 20), (1, 0, 3), (3, 0, 5)
        wait_until(lambda: sink.rows == expected(*read), query)
        gateway.shrink(topic, QUEUES - 1)
        gateway.delete(other)
        gateway.produce(topic, 0, numbered(0, 20, 22))
        wait_until(lambda: len(sink.rows) == 25, query)

        def position() -> StreamOffset:
            return from_json(json.loads(query.lastProgress["sources"][0]["endOffset"]))

        # The records can come a batch before the word that the queue is gone.
        wait_until(lambda: QueueKey(topic, "broker-a", 3) in position().left, query)
        stream_id = position().stream_id
    finally:
        query.stop()
    gateway.produce(topic, 2, numbered(2, 0, 2))
    finish(start(spark, source, sink, tmp_path / "checkpoint", available_now=True))
    assert sink.rows == expected((0, 0, 5), (0, 10, 22), (1, 0, 3), (2, 0, 2), (3, 0, 5))
    # It counts as a consumer of what it reads, a batch late.
    group = f"iotmq-spark-{stream_id}"
    assert gateway.progress(group, topic) == {0: 22, 1: 0, 2: 0}


def test_a_broker_that_is_away_is_waited_for_and_never_left_out(
    spark: SparkSession, gateway: Gateway, topic: str, tmp_path: Path
) -> None:
    gateway.produce(topic, 0, numbered(0, 0, 20))
    source = options(gateway, topic, startingOffsets="earliest")
    failing = Collected()

    def fail(frame: DataFrame, batch_id: int) -> None:
        raise RuntimeError("the sink is not there")

    query = start(spark, source, fail, tmp_path / "checkpoint", available_now=False)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="the sink is not there"):
        query.awaitTermination(STEP_S)
    gateway.stop_broker()
    away = options(gateway, topic, retryTimeoutMs="300")
    with pytest.raises(Exception, match=r"broker broker-a of topic .* is away"):
        spark.read.format("iotmq").options(**away).load().count()
    # The batch that was interrupted is planned while nobody knows where its broker is.
    again = start(spark, source, failing, tmp_path / "checkpoint", available_now=False)
    try:
        threading.Timer(3.0, gateway.start_broker).start()
        wait_until(lambda: failing.rows == expected((0, 0, 20)), again)
    finally:
        again.stop()


KILLED_STREAM = """
import json
import sys
from iotmq.bridge.offsets import QueueKey, StreamOffset, from_json
from iotmq.bridge.spark_session import session
address, topic, directory, conf = sys.argv[1:]
spark = session("killed", cores=1, profile="low_latency", conf=json.loads(conf))
rows = (spark.readStream.format("iotmq").option("iotmq.bootstrap.servers", address)
        .option("subscribe", topic).option("startingOffsets", "earliest").load())
rows.writeStream.format("parquet").option("checkpointLocation", directory + "/checkpoint").trigger(
    processingTime="0 seconds").start(directory + "/out").awaitTermination()
"""


@pytest.mark.crash
def test_a_killed_stream_has_every_record_once_after_its_restart(
    spark: SparkSession, gateway: Gateway, topic: str, tmp_path: Path
) -> None:
    gateway.produce(topic, 0, numbered(0, 0, 50))
    words = ["-c", KILLED_STREAM, gateway.address, topic, str(tmp_path), json.dumps(CONF)]
    victim = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        # Killed while batches are under way: after three of them are committed, with more coming in.
        end = 50
        deadline_s = time.monotonic() + STEP_S
        while not (tmp_path / "checkpoint" / "commits" / "3").exists():
            assert victim.poll() is None
            assert time.monotonic() < deadline_s
            gateway.produce(topic, 0, numbered(0, end, end + 5))
            end += 5
            threading.Event().wait(0.02)
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    gateway.produce(topic, 1, numbered(1, 0, 5))
    query = (
        spark.readStream.format("iotmq")
        .options(**options(gateway, topic, startingOffsets="earliest"))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    finish(query)
    rows = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset", "value").collect()
    assert sorted((row[0], row[1], bytes(row[2]).decode()) for row in rows) == expected(
        (0, 0, end), (1, 0, 5)
    )


PAYLOADS: list[tuple[str, list[tuple[str, float, str]]]] = [
    ('{"cpu_percent": 3.2}', [("cpu_percent", 3.2, "12:00:00")]),
    (
        '{"ts": 1767268790.5, "metrics": {"cpu": 1, "text": "9", "deep": {"a": 1}}}',
        [("cpu", 1.0, "11:59:50")],
    ),
    ('{"ts": 1767268790500, "a": -1e3}', [("a", -1000.0, "11:59:50")]),
    ('{"time": "2026-01-01T11:58:00Z", "a": 1}', [("a", 1.0, "11:58:00")]),
    (
        '{"disk": {"read": 5, "write": 7.5e3}}',
        [("disk.read", 5.0, "12:00:00"), ("disk.write", 7500.0, "12:00:00")],
    ),
    ('{"ts": null, "time": "2026-01-01T11:58:00Z", "a": 1}', [("a", 1.0, "11:58:00")]),
    ('{"ts": null, "timestamp": null, "a": 1}', [("a", 1.0, "12:00:00")]),
    ('{"ts": 5, "a": 1}', [("a", 1.0, "12:00:00")]),
    ('{"ts": 9e99, "a": 1}', [("a", 1.0, "12:00:00")]),
    ('{"ts": 1867268700, "a": 1}', [("a", 1.0, "12:00:00")]),
    ('{"ok": true, "text": "5", "none": null, "list": [1, 2]}', []),
    ("[1, 2]", []),
    ("5", []),
    ("no json", []),
    ('{"x": 1, "x": 2}', []),
    ("{}", []),
    ("", []),
]


def test_readings_of_every_kind_of_payload(spark: SparkSession) -> None:
    stored = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rows = [(f"{n}", body.encode(), stored, None, None) for n, (body, _) in enumerate(PAYLOADS)] + [
        (None, None, stored, "a/b", "c"),
        ("bad", b"\xff{", stored, "a/b", "c"),
    ]
    readings = device_readings(spark.createDataFrame(rows, SOURCE_SCHEMA), device_level=2)
    found = readings.selectExpr(
        "device", "metric", "reading", "date_format(event_time, 'HH:mm:ss') AS at"
    ).collect()
    assert sorted((row.device, row.metric, row.reading, row.at) for row in found) == sorted(
        (f"{n}", *reading) for n, (_, readings) in enumerate(PAYLOADS) for reading in readings
    )


def test_devices_and_statistics_of_windows(spark: SparkSession) -> None:
    at = [datetime(2026, 1, 1, 12, 0, second, tzinfo=UTC) for second in (5, 15, 45)]
    rows = [
        ("k", b'{"t": 1}', at[0], "devices/d1/telemetry", "c"),
        ("k", b'{"t": 3}', at[2], "devices/d1/telemetry", "c"),
        ("k", b'{"t": 2}', at[1], "devices/d1/telemetry", "c"),
        ("k", b'{"t": 7}', at[0], "devices//telemetry", "c"),
        (None, b'{"t": 8}', at[0], "devices", "c"),
        (None, b'{"t": 9}', at[0], None, None),
    ]
    readings = device_readings(spark.createDataFrame(rows, SOURCE_SCHEMA), device_level=2)
    statistics = window_statistics(readings, window="1 minute", slide="1 minute")
    found = {row.device: row for row in statistics.collect()}
    assert set(found) == {"d1", "k", "c", "unknown"}
    one = found["d1"]
    assert (one["count"], one["mean"], one["min"], one["max"], one["stddev"], one["last"]) == (
        3,
        2,
        1,
        3,
        1,
        3,
    )
    assert found["k"]["stddev"] is None
    text = render_rows(shown_rows(statistics, 2), 4)
    assert "12:00:00-12:01:00  c" in text
    assert text.endswith("... and 2 more")


def test_the_job_reads_everything_until_it_is_told_to_end(
    spark: SparkSession, gateway: Gateway, topic: str, tmp_path: Path
) -> None:
    began_s = time.time()

    def measured(queue_id: int, count: int, seconds_ago: float) -> list[tuple[bytes, dict[str, str]]]:
        at = began_s - seconds_ago
        return [
            (
                json.dumps({"ts": at, "metrics": {"load": float(n)}}).encode(),
                {KEYS: f"k{queue_id}", MQTT_TOPIC: f"devices/d{queue_id}/telemetry"},
            )
            for n in range(count)
        ]

    for queue_id in range(QUEUES):
        gateway.produce(topic, queue_id, measured(queue_id, 100, 600))
    report = tmp_path / "report.json"
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "iotmq.bridge.jobs.device_statistics"),
            *("--bootstrap", gateway.address, "--topic", topic, "--cores", "1"),
            *(word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")),
            *("--checkpoint", str(tmp_path / "checkpoint"), "--parquet", str(tmp_path / "out")),
            *("--slide", "1 minute", "--trigger", "500 milliseconds", "--console", "--report", str(report)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # The first windows are complete once later records have been read.
        assert job.stdout is not None
        gateway.produce(topic, 0, measured(0, 10, 0))
        first = job.stdout.readline()
        assert "window (UTC)" in first, job.stderr.read() if job.stderr and job.poll() is not None else first
        gateway.produce(topic, 1, measured(1, 17, 0))
        # As Ctrl-C does: the whole foreground process group is told.
        os.killpg(job.pid, signal.SIGINT)
        rest, errors = job.communicate(timeout=STEP_S)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert job.returncode == 0, errors
    assert "Exception" not in errors
    assert "427 rows read" in rest
    found = json.loads(report.read_text())
    assert (found["rows_read"], found["ended"], found["error"]) == (427, "caught up", None)
    ends = found["offsets"]["topics"][topic]
    assert sum(ends.values()) == 427
    written = spark.read.parquet(str(tmp_path / "out")).collect()
    assert len(written) == found["windows_written"] == QUEUES
    assert {row.device for row in written} == {f"d{n}" for n in range(QUEUES)}
    assert {row["count"] for row in written} == {100}
    assert {row["last"] for row in written} <= {float(n) for n in range(100)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path / "cluster", port=free_ports(), front_ends=1) as cluster:
        yield cluster


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (tools/setup.sh dev)")
def test_a_stream_goes_on_when_the_master_changes_and_reads_each_record_once(
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
                    "subscribe": READINGS_TOPIC,
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
            key = QueueKey(READINGS_TOPIC, BROKER, queue_id)
            assert after.offsets.get(key, 0) >= before.offsets.get(key, 0), (before, after)
