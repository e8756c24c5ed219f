"""Spark's source for iotmq beside Spark's own for Kafka: the same job, the same records, the same Spark.

    .venv/bin/python -m benchmarks.spark_beside_kafka [--quick] [--rows 5000000] [--rounds 5]

Records are JSON measurements of about 100 bytes with a key, in 4 queues or partitions. Both brokers and Spark
with two tasks at a time share the machine. Both sides make the same columns, and take turns in each round;
the first round warms up. A ratio is that of the medians, and above 1 iotmq is ahead.

- "batch to noop", "batch, sum(length(value))": one batch read of everything, planning included. The same of
  Parquet files with the same rows, which nobody has to fetch from a broker.
- "stream to Parquet": everything by micro-batches of 1 M rows, each written as Parquet files in foreachBatch.
- "small batch": milliseconds of a micro-batch while 200 records a second come, to noop, with the profile
  low_latency; of Spark's rate source, too, which reads nothing at all.
- "sink": 1 M rows of Parquet files with a key to stored records, by two tasks at a time.

Kafka and the jars of its source come from Maven: python -m benchmarks.peers kafka spark-kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import machine, peers
from benchmarks.peers.native import KAFKA
from benchmarks.peers.spark_kafka import SPARK_KAFKA
from benchmarks.spark_read import QUEUES, TOPIC, filled_gateway
from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
SCHEMA: Final = "key string, value binary, topic string, partition int, offset bigint, timestamp timestamp"
BATCH_ROWS: Final = 1_000_000
SMALL_TOPIC: Final = "small"
SINK_TOPIC: Final = "written"
SMALL_RATE: Final = 200
SMALL_S: Final = 15.0
# Spark has the other libraries that come with these.
_JARS: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
# The part of the batches, from the first on, in which Java still compiles.
_WARM_SHARE: Final = 3
_SINK_ROWS: Final = 1_000_000
IOTMQ, KAFKA_SIDE, PARQUET, RATE = "iotmq", "kafka", "parquet", "rate"
# Smaller is better for these.
TIMES: Final = ("small batch",)


def main(words: Sequence[str] | None = None) -> int:
    """0 when Kafka could be measured, or is not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_beside_kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    rows, rounds = (400_000, 2) if options.quick else (options.rows, options.rounds)
    if len(list(peers.those_there([KAFKA, SPARK_KAFKA]))) < 2:
        return 0
    about = machine.description()
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(
            peers.started(KAFKA, core=None, more=[f"num.partitions={QUEUES}", "num.io.threads=2"])
        )
        address = stack.enter_context(gateway(rows))
        spark = stack.enter_context(spark_with_kafka())
        files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iotmq-beside-kafka-")))
        bench = Bench(spark, address, f"127.0.0.1:{kafka.port}", files)
        bench.fill(rows)
        found: dict[str, dict[str, list[float]]] = {}
        for number in range(rounds + 1):
            for case, sides in bench.cases(rows).items():
                for side, run in sides.items():
                    value = run()
                    if number:
                        found.setdefault(case, {}).setdefault(side, []).append(value)
            print(f"round {number} of {rounds}", flush=True)
        found["small batch"] = bench.small_batches()
    results = {case: compare(case, sides) for case, sides in found.items()}
    machine.save("spark_beside_kafka", {f"{rows} rows": {"machine": about, "cases": results}})
    heads = ["case", "unit", "iotmq", "kafka", "ratio", "parquet or rate"]
    print(machine.table(heads, [row_of(case, result) for case, result in results.items()]))
    return 0


def compare(case: str, sides: dict[str, list[float]]) -> dict[str, Any]:
    """Spreads of all sides, and the ratio of the medians: above 1 iotmq is ahead."""
    medians = {side: median(values) for side, values in sides.items()}
    ratio = medians[IOTMQ] / medians[KAFKA_SIDE]
    return {
        "sides": {side: machine.spread(values) for side, values in sides.items()},
        "ratio": 1 / ratio if case in TIMES else ratio,
    }


def row_of(case: str, result: dict[str, Any]) -> list[str]:
    """One line of the table."""
    digits = 1 if case in TIMES else 0
    sides = {side: f"{spread['median']:,.{digits}f}" for side, spread in result["sides"].items()}
    return [
        *(case, "ms" if case in TIMES else "rows/s", sides[IOTMQ], sides[KAFKA_SIDE]),
        *(f"{result['ratio']:.2f}x", sides.get(PARQUET, sides.get(RATE, ""))),
    ]


