"""The job device_state with a million devices: seconds of a batch of 100,000 messages.

    .venv/bin/python -m benchmarks.spark_device_state [--quick] [--devices 1000000] [--rows 100000]

The messages are made by Spark, with JSON bodies of about 60 bytes, of devices anywhere in the table. A batch
is what the job does with it: read the bodies, find each device's last message, make the next table, write
down what changed. The mark is 5 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from benchmarks import machine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARK_S: Final = 5.0


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_device_state", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer devices and rounds")
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    devices, rows, rounds = (
        (50_000, 5_000, 2) if options.quick else (options.devices, options.rows, options.rounds)
    )
    from iotmq.bridge.spark_session import session

    spark = session("device_state benchmark", cores=2, conf={"spark.driver.memory": "2g"})
    try:
        seconds = measure(spark, devices, rows, rounds)
    finally:
        spark.stop()
    found = machine.spread(seconds)
    spread = f"{found['median']:.2f} s ({found['min']:.2f} to {found['max']:.2f})"
    print(f"{rows} messages into {devices} devices: {spread}")
    machine.save(
        "spark_device_state",
        {f"{rows} of {devices} devices": {"machine": machine.description(), "seconds": found}},
    )
    reached = found["median"] < MARK_S
    print(f"mark of {MARK_S:g} s: {'reached' if reached else 'missed'}")
    return 0 if reached or options.quick else 1


def measure(spark: SparkSession, devices: int, rows: int, rounds: int) -> list[float]:
    """Seconds of each batch, behind one that fills the table and one that warms up."""
    from iotmq.bridge.jobs.device_state import DEVICES_SCHEMA, Settings, take
    from iotmq.bridge.jobs.snapshots import Snapshots
    from iotmq.bridge.jobs.stream_run import Report

    with tempfile.TemporaryDirectory(prefix="iotmq-devices-") as directory:
        settings = Settings(bootstrap="", topic="", checkpoint="", path=directory)
        table = Snapshots(spark, directory, DEVICES_SCHEMA)
        report = Report()
        take(table, settings, report, messages(spark, devices, devices, 0), "fill-0")
        seconds = []
        for number in range(1, rounds + 2):
            batch = messages(spark, rows, devices, number).persist()
            batch.count()
            started_s = time.perf_counter()
            take(table, settings, report, batch, f"batch-{number}")
            seconds.append(time.perf_counter() - started_s)
            batch.unpersist()
        assert table.read(table.current().snapshot).count() == devices
    return seconds[1:]


def messages(spark: SparkSession, rows: int, devices: int, number: int) -> DataFrame:
    """Messages of `rows` different devices, stored one batch after another."""
    step = max(1, devices // rows)
    device = f"id * {step} + {number % step}"
    return spark.range(rows).selectExpr(
        "CAST(NULL AS STRING) AS key",
        "CAST(concat("
        f"""'{{"ts": {1_767_268_800 + number}, "temperature": ', id % 50, ', "n": ', id, '}}'"""
        ") AS BINARY) AS value",
        "id AS offset",
        f"timestamp_seconds({1_767_268_800 + number}) AS timestamp",
        f"concat('devices/device-', {device}, '/telemetry') AS mqtt_topic",
        f"concat('device-', {device}) AS client_id",
    )


if __name__ == "__main__":
    sys.exit(main())
