"""Records as partitioned Parquet files of a wanted size, and payloads that do not fit in a quarantine.

Each batch writes directories of its own, named by query and batch, so doing a batch again replaces them.
Small files of earlier batches are put together as the job goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from iotmq.bridge.jobs.compaction import Compaction
from iotmq.bridge.jobs.payloads import Payload, data_schema, decode
from iotmq.bridge.jobs.readings import device_of
from iotmq.bridge.jobs.stream_run import Report, Signals, StreamSettings, query_id, read_stream, run_stream
from iotmq.errors import ConfigError
from iotmq.files import replace_file

NAME: Final = "lake"

SOURCE_SCHEMA: Final = (
    "key string, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "mqtt_topic string, client_id string"
)
# Of every row, before the columns of its payload.
OWN_COLUMNS: Final = (
    *("device", "event_time", "stored", "topic", "partition", "offset", "mqtt_topic", "client_id"),
)
# Directories of the table, and how the event time names them.
PARTITIONS: Final = {
    "date": "date_format(event_time, 'yyyy-MM-dd')",
    "hour": "date_format(event_time, 'HH')",
    "topic": "topic",
}
BATCH_COLUMN: Final = "batch"
"""The directory that names the batch which wrote a row."""
_INFERRED_FILE: Final = "_schema.json"


class Settings(StreamSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the job."""

    path: str
    """Directory of the lake, on a file system that is mounted here: rows are in `table`, bad payloads in
    `quarantine`."""
    payload: Payload = msgspec.field(default_factory=Payload)
    """How payloads are read. Without a schema that of JSON is inferred once, from what is stored then."""
    partition_by: Annotated[list[Literal["date", "hour", "topic"]], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["date"]
    )
    """Directories of the table, by event time (UTC) and broker topic."""
    file_bytes: Annotated[int, Meta(ge=1024)] = 128 * 1024 * 1024
    """Size of files after compaction."""
    compact_after: Annotated[int, Meta(ge=2)] = 16
    """Small directories of one partition that are put together; earlier batches only."""
    infer_rows: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """Records from which a schema is inferred."""
    device_level: Annotated[int, Meta(ge=1)] = 2
    """Level of the MQTT topic that names the device, from 1."""


def run(spark: SparkSession, settings: Settings, *, signals: Signals | None = None) -> int:
    """Run the job; 0 when it caught up, 1 when it failed, 130 when it was told twice to end."""
    compaction = Compaction(spark, settings.path, settings.file_bytes, settings.compact_after)
    # What was cut off in the middle is ended before anything is written.
    compaction.finish()
    schema = payload_schema(spark, settings, compaction)
    taken = sorted(set(schema.fieldNames()).intersection((*OWN_COLUMNS, *PARTITIONS, BATCH_COLUMN)))
    if taken:
        raise ConfigError(f"payload: column {taken[0]} has the name of a column of the table")

    def writer(report: Report) -> DataStreamWriter:
        rows = decode(read_stream(spark, settings, SOURCE_SCHEMA), settings.payload, schema)
        return rows.writeStream.foreachBatch(
            lambda batch, batch_id: _write(
                settings, compaction, report, batch, f"{query_id(spark)}-{batch_id}"
            )
        )

    return run_stream(NAME, settings, writer, signals=signals)


def payload_schema(spark: SparkSession, settings: Settings, compaction: Compaction) -> StructType:
    """Return the declared schema, else the one inferred before, else one inferred now and kept."""
    payload = settings.payload
    if payload.schema or payload.format != "json":
        return data_schema(payload)
    kept = compaction.root / _INFERRED_FILE
    if kept.exists():
        return StructType.fromJson(msgspec.json.decode(kept.read_bytes()))
    options = {"iotmq.bootstrap.servers": settings.bootstrap, "subscribe": settings.topic, **settings.source}
    values = spark.read.format("iotmq").schema("value binary").options(**options).load()
    texts = values.limit(settings.infer_rows).selectExpr("CAST(value AS STRING) AS text")
    found = spark.read.option("mode", "DROPMALFORMED").json(texts.rdd.map(lambda row: row.text or ""))
    if not found.schema.fields:
        raise ConfigError(
            f"payload.schema: nothing to infer it from, topic {settings.topic} has no JSON objects yet"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    replace_file(kept, found.schema.json().encode(), is_synced=True)
    return found.schema


def lake_rows(rows: DataFrame, settings: Settings) -> DataFrame:
    """Return the good ones of decoded rows as the table has them, without `batch`."""
    partitions = [F.expr(PARTITIONS[name]).alias(name) for name in settings.partition_by if name != "topic"]
    return rows.where("reason IS NULL").select(
        F.expr(device_of(settings.device_level)).alias("device"),
        "event_time",
        F.col("timestamp").alias("stored"),
        *("topic", "partition", "offset", "mqtt_topic", "client_id", "data.*"),
        *partitions,
    )


def _write(
    settings: Settings, compaction: Compaction, report: Report, batch: DataFrame, batch_name: str
) -> None:
    """Write one batch; doing it again replaces what it wrote before."""
    batch = batch.persist()
    try:
        good = batch.where("reason IS NULL").count()
        bad = batch.where("reason IS NOT NULL").count()
        if good:
            _overwrite(lake_rows(batch, settings), settings.partition_by, batch_name, compaction.table)
        if bad:
            quarantined = batch.where("reason IS NOT NULL").select(
                "reason",
                *("key", "value", "topic", "partition", "offset", "timestamp", "mqtt_topic", "client_id"),
                F.expr("date_format(timestamp, 'yyyy-MM-dd')").alias("date"),
            )
            _overwrite(quarantined, ["date"], batch_name, compaction.quarantine)
        report.add("rows_written", good)
        report.add("rows_quarantined", bad)
        report.add("directories_compacted", compaction.compact(except_batch=batch_name))
    finally:
        batch.unpersist()


def _overwrite(rows: DataFrame, partition_by: Sequence[str], batch_name: str, target: str) -> None:
    (
        rows.withColumn(BATCH_COLUMN, F.lit(batch_name))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*partition_by, BATCH_COLUMN)
        .parquet(target)
    )
