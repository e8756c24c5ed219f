"""The sink in real Spark: batch and stream, and kill -9 of the driver and of Python workers meanwhile.

IOTMQ_SINK_ROWS is how many rows a batch has, and IOTMQ_SINK_KILLS how often the driver is killed; `make test`
has few of both.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from gateway_process import ROOT, GatewayProcess
from log_reader import read_bodies, read_topic, stored_count
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

STEP_S = 90.0
ROWS_PER_BATCH = int(os.environ.get("IOTMQ_SINK_ROWS", "3000"))
KILLS = int(os.environ.get("IOTMQ_SINK_KILLS", "2"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "15"))
STREAM = ROOT / "tests" / "oracles" / "spark_sink_stream.py"
# Batches of a million rows take longer.
LONGER_S = ROWS_PER_BATCH * (KILLS + 1) // 2_000

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240 + LONGER_S)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("spark-sink") / "data") as gateway:
        yield gateway


def make_topic(gateway: GatewayProcess, topic: str) -> str:
    words = ["topic", "create", topic, "--queues", "4", "--registry", gateway.registry]
    subprocess.run([sys.executable, "-m", "iotmq", "admin", *words], check=True, timeout=60)
    return topic


def write(rows: DataFrame, gateway: GatewayProcess, **options: str) -> None:
    given = {"iotmq.bootstrap.servers": gateway.registry, **options}
    rows.write.format("iotmq").options(**given).mode("append").save()


def test_a_batch_a_stream_and_what_spark_says_of_errors(
    gateway: GatewayProcess, spark: SparkSession, tmp_path: Path
) -> None:
    topic = make_topic(gateway, "Written")
    numbers = spark.range(20_000, numPartitions=3).selectExpr(
        "CAST(id AS STRING) value", "CONCAT('k', id % 100) key", "map('n', CAST(id AS STRING)) properties",
        "CONCAT('devices/', id % 10) mqtt_topic", "1 qos", "false retain",
        # Longer than this test may take: what has expired meanwhile is passed over.
        "3600000L ttl_ms",
    )  # fmt: skip
    write(numbers, gateway, topic=topic)
    back = spark.read.format("iotmq").options(
        **{"iotmq.bootstrap.servers": gateway.registry, "subscribe": topic, "includeHeaders": "true"}
    )
    row = back.load().selectExpr(
        "count(*) rows", "count(DISTINCT value) bodies", "count(DISTINCT key, partition) places",
        "count_if(properties['n'] = CAST(value AS STRING)) fitting", "count(DISTINCT mqtt_topic) devices",
    ).first()  # fmt: skip
    assert row is not None
    assert row.asDict() == {"rows": 20_000, "bodies": 20_000, "places": 100, "fitting": 20_000, "devices": 10}

    # The same batch by foreachBatch, twice: known by its name and number.
    again = make_topic(gateway, "Named")
    for _ in range(2):
        write(numbers, gateway, topic=again, producerId="replay", batchId="7")
    assert len(read_bodies(gateway.registry, again)) == 20_000

    for select, options, problem in [
        ("id", {"topic": topic}, "writes no column 'id'"),
        (
            "id value",
            {"topic": topic},
            "column value of writing with format iotmq is binary or string, not bigint",
        ),
        ("'x' value", {}, "needs a broker topic: option topic, or a column topic"),
        ("'x' value", {"topik": topic}, "did you mean topic"),
        ("'x' value", {"topic": "NoSuch"}, "SinkTopicError.*'NoSuch' does not exist"),
        ("CAST(NULL AS STRING) value", {"topic": topic}, "SinkRowError.*row 0: column value is null"),
    ]:
        with pytest.raises(Exception, match=f"(?s){problem}"):
            write(spark.range(3).selectExpr(select), gateway, **options)
    with pytest.raises(Exception, match="only appends"):
        numbers.write.format("iotmq").option("iotmq.bootstrap.servers", gateway.registry).option(
            "topic", topic
        ).mode("overwrite").save()

    # What gives the rows fails in the middle: what came until then must not be taken for all.
    def failing_once(numbers: Iterable[int]) -> Iterator[tuple[str, str]]:
        task = TaskContext.get()
        for at, number in enumerate(numbers):
            if at == 8_000 and task is not None and task.attemptNumber() == 0:
                raise RuntimeError("what gives the rows fails")
            yield str(number), f"k{number % 9}"

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    broken = make_topic(gateway, "BrokenOff")
    rows = spark.sparkContext.parallelize(range(20_000), 2).mapPartitions(failing_once)
    write(spark.createDataFrame(rows, "value string, key string"), gateway, topic=broken)
    assert Counter(read_bodies(gateway.registry, broken)) == Counter(b"%d" % n for n in range(20_000))

    # A device's messages back to the device.
    commands = make_topic(gateway, "Commands")
    query = (
        spark.readStream.format("iotmq")
        .options(
            **{
                "iotmq.bootstrap.servers": gateway.registry,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "7000",
            }
        )
        .load()
        .selectExpr("value", "key", f"'{commands}' topic", "CONCAT(mqtt_topic, '/cmd') mqtt_topic")
        .writeStream.format("iotmq")
        .option("iotmq.bootstrap.servers", gateway.registry)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    kill_a_worker_of(query)
    assert query.awaitTermination(STEP_S)
    found = [message for of_queue in read_topic(gateway.registry, commands).values() for message in of_queue]
    assert Counter(message.body for message in found) == Counter(b"%d" % n for n in range(20_000))
    assert all(message.properties["MQTT_TOPIC"].endswith("/cmd") for message in found)


def kill_a_worker_of(query: StreamingQuery) -> None:
    """Kill -9 of a Python worker that runs a task, if one can be caught at it."""
    eventually(lambda: query.lastProgress or not query.isActive, "the first batch", within_s=STEP_S)
    for pid in children_of(os.getpid()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            daemon = Path(f"/proc/{parent}/cmdline").read_bytes()
            if b"pyspark.daemon" in words and b"pyspark.daemon" in daemon:
                os.kill(pid, signal.SIGKILL)
                return


def children_of(root: int) -> list[int]:
    """All processes below one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {root})


