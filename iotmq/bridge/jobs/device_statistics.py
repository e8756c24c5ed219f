"""Windowed statistics per device and metric, from JSON measurements to the console and to Parquet.

A payload is a JSON object of numbers, flat or one level deep; all of these are understood::

    {"cpu_percent": 3.2}
    {"ts": 1700000000.5, "metrics": {"cpu_percent": 3.2}}
    {"disk": {"read_bytes": 5, "write_bytes": 7}}          (metrics disk.read_bytes, disk.write_bytes)

The device is a level of the MQTT topic, otherwise the record's key, otherwise the MQTT client. The time is
``ts``, ``timestamp`` or ``time`` of the payload (seconds or milliseconds since 1970, or ISO 8601),
otherwise, and where it lies more than a minute ahead, the time at which the gateway stored the record.

A window appears once, when it is complete: when the watermark (the latest time seen, less the allowed
lateness) has passed its end. On SIGINT or SIGTERM the job finishes its batch, reads what is stored by
then, and writes its report; a second signal ends it at once.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from iotmq.bridge.spark_session import LOW_LATENCY_OPTIONS, JavaMissingError, session
from iotmq.files import replace_file

SOURCE_SCHEMA: Final = "key string, value binary, timestamp timestamp, mqtt_topic string, client_id string"

_POLL_S: Final = 0.25
# Spark remembers the last 100 batches: more than can pass in this time.
_PROGRESS_S: Final = 2.0
_FINISH_BATCH_S: Final = 60.0

_TOLD_TWICE: Final = 130

_TIME_FIELDS: Final = ("ts", "timestamp", "time")
# A number is seconds up to 1e11 (the year 5138) and milliseconds above; one before 1973 is no time of
# day but the clock of a device that was never set.
_SECONDS_MIN: Final = "1e8"
_SECONDS_MAX: Final = "1e11"
_MILLISECONDS_MAX: Final = "1e14"
_TIME_AHEAD_MAX: Final = "INTERVAL 1 MINUTE"

_READING: Final = "array<struct<metric: string, reading: double>>"


@dataclass(frozen=True)
class JobSettings:
    """Hold the options of the command line."""

    bootstrap: str
    topic: str
    checkpoint: str
    parquet: str | None = None
    console: bool = False
    console_rows: int = 20
    window: str = "1 minute"
    slide: str = "10 seconds"
    lateness: str = "10 seconds"
    trigger: str = "5 seconds"
    device_level: int = 2
    starting_offsets: str = "earliest"
    rows_per_trigger_max: int | None = None
    seconds: float | None = None
    available_now: bool = False
    cores: int | None = None
    conf: tuple[str, ...] = ()
    report: str | None = None


@dataclass
class Report:
    """Report this run of the job, written as JSON."""

    rows_read: int = 0
    batches: int = 0
    windows_written: int = 0
    seconds: float = 0.0
    ended: str = "running"
    offsets: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def device_readings(rows: DataFrame, *, device_level: int) -> DataFrame:
    """One row per measured number: event_time, device, metric, reading, and stored (the store's time).

    `rows` has the columns of SOURCE_SCHEMA. What is no JSON object, and values that are no numbers,
    give no rows.
    """
    # Each step is a column of its own, because Spark computes a named column once however often it is
    # used, and an expression written twice possibly twice.
    return (
        rows.withColumn("payload", F.expr("try_parse_json(CAST(value AS STRING))"))
        .withColumn("entries", F.expr("try_variant_get(payload, '$', 'map<string, variant>')"))
        .withColumn("said", F.expr(_said_time()))
        .withColumn("number", F.expr("try_variant_get(said, '$', 'double')"))
        .withColumn("stamp", F.expr(_stamp()))
        .select(
            F.expr(
                f"IF(stamp <= timestamp + {_TIME_AHEAD_MAX}, stamp, timestamp)",
            ).alias("event_time"),
            F.expr(
                f"coalesce(nullif(try_element_at(split(mqtt_topic, '/'), {device_level}), ''),"
                " key, client_id, 'unknown')"
            ).alias("device"),
            F.expr(f"explode({_readings()})").alias("measured"),
            F.col("timestamp").alias("stored"),
        )
        .select("event_time", "device", "measured.metric", "measured.reading", "stored")
    )


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


class DeviceStatistics:
    """One run of the job: a query that ends when told to, and its report.

    `stop` makes it finish its batch and read the rest, `give_up` makes it end without that.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: JobSettings,
        *,
        stop: threading.Event,
        give_up: threading.Event,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._stop = stop
        self._give_up = give_up
        self._rows_of_batch: dict[int, int] = {}
        self.report = Report()

    def run(self) -> Report:
        """Run until the time is up, told to end, or the query fails; then catch up and report."""
        started_s = time.monotonic()
        try:
            if not self._settings.available_now and not self._stop.is_set():
                self._stream(started_s)
            if not self._give_up.is_set():
                self._catch_up()
            self.report.ended = "given up" if self._give_up.is_set() else "caught up"
        except Exception as error:
            self.report.ended = "failed"
            self.report.error = str(error)
            raise
        finally:
            self.report.rows_read = sum(self._rows_of_batch.values())
            self.report.batches = len(self._rows_of_batch)
            self.report.seconds = round(time.monotonic() - started_s, 3)
            if self._settings.report:
                write_report(self.report, Path(self._settings.report))
        return self.report

    def _stream(self, started_s: float) -> None:
        """Run batch after batch until told to stop, until the time is up, or until the query fails."""
        seconds = self._settings.seconds
        query = self._start(available_now=False)
        try:
            self._watch(query, self._stop, float("inf") if seconds is None else started_s + seconds)
            self._finish_batch(query)
        finally:
            query.stop()
        self._note_progress(query)
        _raise_failure(query)

    def _finish_batch(self, query: StreamingQuery) -> None:
        """Wait for the moment between two batches, so that stopping interrupts none."""
        deadline_s = time.monotonic() + _FINISH_BATCH_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
            if self._give_up.wait(_POLL_S / 10):
                return

    def _catch_up(self) -> None:
        """Read what is stored up to now. A batch that was interrupted is done again first."""
        query = self._start(available_now=True)
        try:
            self._watch(query, self._give_up, float("inf"))
        finally:
            query.stop()
        self._note_progress(query)
        _raise_failure(query)

    def _watch(self, query: StreamingQuery, until: threading.Event, deadline_s: float) -> None:
        """Follow a query until it ends by itself, `until` is set or the time is up."""
        noted_s = 0.0
        while query.isActive and not until.is_set():
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return
            if now_s - noted_s >= _PROGRESS_S:
                self._note_progress(query)
                noted_s = now_s
            until.wait(min(_POLL_S, deadline_s - now_s))

    def _start(self, *, available_now: bool) -> StreamingQuery:
        settings = self._settings
        options = {
            "iotmq.bootstrap.servers": settings.bootstrap,
            "subscribe": settings.topic,
            "startingOffsets": settings.starting_offsets,
            **LOW_LATENCY_OPTIONS,
        }
        if settings.rows_per_trigger_max is not None:
            options["maxOffsetsPerTrigger"] = str(settings.rows_per_trigger_max)
        rows = self._spark.readStream.format("iotmq").schema(SOURCE_SCHEMA).options(**options).load()
        readings = device_readings(rows, device_level=settings.device_level)
        statistics = window_statistics(
            readings.withWatermark("event_time", settings.lateness),
            window=settings.window,
            slide=settings.slide,
        )
        writer = (
            statistics.writeStream.outputMode("append")
            .option("checkpointLocation", settings.checkpoint)
            .foreachBatch(self._write)
        )
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=settings.trigger).start()

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        """Keep the complete windows of one batch; doing a batch again replaces what it wrote before."""
        settings = self._settings
        batch = batch.persist()
        try:
            count = batch.count()
            if not count:
                return
            if settings.parquet is not None:
                # Batch numbers begin anew with each checkpoint; the query's id is the checkpoint's.
                query_id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
                target = f"{settings.parquet}/query={query_id}/batch={batch_id}"
                batch.coalesce(1).write.mode("overwrite").parquet(target)
            if settings.console:
                print(render_rows(shown_rows(batch, settings.console_rows), count), flush=True)
            self.report.windows_written += count
        finally:
            batch.unpersist()

    def _note_progress(self, query: StreamingQuery) -> None:
        """Take over how many rows each finished batch read; a batch that is told of again counts once."""
        for progress in query.recentProgress:
            rows = int(progress["numInputRows"])
            batch_id = int(progress["batchId"])
            self._rows_of_batch[batch_id] = max(rows, self._rows_of_batch.get(batch_id, 0))
            for source in progress["sources"]:
                if source["endOffset"] is not None:
                    self.report.offsets = _as_document(source["endOffset"])


