"""Spark reading stored records: 1 M of them from 4 queues, on local[2], broker on the same machine.

    .venv/bin/python -m benchmarks.spark_read [--quick] [--rows 1000000] [--rounds 5] [--pull-bytes N]

A gateway of its own (registry, broker and store in a child process) is filled with JSON measurements as
an MQTT front end stores them, then read in one batch per round into Spark's noop sink. "batch" is the
time from the start of the query to its end, planning included; "micro-batch" is what Spark reports for a
streaming batch of all rows; "files" reads the log's files in place of asking the broker, "files, one core"
with one task at a time. The cases alternate within each round. "CPU s" is the processor time of all
processes, broker included, per million rows: on a machine with other work it says more than rows/s.
The mark is 1 M rows/s for the default columns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks import machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK_ROWS_PER_S: Final = 1_000_000
TOPIC: Final = "telemetry"
QUEUES: Final = 4
BATCH_ROWS: Final = 2_000
ONE_CORE: Final = "files, one core"

# What a reader asks for; None is the default schema.
CASES: Final[dict[str, str | None]] = {
    "default columns": None,
    "value, offset": "value binary, offset bigint",
    "job columns": "key string, value binary, timestamp timestamp, mqtt_topic string, client_id string",
}


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_read", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pull-bytes", type=int, default=0, help="option pullBytes (default: the source's)")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.serve:
        asyncio.run(serve(Path(options.serve), options.rows))
        return 0
    rows, rounds = (200_000, 3) if options.quick else (options.rows, options.rounds)
    with (
        tempfile.TemporaryDirectory(prefix="iotmq-spark-read-") as directory,
        filled_gateway(Path(directory), rows) as address,
    ):
        rates, processor_s = measure(address, Path(directory), rows, rounds, options.pull_bytes)
    results = {name: machine.spread(values) for name, values in rates.items()}
    print(rates_table("columns", results, processor_s))
    machine.save(
        "spark_read",
        {
            f"batch of {rows} rows": {
                "machine": machine.description(),
                "rows_per_s": results,
                "cpu_s": processor_s,
            }
        },
    )
    reached = results["default columns"]["median"] >= MARK_ROWS_PER_S
    print(f"mark of {MARK_ROWS_PER_S:,} rows/s: {'reached' if reached else 'missed'}")
    return 0 if reached or options.quick else 1


@contextlib.contextmanager
def filled_gateway(directory: Path, rows: int) -> Iterator[str]:
    """A gateway with so many records in a process of its own; yields the address of its registry."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.spark_read", "--serve", str(directory), "--rows", str(rows)],
        cwd=machine.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the gateway did not start")
        yield address
        process.stdin.close()
        process.wait(10)
    finally:
        process.kill()
        process.wait()


def rates_table(first: str, results: dict[str, dict[str, float]], processor_s: dict[str, list[float]]) -> str:
    """Rows a second of each case, and processor seconds per million rows."""
    return machine.table(
        [first, "rows/s", "min", "max", "CPU s"],
        [
            [
                name,
                *(f"{found[part]:,.0f}" for part in ("median", "min", "max")),
                f"{median(processor_s[name]):.2f}",
            ]
            for name, found in results.items()
        ],
    )