@contextlib.contextmanager
def gateway(rows: int) -> Iterator[str]:
    """A registry and a broker with the records, on a disk as Kafka's are; yields the registry's address."""
    with (
        tempfile.TemporaryDirectory(prefix="data-iotmq-", dir=machine.RESULTS) as directory,
        filled_gateway(Path(directory), rows) as address,
    ):
        yield address


@contextlib.contextmanager
def spark_with_kafka() -> Iterator[SparkSession]:
    """A session with both formats."""
    from iotmq.bridge.spark_session import session

    found = sorted(SPARK_KAFKA.find().glob("*.jar"))
    jars = ",".join(str(jar) for jar in found if jar.name.startswith(_JARS))
    conf = {"spark.jars": jars, "spark.driver.memory": "2g"}
    spark = session("spark_beside_kafka", cores=2, profile="low_latency", conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


class Bench:
    """Both sides in one session: how they are read and written."""

    def __init__(self, spark: SparkSession, iotmq: str, kafka: str, files: Path) -> None:
        self._spark = spark
        self._iotmq = iotmq
        self._kafka = kafka
        self._files = files
        self._runs = 0

    def fill(self, rows: int) -> None:
        """Give Kafka, and a directory of Parquet files, the records that the gateway has."""
        frame = self.read(IOTMQ)
        writer = frame.select("key", "value", "partition").write.format("kafka")
        writer.options(**self._options(KAFKA_SIDE, writes=True)).option("topic", TOPIC).save()
        # Sinks of iotmq make no topics.
        with iotmq_producer(self._iotmq) as producer:
            producer.send(Message(SINK_TOPIC, b"x"))
        # Its source does not wait for a topic, as iotmq's does.
        first = frame.limit(1).select("value").write.format("kafka")
        first.options(**self._options(KAFKA_SIDE, writes=True)).option("topic", SMALL_TOPIC).save()
        frame.write.parquet(str(self._files / "rows"))
        some = self._spark.read.parquet(str(self._files / "rows")).limit(_SINK_ROWS)
        some.select("key", "value").repartition(QUEUES).write.parquet(str(self._files / "written"))
        for side in (IOTMQ, KAFKA_SIDE, PARQUET):
            counted = self.read(side).count()
            assert counted == rows, f"{side} has {counted} of {rows} rows"

    def cases(self, rows: int) -> dict[str, dict[str, Callable[[], float]]]:
        """What is measured in each round: rows a second."""

        def rate(run: Callable[[str], None], side: str, count: int = rows) -> Callable[[], float]:
            def measured() -> float:
                began_s = time.perf_counter()
                run(side)
                return count / (time.perf_counter() - began_s)

            return measured

        read_sides = (IOTMQ, KAFKA_SIDE, PARQUET)
        broker_sides = (IOTMQ, KAFKA_SIDE)
        return {
            "batch to noop": {side: rate(self._to_noop, side) for side in read_sides},
            "batch, sum(length(value))": {side: rate(self._to_sum, side) for side in read_sides},
            "stream to Parquet": {side: rate(self._to_parquet, side) for side in broker_sides},
            "sink": {side: rate(self._to_sink, side, min(rows, _SINK_ROWS)) for side in broker_sides},
        }

    def read(self, side: str) -> DataFrame:
        """All rows, in the same columns."""
        if side == PARQUET:
            return self._spark.read.parquet(str(self._files / "rows"))
        reader = self._spark.read.format(side).options(**self._options(side)).option("subscribe", TOPIC)
        return self._same_columns(side, reader)

    def small_batches(self) -> dict[str, list[float]]:
        """Milliseconds of micro-batches with a few records each."""
        found: dict[str, list[float]] = {}
        with self._trickle(IOTMQ):
            found[IOTMQ] = self._batch_times(self._stream(IOTMQ, SMALL_TOPIC, "latest"))
        with self._trickle(KAFKA_SIDE):
            found[KAFKA_SIDE] = self._batch_times(self._stream(KAFKA_SIDE, SMALL_TOPIC, "latest"))
        rate = self._spark.readStream.format("rate").option("rowsPerSecond", SMALL_RATE)
        found[RATE] = self._batch_times(rate.option("numPartitions", 1).load())
        return found

    def _to_noop(self, side: str) -> None:
        self.read(side).write.format("noop").mode("overwrite").save()

    def _to_sum(self, side: str) -> None:
        assert self.read(side).selectExpr("sum(length(value))").collect()[0][0] > 0

    def _to_parquet(self, side: str) -> None:
        target = self._files / f"stream-{side}-{self._runs}"
        self._runs += 1
        writer = self._stream(side, TOPIC, "earliest", maxOffsetsPerTrigger=str(BATCH_ROWS)).writeStream

        def write(frame: DataFrame, batch_id: int) -> None:
            frame.write.mode("overwrite").parquet(str(target / f"batch={batch_id}"))

        query = (
            writer.foreachBatch(write)
            .option("checkpointLocation", str(target) + "-checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _to_sink(self, side: str) -> None:
        rows = self._spark.read.parquet(str(self._files / "written"))
        writer = rows.write.format(side).options(**self._options(side, writes=True))
        writer.option("topic", SINK_TOPIC).mode("append").save()

    def _options(self, side: str, *, writes: bool = False) -> dict[str, str]:
        if side == IOTMQ:
            return {"iotmq.bootstrap.servers": self._iotmq}
        # As many bytes of a partition at a time as the other side takes.
        fetches = {"kafka.max.partition.fetch.bytes": "2097152", "kafka.max.poll.records": "20000"}
        return {"kafka.bootstrap.servers": self._kafka} | ({} if writes else fetches)

    def _stream(self, side: str, topic: str, start: str, **more: str) -> DataFrame:
        from iotmq.bridge.spark_session import LOW_LATENCY_OPTIONS

        reader = self._spark.readStream.format(side).options(**self._options(side), **more)
        reader = reader.option("subscribe", topic).option("startingOffsets", start)
        if side == IOTMQ:
            reader = reader.options(**LOW_LATENCY_OPTIONS)
        return self._same_columns(side, reader)

    @staticmethod
    def _same_columns(side: str, reader: Any) -> DataFrame:
        if side == IOTMQ:
            return reader.schema(SCHEMA).load()
        return reader.load().selectExpr("CAST(key AS STRING) AS key", *COLUMNS[1:])

    def _batch_times(self, frame: DataFrame) -> list[float]:
        self._runs += 1
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(self._files / f"checkpoint-{self._runs}"))
            .start()
        )
        times: dict[int, float] = {}
        deadline_s = time.monotonic() + SMALL_S
        while time.monotonic() < deadline_s:
            failure = query.exception()
            assert failure is None, failure
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    times[progress["batchId"]] = float(progress["durationMs"]["triggerExecution"])
            threading.Event().wait(1.0)
        query.stop()
        every = list(times.values())
        assert every, "no batch of the stream had rows"
        return every[len(every) // _WARM_SHARE :]

    @contextlib.contextmanager
    def _trickle(self, side: str) -> Iterator[None]:
        """Some records a second until the end of the block."""
        if side == KAFKA_SIDE:
            with kafka_trickle(self._kafka):
                yield
            return
        ending = threading.Event()
        thread = threading.Thread(target=iotmq_trickle, args=(self._iotmq, ending), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()


@contextlib.contextmanager
def iotmq_producer(address: str) -> Iterator[SyncProducer]:
    """A producer at the gateway, to the end of the block."""
    settings = ClientSettings(registries=(address,))
    with SyncClient(settings) as client, SyncProducer(client, "beside-kafka") as producer:
        yield producer


def iotmq_trickle(address: str, ending: threading.Event) -> None:
    """Send records to the gateway until told to end."""
    count = SMALL_RATE // 20
    with iotmq_producer(address) as producer:
        while not ending.wait(1 / 20):
            producer.send_batch([Message(SMALL_TOPIC, b"x" * 100) for _ in range(count)])


@contextlib.contextmanager
def kafka_trickle(address: str) -> Iterator[None]:
    """Have Kafka's own program send records until the end of the block."""
    jars = KAFKA.find()
    command = [
        *("java", "-Xmx128m", "-cp", f"{jars}/*", "org.apache.kafka.tools.ProducerPerformance"),
        *("--topic", SMALL_TOPIC, "--num-records", str(10 * SMALL_RATE * int(SMALL_S))),
        *(
            "--record-size",
            "100",
            "--throughput",
            str(SMALL_RATE),
            "--producer-props",
            f"bootstrap.servers={address}",
            "acks=1",
        ),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
