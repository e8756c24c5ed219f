"""Spark writing rows to a topic of 4 queues, on local[2], broker on the same machine.

    .venv/bin/python -m benchmarks.spark_write [--quick] [--rows 2000000] [--rounds 5]
        [--beside FORMAT --option NAME=VALUE ...] [--packages COORDINATES]

A gateway of its own (registry, broker and store in a child process) takes JSON measurements of about 100
bytes with keys, made by Spark itself. "batch" is the time of one write, planning included; "without keys" has
the queues by turn; "micro-batches" are those of a stream of the same rows from Parquet, from the start of the
query to its end; "noop" makes the rows and drops them. `--beside` measures another format in the same rounds,
with the columns key and value and the options named: Spark's Kafka sink, say. The cases alternate within each
round. "CPU s" is the processor time of all processes, broker included, per million rows. What was stored is
counted. The mark is 400,000 rows/s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import machine
from benchmarks.spark_read import TOPIC, filled_gateway, processor_seconds, rates_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARK_ROWS_PER_S: Final = 400_000
PARTITIONS: Final = 4
VALUE: Final = """CONCAT(
    '{"ts": 1700000000.', id, ', "metrics": {"cpu_percent": ', id % 100, '.5, "memory_bytes": ', id * 4096,
    ', "temperature": 21.', id % 1000, '}}') AS value"""
KEY: Final = "CONCAT('device-', id % 100) AS key"


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_write", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", metavar="FORMAT", default="", help="measure another sink, too")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="for that sink")
    parser.add_argument("--packages", default="", help="Maven coordinates of that sink")
    options = parser.parse_args(words)
    rows, rounds = (400_000, 3) if options.quick else (options.rows, options.rounds)
    beside = dict(each.partition("=")[::2] for each in options.option)
    conf = {"spark.jars.packages": options.packages} if options.packages else {}
    with (
        tempfile.TemporaryDirectory(prefix="iotmq-spark-write-") as directory,
        filled_gateway(Path(directory, "data"), 0) as address,
    ):
        sinks = Sinks(address, Path(directory), rows, beside_format=options.beside, beside=beside)
        rates, processor_s = measure(sinks, conf, rounds)
    results = {name: machine.spread(values) for name, values in rates.items()}
    print(rates_table("sink", results, processor_s))
    machine.save(
        "spark_write",
        {f"{rows} rows": {"machine": machine.description(), "rows_per_s": results, "cpu_s": processor_s}},
    )
    reached = results["batch"]["median"] >= MARK_ROWS_PER_S
    print(f"mark of {MARK_ROWS_PER_S:,} rows/s: {'reached' if reached else 'missed'}")
    return 0 if reached or options.quick else 1


class Sinks:
    """Where rows are written, each case a call that takes the session and returns its seconds."""

    def __init__(
        self, address: str, directory: Path, rows: int, *, beside_format: str = "", beside: dict[str, str]
    ) -> None:
        self._options = {"iotmq.bootstrap.servers": address, "topic": TOPIC}
        self._directory = directory
        self._beside_format = beside_format
        self._beside = beside
        self.rows = rows
        self.written = 0

    def cases(self) -> dict[str, Callable[[SparkSession], float]]:
        """Return the cases by their names."""
        found: dict[str, Callable[[SparkSession], float]] = {
            "noop": lambda spark: self._batch(self._made(spark, KEY, VALUE), "noop", {}),
            "batch": lambda spark: self._sink(self._made(spark, KEY, VALUE)),
            "batch without keys": lambda spark: self._sink(self._made(spark, VALUE)),
            "micro-batches": self._stream,
        }
        if self._beside_format:
            found[self._beside_format] = lambda spark: self._batch(
                self._made(spark, KEY, VALUE), self._beside_format, self._beside
            )
        return found

    def prepare(self, spark: SparkSession) -> None:
        """Write the files that the stream reads."""
        self._made(spark, KEY, VALUE).write.parquet(str(self._directory / "rows"))

    def check(self, spark: SparkSession) -> None:
        """Count what the broker has."""
        given = {"iotmq.bootstrap.servers": self._options["iotmq.bootstrap.servers"], "subscribe": TOPIC}
        stored = spark.read.format("iotmq").schema("offset bigint").options(**given).load().count()
        assert stored == self.written, f"{stored} of {self.written} rows are stored"

    def _made(self, spark: SparkSession, *columns: str) -> DataFrame:
        return spark.range(self.rows, numPartitions=PARTITIONS).selectExpr(*columns)

    def _sink(self, frame: DataFrame) -> float:
        self.written += self.rows
        return self._batch(frame, "iotmq", self._options)

    def _batch(self, frame: DataFrame, name: str, options: dict[str, str]) -> float:
        mode = "overwrite" if name == "noop" else "append"
        started_s = time.perf_counter()
        frame.write.format(name).options(**options).mode(mode).save()
        return time.perf_counter() - started_s

    def _stream(self, spark: SparkSession) -> float:
        self.written += self.rows
        rows = spark.readStream.schema("key string, value string").parquet(str(self._directory / "rows"))
        with tempfile.TemporaryDirectory(prefix="iotmq-checkpoint-") as checkpoint:
            started_s = time.perf_counter()
            rows.writeStream.format("iotmq").options(**self._options).option(
                "checkpointLocation", checkpoint
            ).trigger(availableNow=True).start().awaitTermination()
            return time.perf_counter() - started_s


def measure(
    sinks: Sinks, conf: dict[str, str], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Rows per second and processor seconds per million rows of each case and round, after a warm-up."""
    from iotmq.bridge.spark_session import session

    spark = session("spark_write benchmark", cores=2, conf=conf)
    try:
        sinks.prepare(spark)
        cases = sinks.cases()
        rates: dict[str, list[float]] = {name: [] for name in cases}
        processor_s: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(rounds + 1):
            for name, case in cases.items():
                before_s = processor_seconds(os.getpid())
                took_s = case(spark)
                if number:  # the first round warms up
                    rates[name].append(sinks.rows / took_s)
                    processor_s[name].append((processor_seconds(os.getpid()) - before_s) * 1e6 / sinks.rows)
        sinks.check(spark)
        return rates, processor_s
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
