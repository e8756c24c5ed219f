"""Options of format iotmq in a real Spark session: pace, pieces, filters, and columns of MQTT messages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

pytest.importorskip("pyspark")

from gateway_process import ROOT, GatewayProcess
from pyspark.sql import DataFrame, SparkSession, functions

from iotmq.bridge.query_listener import ProgressListener
from iotmq.bridge.spark_session import LOW_LATENCY_OPTIONS
from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

QUEUES = 4
STEP_S = 90.0


class Gateway:
    """A gateway, and a producer for it."""

    def __init__(self, process: GatewayProcess, producer: SyncProducer) -> None:
        self.process = process
        self.address = f"127.0.0.1:{process.ports['registry']}"
        self._producer = producer

    def produce(self, topic: str, first: int, end: int) -> None:
        """Store numbered messages, as many in each queue."""
        for at in range(first, end, 200):
            numbers = range(at, min(at + 200, end))
            self._producer.send_batch(
                [Message(topic, b"%d" % n, tags="even" if n % 2 == 0 else "odd") for n in numbers]
            )

    def options(self, topic: str, **more: str) -> dict[str, str]:
        return {"iotmq.bootstrap.servers": self.address, "subscribe": topic, **more}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(directory / "data", f"broker.default_topic_queues={QUEUES}") as process:
        settings = ClientSettings(registries=(f"127.0.0.1:{process.ports['registry']}",))
        with SyncClient(settings) as client, SyncProducer(client, "readings") as producer:
            yield Gateway(process, producer)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_columns_of_an_mqtt_message(spark: SparkSession, gateway: Gateway) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="pump", protocol=paho.MQTTv5)
    client.connect("127.0.0.1", gateway.process.ports["mqtt"])
    client.loop_start()
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    properties.UserProperty = [("unit", "C"), ("unit", "K")]
    client.publish("devices/pump/t", b"21", qos=1, retain=True, properties=properties).wait_for_publish(20)
    client.publish("devices/pump/t", b"22", qos=1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()
    schema = (
        "value binary, qos int, retain boolean, content_type string, message_id string, timestampType int,"
        " headers array<struct<key: string, value: binary>>"
    )
    options = gateway.options("mqtt", mqttTopicFilter="devices/pump/t")
    frame = spark.read.format("iotmq").schema(schema).options(**options).load()
    first, second = frame.orderBy("value").collect()
    assert (first.qos, first.retain, first.content_type, first.timestampType) == (1, True, "text/plain", 1)
    assert [(header.key, bytes(header.value)) for header in first.headers] == [("unit", b"C"), ("unit", b"K")]
    assert (second.qos, second.retain, second.content_type, second.headers) == (1, False, None, [])
    assert first.message_id != second.message_id
    assert len(first.message_id) == 32
    with_headers = spark.read.format("iotmq").options(**gateway.options("mqtt", includeHeaders="true")).load()
    assert with_headers.where("get(headers, 0).key = 'unit'").count() == 1


def test_the_example_has_means_of_temperatures(
    spark: SparkSession, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    from spark_job import temperatures

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="warm")
    client.connect("127.0.0.1", gateway.process.ports["mqtt"])
    client.loop_start()
    for number in (20, 23):
        payload = b'{"temperature": %d}' % number
        client.publish("devices/warm/telemetry", payload, qos=1).wait_for_publish(20)
    client.publish("devices/warm/telemetry", b"no json", qos=1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()
    query = (
        temperatures(spark, gateway.address)
        .writeStream.outputMode("update")
        .format("memory")
        .queryName("means")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(STEP_S))
    # Both were stored within a minute, so some windows have them both.
    means = {row["mean"] for row in spark.sql("SELECT mean FROM means").collect()}
    assert {20.0, 21.5, 23.0} >= means >= {21.5}
    topics = {row["mqtt_topic"] for row in spark.sql("SELECT mqtt_topic FROM means").collect()}
    assert topics == {"devices/warm/telemetry"}


def test_a_partition_has_no_more_records_than_it_may(spark: SparkSession, gateway: Gateway) -> None:
    gateway.produce("pieces", 0, 1000)
    options = gateway.options("pieces", maxRecordsPerPartition="30")
    frame = spark.read.format("iotmq").options(**options).load()
    sizes = [row["count"] for row in frame.groupBy(functions.spark_partition_id()).count().collect()]
    assert max(sizes) <= 30
    assert numbers(frame) == list(range(1000))


def test_filters_of_a_query_narrow_down_what_is_read(spark: SparkSession, gateway: Gateway) -> None:
    gateway.produce("narrow", 0, 1000)
    options = gateway.options("narrow", pushFilters="true", maxRecordsPerPartition="40")
    everything = spark.read.format("iotmq").options(**gateway.options("narrow")).load().cache()
    where = "partition = 1 AND offset >= 100 AND offset < 120"
    reader = spark.read.format("iotmq").options(**options)
    with pytest.raises(Exception, match="filterPushdown"):
        reader.load().count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = reader.load().where(where)
        assert numbers(frame) == numbers(everything.where(where))
        # Pieces of forty records: of 28 only those with the wanted offsets are left.
        assert frame.rdd.getNumPartitions() <= 2
        middle = everything.where("partition = 2 AND offset = 50").collect()[0].timestamp
        late = f"partition = 2 AND timestamp > TIMESTAMP '{middle}'"
        assert numbers(reader.load().where(late)) == numbers(everything.where(late))
        assert numbers(reader.load().where("value = CAST('7' AS BINARY)")) == [7]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        everything.unpersist()


def test_filters_at_the_broker_leave_out_records_and_are_no_loss(
    spark: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    gateway.produce("filtered", 0, 1000)
    even = list(range(0, 1000, 2))
    for more in ({"tags": "even"}, {"sql": "TAGS = 'even'"}, {"tags": "even || none"}):
        reader = spark.read.format("iotmq").options(**gateway.options("filtered", **more))
        assert numbers(reader.load()) == even
    options = gateway.options("filtered", tags="odd", maxOffsetsPerTrigger="300")
    written = (
        spark.readStream.format("iotmq")
        .options(**options, startingOffsets="earliest")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    assert written.awaitTermination(STEP_S)
    assert written.exception() is None
    assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == list(range(1, 1000, 2))
    # Its offsets are those of all records.
    offsets = json.loads(written.recentProgress[-1]["sources"][0]["endOffset"])["topics"]["filtered"]
    assert sum(offsets.values()) == 1000


def test_a_filter_of_mqtt_topics_is_that_of_mqtt(spark: SparkSession, gateway: Gateway) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="many")
    client.connect("127.0.0.1", gateway.process.ports["mqtt"])
    client.loop_start()
    topics = ("fleet/1/temp", "fleet/2/temp", "fleet/1/2/temp", "fleet/1/hum", "fleet", "fleets/1/temp")
    for topic in topics:
        client.publish(topic, topic.encode(), qos=1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()

    def found(topic_filter: str, **more: str) -> set[str]:
        options = gateway.options("mqtt", mqttTopicFilter=topic_filter, **more)
        frame = spark.read.format("iotmq").schema("mqtt_topic string").options(**options).load()
        return {row.mqtt_topic for row in frame.collect()}

    assert found("fleet/+/temp") == {"fleet/1/temp", "fleet/2/temp"}
    assert found("fleet/#") == {topic for topic in topics if not topic.startswith("fleets")}
    assert found("fleet/+/temp", sql="MQTT_TOPIC CONTAINS '2'") == {"fleet/2/temp"}
    with pytest.raises(Exception, match="mqttTopicFilter is a filter of MQTT such as devices"):
        found("fleet/#/temp")


def test_a_stream_waits_until_enough_has_come_or_it_has_waited_long_enough(
    spark: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    gateway.produce("paced", 0, 20)
    options = gateway.options("paced", minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    lines: list[str] = []
    listener = ProgressListener(lines.append)
    spark.streams.addListener(listener)
    batches: dict[int, list[int]] = {}

    def keep(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = numbers(frame)

    def so_far() -> list[int]:
        return sorted(n for rows in batches.values() for n in rows)

    stream = spark.readStream.format("iotmq").options(**options, **LOW_LATENCY_OPTIONS)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(keep)
        .queryName("paced")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: so_far() == list(range(20)))
        gateway.produce("paced", 20, 60)
        began_s = time.monotonic()
        # Some triggers later they are still waited with.
        wait_until(lambda: time.monotonic() - began_s > 2.0)
        assert so_far() == list(range(20))
        gateway.produce("paced", 60, 120)
        wait_until(lambda: so_far() == list(range(120)))
        assert [len(rows) for rows in batches.values() if rows] == [20, 100]
        wait_until(lambda: len(lines) == 2)
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    assert query.exception() is None
    assert lines[0].startswith("paced: batch 0: 20 rows in ")
    assert lines[1].endswith(" rows/s), nothing left")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + STEP_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.05)