def measure(
    address: str, directory: Path, rows: int, rounds: int, pull_bytes: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Rows per second and processor seconds per million rows of each case and round, after a warm-up."""
    from iotmq.bridge.spark_session import session

    spark = session("spark_read benchmark", cores=2)
    options = {"iotmq.bootstrap.servers": address, "subscribe": TOPIC}
    if pull_bytes:
        options["pullBytes"] = str(pull_bytes)
    files = {"path": str(directory), "subscribe": TOPIC}
    try:
        for given in (options, files):
            counted = spark.read.format("iotmq").options(**given).load().count()
            assert counted == rows, f"{counted} of {rows} rows were read"
        of_files = {f"files: {name}": name for name in CASES}
        rates: dict[str, list[float]] = {name: [] for name in [*CASES, "micro-batch", *of_files, ONE_CORE]}
        processor_s: dict[str, list[float]] = {name: [] for name in rates}
        for number in range(rounds + 1):
            for name in rates:
                before_s = processor_seconds(os.getpid())
                if name in CASES:
                    took_s = batch_read(spark, options, CASES[name])
                elif name in of_files:
                    took_s = batch_read(spark, files, CASES[of_files[name]])
                elif name == ONE_CORE:
                    took_s = batch_read(spark, files, None, tasks=1)
                else:
                    took_s = micro_batch(spark, options)
                if number:  # the first round warms up
                    rates[name].append(rows / took_s)
                    processor_s[name].append((processor_seconds(os.getpid()) - before_s) * 1e6 / rows)
        return rates, processor_s
    finally:
        spark.stop()


def batch_read(
    spark: SparkSession, options: dict[str, str], schema: str | None, tasks: int | None = None
) -> float:
    """Seconds of one batch read, with so many tasks at most."""
    reader = spark.read.format("iotmq").options(**options)
    frame = (reader if schema is None else reader.schema(schema)).load()
    if tasks is not None:
        frame = frame.coalesce(tasks)
    started_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started_s


def micro_batch(spark: SparkSession, options: dict[str, str]) -> float:
    """Seconds Spark spent on the one batch of a new stream over everything stored."""
    frame = spark.readStream.format("iotmq").options(**options, startingOffsets="earliest").load()
    with tempfile.TemporaryDirectory(prefix="iotmq-checkpoint-") as checkpoint:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(int(progress["durationMs"].get("addBatch", 0)) for progress in query.recentProgress) / 1000


def processor_seconds(process: int) -> float:
    """Processor time of a process and all its descendants, dead ones that were waited for included."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for thread in Path(f"/proc/{process}/task").iterdir():
            if thread.name != str(process):
                children += (thread / "children").read_text().split()
    except OSError:
        return 0.0
    own_s = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(processor_seconds(int(child)) for child in children)


async def serve(directory: Path, rows: int) -> None:
    """Registry and broker with `rows` records; prints the registry's address, ends with stdin."""
    from iotmq.broker.broker import Broker
    from iotmq.broker.registration.advertised_address import resolve_store_host
    from iotmq.broker.settings import BrokerSettings
    from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
    from iotmq.registry.server import Registry
    from iotmq.registry.settings import RegistrySettings
    from iotmq.store.settings import StoreSettings
    from iotmq.store.store import Store

    registry = Registry(RegistrySettings(listen_port=0))
    await registry.start()
    address = f"127.0.0.1:{registry.port}"
    settings = BrokerSettings(listen_port=0, registries=(address,), default_topic_queues=QUEUES)
    host = resolve_store_host(settings)
    store = Store.open(directory, StoreSettings(), store_host=host)
    broker = Broker(settings, store, directory=directory, store_host=host)
    await broker.start()

    def stored(result: StoredBatch | RefusedBatch) -> None:
        if isinstance(result, RefusedBatch):
            raise SystemExit(result.remark)

    broker.writer.queue_count(TOPIC, create=True)
    for number in range(rows // BATCH_ROWS):
        broker.writer.append(
            TOPIC,
            number % QUEUES,
            batch(number),
            born_timestamp_ms=time.time_ns() // 1_000_000,
            born_host=host,
            done=stored,
        )
        await asyncio.sleep(0)
    await asyncio.sleep(1.0)  # the topic reaches the registry
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await broker.stop()
    await registry.stop()
    store.close()


def batch(number: int) -> bytes:
    """BATCH_ROWS messages of 100 devices, with bodies of about 100 bytes."""
    from iotmq.message.properties import KEYS, MQTT_CLIENT_ID, MQTT_QOS, MQTT_TOPIC, encode_properties
    from iotmq.message.records.record import encode_batch

    elements = []
    for row in range(BATCH_ROWS):
        device = f"device-{row % 100}"
        body = (
            f'{{"ts": {1_700_000_000 + number}.{row:04d}, "metrics": {{"cpu_percent": {row % 100}.5, '
            f'"memory_bytes": {number * 4096 + row}, "temperature": 21.{row:04d}}}}}'
        )
        properties = {
            KEYS: device,
            MQTT_TOPIC: f"devices/{device}/telemetry",
            MQTT_CLIENT_ID: device,
            MQTT_QOS: "1",
        }
        elements.append((body.encode(), encode_properties(properties), 0))
    return encode_batch(elements)


if __name__ == "__main__":
    sys.exit(main())
