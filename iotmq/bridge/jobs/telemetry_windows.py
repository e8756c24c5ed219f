"""Windowed statistics per device and metric, from JSON measurements to the console and to Parquet.

A window appears once, when it is complete: when the watermark (the latest time seen, less the allowed
lateness) has passed its end.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from iotmq.bridge.jobs.readings import SOURCE_SCHEMA, device_readings
from iotmq.bridge.jobs.stream_run import Report, Signals, StreamSettings, query_id, read_stream, run_stream
from iotmq.bridge.jobs.windows_table import render_rows, shown_rows
from iotmq.errors import ConfigError

NAME: Final = "telemetry_windows"


class Settings(StreamSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the job."""

    parquet: str = ""
    """Directory where complete windows are written; this, `console` or both."""
    console: bool = False
    """Print complete windows."""
    console_rows: Annotated[int, Meta(ge=1)] = 20
    """At most so many rows of a batch are printed."""
    window: str = "1 minute"
    """Length of a window."""
    slide: str = "10 seconds"
    """A window begins every so often."""
    lateness: str = "10 seconds"
    """How late a record may be."""
    device_level: Annotated[int, Meta(ge=1)] = 2
    """Level of the MQTT topic that names the device, from 1."""


def run(spark: SparkSession, settings: Settings, *, signals: Signals | None = None) -> int:
    """Run the job; 0 when it caught up, 1 when it failed, 130 when it was told twice to end."""
    if not settings.parquet and not settings.console:
        raise ConfigError("nothing would be shown or written: set parquet, console or both")

    def writer(report: Report) -> DataStreamWriter:
        rows = read_stream(spark, settings, SOURCE_SCHEMA)
        readings = device_readings(rows, device_level=settings.device_level)
        statistics = window_statistics(
            readings.withWatermark("event_time", settings.lateness),
            window=settings.window,
            slide=settings.slide,
        )
        return statistics.writeStream.outputMode("append").foreachBatch(
            lambda batch, batch_id: _write(spark, settings, report, batch, batch_id)
        )

    return run_stream(NAME.replace("_", " "), settings, writer, signals=signals)


def window_statistics(readings: DataFrame, *, window: str, slide: str) -> DataFrame:
    """Statistics of `device_readings` per window, device and metric; `last` is the latest by event time."""
    return (
        readings.groupBy(F.window("event_time", window, slide), "device", "metric")
        .agg(
            F.count("reading").alias("count"),
            F.mean("reading").alias("mean"),
            F.min("reading").alias("min"),
            F.max("reading").alias("max"),
            F.stddev("reading").alias("stddev"),
            F.expr("max_by(reading, struct(event_time, stored))").alias("last"),
        )
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "device",
            "metric",
            "count",
            "mean",
            "min",
            "max",
            "stddev",
            "last",
        )
    )


def _write(spark: SparkSession, settings: Settings, report: Report, batch: DataFrame, batch_id: int) -> None:
    """Keep the complete windows of one batch; doing a batch again replaces what it wrote before."""
    batch = batch.persist()
    try:
        count = batch.count()
        report.add("windows_written", count)
        if not count:
            return
        if settings.parquet:
            target = f"{settings.parquet}/query={query_id(spark)}/batch={batch_id}"
            batch.coalesce(1).write.mode("overwrite").parquet(target)
        if settings.console:
            print(render_rows(shown_rows(batch, settings.console_rows), count), flush=True)
    finally:
        batch.unpersist()