@pytest.mark.spark_long
def test_a_stream_whose_driver_is_killed_stores_each_row_once(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Kill -9 of driver, Java and all workers at random moments; the checkpoint goes on."""
    topic = make_topic(gateway, "Streamed")
    random_ = random.Random(SEED)
    told = -1
    for kill in range(KILLS + 1):
        is_last = kill == KILLS
        process = subprocess.Popen(
            [
                sys.executable, str(STREAM), gateway.registry, topic, str(tmp_path / "checkpoint"),
                str(ROWS_PER_BATCH), str(told + 3 if is_last else 1 << 30),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        wanted = told + 1 + random_.randrange(3)
        try:
            for line in process.stdout:
                assert not line.startswith("failed"), line
                told = int(line)
                if not is_last and told >= wanted:
                    # Somewhere in the middle of the next one.
                    stored = stored_count(gateway.registry, topic)
                    eventually(
                        lambda stored=stored: stored_count(gateway.registry, topic) > stored,  # type: ignore[misc]
                        "rows of the next batch",
                    )
                    break
            if is_last:
                assert process.wait(STEP_S + LONGER_S) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
    found = Counter(read_bodies(gateway.registry, topic))
    assert set(found.values()) == {1}, [body for body, count in found.items() if count > 1][:10]
    # Batches are whole up to the last one, and no row is from nowhere.
    complete = (told + 1) * ROWS_PER_BATCH
    assert {int(body) for body in found} >= set(range(complete))
    assert len(found) < complete + 2 * ROWS_PER_BATCH
    print(f"{len(found):,} rows stored once in batches of {ROWS_PER_BATCH:,}; {KILLS} kills")
