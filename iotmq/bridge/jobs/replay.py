"""Rows of Parquet files back into a broker topic, in their order and at a chosen rate.

What was sent is written down, so a replay that was cut off goes on behind the last rows that are stored. Rows
that were on their way at that moment may come twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from iotmq.bridge.jobs.commands import client_settings
from iotmq.bridge.jobs.snapshots import local_directory
from iotmq.bridge.jobs.stream_run import TOLD_TWICE, Report, Signals, write_report
from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.errors import ConfigError
from iotmq.files import replace_file
from iotmq.message.properties import MQTT_TOPIC

NAME: Final = "replay"

# Sent at once, and as often as this where the rate allows it.
_AT_ONCE_MAX: Final = 500
_TICK_S: Final = 0.1


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the job."""

    bootstrap: str
    """Registries, `host:port`, separated by commas."""
    topic: str
    """Broker topic that the rows go to."""
    parquet: str
    """Directory of Parquet files, such as `table` of a lake."""
    progress: str
    """File that says how many rows are sent; a replay begins anew without it."""
    where: str = ""
    """Rows to replay, as in SQL: "date = '2026-01-01' AND device = 'd1'"."""
    order_by: Annotated[list[str], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["stored", "topic", "partition", "offset"]
    )
    """Columns to sort by; together they tell rows apart."""
    value: str = ""
    """Column with the payload; without one it is a JSON object of `columns`."""
    columns: list[str] = []
    """Columns of the JSON object; without any, those that a lake found in payloads."""
    key: str = "device"
    """Column with the key; empty for none."""
    mqtt_topic: str = "mqtt_topic"
    """Column with the MQTT topic: devices that subscribe to it get the messages. Empty for none."""
    rate: Annotated[float, Meta(ge=0)] = 0
    """Rows per second; 0 for as many as there can be."""
    report: str = ""
    """File where counts are written at the end, as JSON."""
    source: dict[str, str] = {}
    """Account and encryption, as options of format iotmq."""


def run(spark: SparkSession, settings: Settings, *, signals: Signals | None = None) -> int:
    """Run the job; 0 when all rows are sent, 130 when it was told to end before."""
    told = Signals() if signals is None else signals
    with told.listening():
        report = Replay(settings, told).run(chosen_rows(spark, settings))
    if settings.report:
        write_report(report, Path(settings.report))
    print(f"replay: {report.rows_read} rows sent, {report.ended}", flush=True)
    return 0 if report.ended == "done" else TOLD_TWICE


def chosen_rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the rows to send, in order: value, key and mqtt_topic."""
    own = ("device", "event_time", "stored", "topic", "partition", "offset", "mqtt_topic", "client_id")
    try:
        rows = spark.read.parquet(settings.parquet)
        if settings.where:
            rows = rows.where(settings.where)
        kept = settings.columns or [
            name for name in rows.columns if name not in (*own, "batch", "date", "hour")
        ]
        value = (
            F.col(settings.value).cast("binary")
            if settings.value
            else F.to_json(F.struct(*(f"`{name}`" for name in kept))).cast("binary")
        )
        return rows.orderBy(*settings.order_by).select(
            value.alias("value"), _optional(settings.key, "key"), _optional(settings.mqtt_topic, "mqtt_topic")
        )
    except AnalysisException as error:
        raise ConfigError(f"replay of {settings.parquet}: {error}") from error


class Replay:
    """Send rows in steps, each no sooner than the rate allows."""

    def __init__(self, settings: Settings, told: Signals) -> None:
        self._settings = settings
        self._told = told
        self._file = local_directory(settings.progress)
        self._sent = 0
        try:
            self._sent = msgspec.json.decode(self._file.read_bytes(), type=dict[str, int])["rows"]
        except FileNotFoundError:
            self._file.parent.mkdir(parents=True, exist_ok=True)

    def run(self, rows: DataFrame) -> Report:
        """Send what is left of `rows`."""
        report = Report(ended="done")
        begun_s = time.monotonic()
        rate = self._settings.rate
        step = max(1, min(_AT_ONCE_MAX, int(rate * _TICK_S))) if rate else _AT_ONCE_MAX
        source = islice(rows.toLocalIterator(prefetchPartitions=True), self._sent, None)
        settings = client_settings(self._settings.bootstrap, self._settings.source)
        with SyncClient(settings) as client, SyncProducer(client) as producer:
            while messages := self._messages(source, step):
                wait_s = begun_s + report.rows_read / rate - time.monotonic() if rate else 0.0
                if self._told.stop.wait(max(0.0, wait_s)):
                    report.ended = "told to end"
                    break
                producer.send_batch(messages)
                report.rows_read += len(messages)
                self._note(len(messages))
        report.seconds = round(time.monotonic() - begun_s, 3)
        return report

    def _messages(self, rows: Iterator[Any], count: int) -> list[Message]:
        return [
            Message(
                self._settings.topic,
                bytes(row.value or b""),
                **({} if row.key is None else {"key": row.key}),
                properties={} if row.mqtt_topic is None else {MQTT_TOPIC: row.mqtt_topic},
            )
            for row in islice(rows, count)
        ]

    def _note(self, count: int) -> None:
        self._sent += count
        replace_file(self._file, msgspec.json.encode({"rows": self._sent}), is_synced=False)


def _optional(column: str, name: str) -> Any:
    return (F.col(column) if column else F.lit(None)).cast("string").alias(name)