def shown_rows(statistics: DataFrame, rows_max: int) -> list[Row]:
    """The first rows for people, in order, with the window as text in the session's time zone (UTC)."""
    return (
        statistics.orderBy("window_end", "device", "metric")
        .limit(rows_max)
        .withColumn(
            "window",
            F.expr("date_format(window_start, 'HH:mm:ss') || '-' || date_format(window_end, 'HH:mm:ss')"),
        )
        .collect()
    )


def render_rows(rows: Sequence[Row], count: int) -> str:
    """Rows of `shown_rows` as a table for people; `count` is how many there are in all."""
    names = ("window (UTC)", "device", "metric", "count", "mean", "min", "max", "stddev", "last")
    lines = [names]
    for row in rows:
        numbers = tuple(_number(row[name]) for name in ("mean", "min", "max", "stddev", "last"))
        lines.append((row["window"], row["device"], row["metric"], str(row["count"]), *numbers))
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    text = "\n".join(_aligned(line, widths) for line in lines)
    return text if count <= len(rows) else f"{text}\n... and {count - len(rows)} more"


def write_report(report: Report, path: Path) -> None:
    """Put the report in place whole, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (json.dumps(asdict(report), indent=2) + "\n").encode()
    replace_file(path, data, is_synced=False)


def parse_arguments(words: Sequence[str] | None = None) -> JobSettings:
    """Return the command line as settings; ends the process with a message for a bad one."""
    parser = argparse.ArgumentParser(
        prog="python -m iotmq.bridge.jobs.device_statistics",
        description="Windowed statistics per device and metric, from JSON measurements.",
    )
    defaults = JobSettings("", "", "")
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT", help="registries, separated by commas")
    add("--topic", required=True, help="broker topic to read")
    add("--checkpoint", required=True, metavar="DIR", help="where the job keeps its place and its state")
    add("--parquet", metavar="DIR", help="where complete windows are written")
    add("--console", action="store_true", help="print complete windows")
    add("--console-rows", type=int, default=defaults.console_rows, metavar="N", help="at most N per batch")
    add("--window", default=defaults.window, help="length of a window (default: %(default)s)")
    add("--slide", default=defaults.slide, help="a window begins every ... (default: %(default)s)")
    add("--lateness", default=defaults.lateness, help="how late a record may be (default: %(default)s)")
    add("--trigger", default=defaults.trigger, help="time between batches (default: %(default)s)")
    add(
        "--device-level",
        type=int,
        default=defaults.device_level,
        metavar="N",
        help="level of the MQTT topic that names the device, from 1 (default: %(default)s)",
    )
    add("--starting-offsets", default=defaults.starting_offsets, help="earliest, latest or JSON")
    add("--rows-per-trigger-max", type=int, metavar="N", help="limit of a batch")
    add("--seconds", type=float, metavar="N", help="end after N seconds")
    add("--available-now", action="store_true", help="read what is stored, then end")
    add("--cores", type=int, metavar="N", help="tasks at once (default: one per CPU)")
    add(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )
    add("--report", metavar="FILE.json", help="where to write counts at the end")
    arguments = parser.parse_args(words)
    if arguments.device_level < 1:
        parser.error("--device-level counts from 1")
    if arguments.parquet is None and not arguments.console:
        parser.error("nothing would be shown or written: give --parquet, --console or both")
    if not all("=" in pair for pair in arguments.conf):
        parser.error("--conf takes NAME=VALUE")
    return JobSettings(**(vars(arguments) | {"conf": tuple(arguments.conf)}))


def main(words: Sequence[str] | None = None) -> int:
    """Run the job; 0 when it caught up, 1 when it failed, 130 when it was told twice to end."""
    settings = parse_arguments(words)
    stop, give_up = threading.Event(), threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # Only noted: to break off Spark's start in the middle would leave a Java process behind.
        if stop.is_set():
            give_up.set()
        stop.set()

    _on_signals(on_signal)
    try:
        spark = session(
            "iotmq device statistics",
            cores=settings.cores,
            profile="low_latency",
            conf=dict(pair.split("=", 1) for pair in settings.conf),
        )
    except JavaMissingError as error:
        print(error, file=sys.stderr)
        return 1
    # Spark has put its own handler in place, which would cancel the batch at work.
    _on_signals(on_signal)
    try:
        report = DeviceStatistics(spark, settings, stop=stop, give_up=give_up).run()
    except Exception as error:
        print(f"device statistics failed: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    print(
        f"device statistics: {report.rows_read} rows read in {report.batches} batches, "
        f"{report.windows_written} rows of complete windows",
        flush=True,
    )
    return _TOLD_TWICE if report.ended == "given up" else 0


def _said_time() -> str:
    """SQL for what a payload gives as its time, as a variant; null when it gives none."""
    return f"coalesce({', '.join(f'try_element_at(entries, {name!r})' for name in _TIME_FIELDS)})"


def _stamp() -> str:
    """SQL for the time that `said` (or as a double `number`) means; null when it is none."""
    return (
        "CASE WHEN said IS NULL THEN NULL"
        f" WHEN number BETWEEN {_SECONDS_MIN} AND {_SECONDS_MAX} THEN timestamp_seconds(number)"
        f" WHEN number BETWEEN {_SECONDS_MAX} AND {_MILLISECONDS_MAX}"
        " THEN timestamp_millis(CAST(number AS BIGINT))"
        " WHEN number IS NULL THEN try_to_timestamp(try_variant_get(said, '$', 'string')) END"
    )


def _readings() -> str:
    """SQL for the numbers of a payload as an array of (metric, reading)."""
    names = ", ".join(f"'{name}'" for name in _TIME_FIELDS)
    none = f"CAST(array() AS {_READING})"
    inner = "map_entries(try_variant_get(outer_.value, '$', 'map<string, variant>'))"
    return (
        "flatten(transform(map_entries(entries), outer_ -> CASE"
        f" WHEN outer_.key IN ({names}) THEN {none}"
        f" WHEN {_is_number('outer_.value')} THEN {_single('outer_.key', 'outer_.value')}"
        f" ELSE coalesce(transform(filter({inner}, inner_ -> {_is_number('inner_.value')}),"
        " inner_ -> named_struct("
        "'metric', IF(outer_.key = 'metrics', inner_.key, concat(outer_.key, '.', inner_.key)),"
        f" 'reading', try_variant_get(inner_.value, '$', 'double'))), {none}) END))"
    )


def _single(key: str, value: str) -> str:
    return f"array(named_struct('metric', {key}, 'reading', try_variant_get({value}, '$', 'double')))"


def _is_number(value: str) -> str:
    return f"coalesce(schema_of_variant({value}) RLIKE '^(BIGINT|DOUBLE|DECIMAL)', FALSE)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _aligned(line: Iterable[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if column < 3 else text.rjust(width)
        for column, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells)


def _as_document(offset: object) -> dict[str, Any]:
    document = json.loads(offset) if isinstance(offset, str) else offset
    return dict(document) if isinstance(document, dict) else {}


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
