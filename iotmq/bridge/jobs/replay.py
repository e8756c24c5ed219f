"""Rows of Parquet files back into a broker topic, in their order and at a chosen rate.

The rows are put in order once, as files of at most a second's rows, each of which is one batch of the sink.
A replay that was cut off goes on with the batch that was under way, under the name and number it had: what
the broker has of it is not stored again. Layout::

    STATE/plan.json                 the name it writes under, and the settings that made the rows
    STATE/rows/part-N-*-cM.parquet  batches in their order
    STATE/progress.json             {"batches": how many are stored, "rows": of them}
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from pyarrow import parquet
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from iotmq.bridge.jobs.commands import write_batch
from iotmq.bridge.jobs.lake import BATCH_COLUMN, OWN_COLUMNS, PARTITIONS
from iotmq.bridge.jobs.snapshots import local_directory
from iotmq.bridge.jobs.stream_run import TOLD_TWICE, Report, Signals, write_report
from iotmq.errors import ConfigError
from iotmq.files import replace_file

NAME: Final = "replay"

# Of one batch, whatever the rate.
_BATCH_ROWS_MAX: Final = 100_000
_PART: Final = re.compile(r"part-(\d+)-.*-c(\d+)\.")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the job."""

    bootstrap: str
    """Registries, `host:port`, separated by commas."""
    topic: str
    """Broker topic that the rows go to; it has to be there."""
    parquet: str
    """Directory of Parquet files, such as `table` of a lake."""
    state: str
    """Directory for the rows in their order and for how many are sent, on a file system that is mounted here.
    A replay begins anew without it."""
    where: str = ""
    """Rows to replay, as in SQL: "date = '2026-01-01' AND device = 'd1'"."""
    order_by: Annotated[list[str], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["stored", "topic", "partition", "offset"]
    )
    """Columns to sort by."""
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


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name a replay, and tell which rows it is of."""

    producer: str
    of: list[Any]


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tell what is stored."""

    batches: int = 0
    rows: int = 0


def run(spark: SparkSession, settings: Settings, *, signals: Signals | None = None) -> int:
    """Run the job; 0 when all rows are sent, 130 when it was told to end before."""
    told = Signals() if signals is None else signals
    with told.listening():
        report = Replay(spark, settings).run(told)
    if settings.report:
        write_report(report, Path(settings.report))
    print(f"replay: {report.rows_read} rows sent, {report.ended}", flush=True)
    return 0 if report.ended == "done" else TOLD_TWICE


def chosen_rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the rows to send, in order: value, key and mqtt_topic."""
    try:
        rows = spark.read.parquet(settings.parquet)
        if settings.where:
            rows = rows.where(settings.where)
        kept = settings.columns or [
            name for name in rows.columns if name not in (*OWN_COLUMNS, *PARTITIONS, BATCH_COLUMN)
        ]
        value = (
            F.col(settings.value).cast("binary")
            if settings.value
            else F.to_json(F.struct(*(f"`{name}`" for name in kept))).cast("binary")
        )
        return rows.orderBy(*settings.order_by).select(
            F.coalesce(value, F.lit(b"")).alias("value"),
            _optional(settings.key, "key"),
            _optional(settings.mqtt_topic, "mqtt_topic"),
        )
    except AnalysisException as error:
        raise ConfigError(f"replay of {settings.parquet}: {error}") from error


class Replay:
    """Send batch after batch, each no sooner than the rate allows."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._root = local_directory(settings.state)
        self._rows = self._root / "rows"
        self._plan = self._prepared()

    def run(self, told: Signals) -> Report:
        """Send what is left."""
        report = Report(ended="done")
        begun_s = time.monotonic()
        rate = self._settings.rate
        done = self._progress()
        for number, file in enumerate(self._batches()):
            if number < done.batches:
                continue
            # The next one leaves when those before it have had their time.
            wait_s = begun_s + report.rows_read / rate - time.monotonic() if rate else 0.0
            if told.stop.wait(max(0.0, wait_s)):
                report.ended = "told to end"
                break
            count: int = parquet.ParquetFile(file).metadata.num_rows
            self._send(number, file)
            done = Progress(number + 1, done.rows + count)
            replace_file(self._root / "progress.json", msgspec.json.encode(done), is_synced=True)
            report.rows_read += count
            report.batches += 1
        report.seconds = round(time.monotonic() - begun_s, 3)
        return report

    def _prepared(self) -> Plan:
        """Put the rows in order, unless that is done, and return the plan."""
        chosen = self._settings
        of = [chosen.topic, chosen.parquet, chosen.where, chosen.order_by]
        of += [chosen.value, chosen.columns, chosen.key, chosen.mqtt_topic]
        file = self._root / "plan.json"
        if file.exists():
            plan = msgspec.json.decode(file.read_bytes(), type=Plan)
            if plan.of != of:
                raise ConfigError(
                    f"state {self._root} is of a replay with other settings ({plan.of}): name another one"
                )
            return plan
        rows = chosen_rows(self._spark, chosen)
        if self._rows.exists():
            shutil.rmtree(self._rows)  # cut off before it was whole
        batch = max(1, min(_BATCH_ROWS_MAX, int(chosen.rate))) if chosen.rate else _BATCH_ROWS_MAX
        (
            # So that a batch that Spark reads in pieces is put in order again.
            rows.withColumn("n", F.monotonically_increasing_id())
            .write.option("maxRecordsPerFile", batch)
            .parquet(str(self._rows))
        )
        plan = Plan(f"replay-{uuid.uuid4().hex}", of)
        replace_file(file, msgspec.json.encode(plan), is_synced=True)
        return plan

    def _batches(self) -> list[Path]:
        """Return the files with the rows, in order."""
        numbered = []
        for file in self._rows.glob("part-*.parquet"):
            found = _PART.match(file.name)
            assert found is not None, file
            numbered.append((int(found[1]), int(found[2]), file))
        return [file for _, _, file in sorted(numbered)]

    def _progress(self) -> Progress:
        try:
            return msgspec.json.decode((self._root / "progress.json").read_bytes(), type=Progress)
        except FileNotFoundError:
            return Progress()

    def _send(self, number: int, file: Path) -> None:
        rows = self._spark.read.parquet(str(file)).coalesce(1).sortWithinPartitions("n").drop("n")
        write_batch(
            rows,
            bootstrap=self._settings.bootstrap,
            topic=self._settings.topic,
            source=self._settings.source,
            batch=f"{self._plan.producer}-{number}",
        )


def _optional(column: str, name: str) -> Any:
    return (F.col(column) if column else F.lit(None)).cast("string").alias(name)
