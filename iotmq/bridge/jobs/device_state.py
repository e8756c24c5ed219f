"""The last message of every device, whether it is online, and when that changed.

The table of devices is the state of the job and its output at once. It is written anew by each batch, which
costs some seconds per million devices.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from iotmq.bridge.jobs.readings import SOURCE_SCHEMA as READINGS_SCHEMA
from iotmq.bridge.jobs.readings import with_event_time
from iotmq.bridge.jobs.snapshots import Snapshots
from iotmq.bridge.jobs.stream_run import Report, Signals, StreamSettings, query_id, read_stream, run_stream

NAME: Final = "device_state"

SOURCE_SCHEMA: Final = f"{READINGS_SCHEMA}, offset bigint"

DEVICES_SCHEMA: Final = (
    "device string, event_time timestamp, heard timestamp, mqtt_topic string, value binary, online boolean, "
    "since timestamp"
)
DEVICES_COLUMNS: Final = ("device", "event_time", "heard", "mqtt_topic", "value", "online", "since")

_BROADCAST_ROWS_MAX: Final = 200_000


class Settings(StreamSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the job."""

    path: str
    """Directory of the table, on a file system that is mounted here."""
    offline_seconds: Annotated[float, Meta(gt=0)] = 300
    """A device is offline when the newest record of all was stored so much later than its own."""
    device_level: Annotated[int, Meta(ge=1)] = 2
    """Level of the MQTT topic that names the device, from 1."""


def run(spark: SparkSession, settings: Settings, *, signals: Signals | None = None) -> int:
    """Run the job; 0 when it caught up, 1 when it failed, 130 when it was told twice to end."""
    table = Snapshots(spark, settings.path, DEVICES_SCHEMA)

    def writer(report: Report) -> DataStreamWriter:
        return read_stream(spark, settings, SOURCE_SCHEMA).writeStream.foreachBatch(
            lambda batch, batch_id: take(table, settings, report, batch, f"{query_id(spark)}-{batch_id}")
        )

    return run_stream(NAME.replace("_", " "), settings, writer, signals=signals)


def devices(spark: SparkSession, path: str) -> DataFrame:
    """Return the table of devices as it is now."""
    table = Snapshots(spark, path, DEVICES_SCHEMA)
    return table.read(table.current().snapshot)


def latest(rows: DataFrame, *, device_level: int) -> DataFrame:
    """Return a row per device: its last message by event time, and when it was heard last."""
    return (
        with_event_time(rows, device_level=device_level)
        .groupBy("device")
        .agg(
            F.expr(
                "max_by(struct(event_time, mqtt_topic, value), struct(event_time, timestamp, offset))"
            ).alias("last"),
            F.max("timestamp").alias("heard"),
        )
        .select("device", "last.event_time", "heard", "last.mqtt_topic", "last.value")
    )


def merge(before: DataFrame, heard: DataFrame, time_us: int, offline_seconds: float) -> DataFrame:
    """Return the devices of `before` as they are now; `is_heard` and `is_changed` say what is new of them.

    A device went online when it was heard, and offline so many seconds after it was heard last.
    """
    is_newer = "new.event_time >= old.event_time"
    joined = (
        before.alias("old")
        .join(heard.alias("new"), F.expr("old.device = new.device"), "left")
        .select(
            "old.device",
            *(
                F.expr(f"IF({is_newer}, new.{column}, old.{column})").alias(column)
                for column in ("event_time", "mqtt_topic", "value")
            ),
            F.expr("greatest(old.heard, new.heard)").alias("heard"),
            F.col("old.online").alias("was_online"),
            F.col("old.since").alias("was_since"),
            F.expr("new.device IS NOT NULL").alias("is_heard"),
        )
    )
    return _with_online(joined, time_us, offline_seconds)


def added(heard: DataFrame, known: DataFrame, time_us: int, offline_seconds: float) -> DataFrame:
    """Return those of `heard` whose `device` is not in `known`, as `merge` does."""
    rows = heard.join(known, "device", "left_anti").selectExpr(
        *("*", "false AS was_online", "CAST(NULL AS TIMESTAMP) AS was_since", "true AS is_heard")
    )
    return _with_online(rows, time_us, offline_seconds)


def _with_online(rows: DataFrame, time_us: int, offline_seconds: float) -> DataFrame:
    offline_us = round(offline_seconds * 1e6)
    gone = f"timestamp_micros(unix_micros(heard) + {offline_us})"
    return (
        rows.withColumn("online", F.expr(f"heard >= timestamp_micros({time_us - offline_us})"))
        .withColumn("is_changed", F.expr("online <> was_online OR was_since IS NULL"))
        .withColumn("since", F.expr(f"IF(NOT is_changed, was_since, IF(online, heard, {gone}))"))
        .select(*DEVICES_COLUMNS, "is_heard", "is_changed")
    )


def take(table: Snapshots, settings: Settings, report: Report, batch: DataFrame, name: str) -> None:
    """Make the next table out of a batch, and write down which devices came and went."""
    before = table.before(name)
    heard = latest(batch, device_level=settings.device_level).persist()
    try:
        found = heard.agg(F.unix_micros(F.max("heard")), F.count("*")).first()
        if found is None or not found[1]:
            return
        time_us = max(before.time_us, found[0])
        # The table itself stays where it is: only what was heard goes to all tasks.
        is_small = found[1] <= _BROADCAST_ROWS_MAX
        news = F.broadcast(heard) if is_small else heard
        written = table.write(
            name, merge(table.read(before.snapshot), news, time_us, settings.offline_seconds)
        )
        known = written.where("is_heard").select("device")
        known = F.broadcast(known) if is_small else known
        written = table.write(name, added(heard, known, time_us, settings.offline_seconds), is_more=True)
    finally:
        heard.unpersist()
    changes = written.where("is_changed").select("device", "online", "since", "heard").persist()
    try:
        changes.coalesce(1).write.mode("overwrite").parquet(f"{table.root}/changes/batch={name}")
        report.add("devices_changed", changes.count())
    finally:
        changes.unpersist()
    table.commit(name, before, time_us=time_us)
