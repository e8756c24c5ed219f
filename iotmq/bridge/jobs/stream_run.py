"""One run of a streaming job: a query that ends when it is told to and has read everything by then.

On SIGINT or SIGTERM a job finishes its batch, reads what is stored by then, and writes its report; a second
signal ends it at once.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from iotmq.bridge.spark_session import LOW_LATENCY_OPTIONS
from iotmq.files import replace_file

_POLL_S: Final = 0.25
# Spark remembers the last 100 batches: more than can pass in this time.
_PROGRESS_S: Final = 2.0
_FINISH_BATCH_S: Final = 60.0

TOLD_TWICE: Final = 130


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every streaming job."""

    bootstrap: str
    """Registries, `host:port`, separated by commas."""
    topic: str
    """Broker topics to read, separated by commas."""
    checkpoint: str
    """Directory where the job keeps its place and its state."""
    starting_offsets: str = "earliest"
    """Where a new checkpoint begins: `earliest`, `latest`, or JSON as of the option startingOffsets."""
    trigger: str = "5 seconds"
    """Time between batches."""
    rows_per_trigger_max: Annotated[int, Meta(ge=1)] | None = None
    """Limit of a batch; without it a batch is everything there is."""
    seconds: Annotated[float, Meta(gt=0)] | None = None
    """End after so many seconds; without it the job runs until it is told to end."""
    available_now: bool = False
    """Read what is stored, then end."""
    report: str = ""
    """File where counts are written at the end, as JSON."""
    source: dict[str, str] = msgspec.field(default_factory=dict)
    """Further options of format iotmq, such as "tls" = "true"."""


@dataclass
class Report:
    """Report a run; `counts` are the job's own and stand beside the others in JSON."""

    rows_read: int = 0
    batches: int = 0
    seconds: float = 0.0
    ended: str = "running"
    offsets: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int) -> None:
        """Count something the job did."""
        self.counts[name] = self.counts.get(name, 0) + count

    def document(self) -> dict[str, Any]:
        """Return the report as its file has it."""
        document = {name: value for name, value in vars(self).items() if name != "counts"}
        return document | self.counts


class Signals:
    """Hear what the process is told: `stop` once, `give_up` twice."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.give_up = threading.Event()

    def listen(self) -> dict[int, Any]:
        """Take the signals over, and return who had them: Spark's handler would cancel the batch at work."""
        return {number: signal.signal(number, self._told) for number in (signal.SIGINT, signal.SIGTERM)}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen in the block only."""
        former = self.listen()
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        # Only noted: to break off Spark's start in the middle would leave a Java process behind.
        if self.stop.is_set():
            self.give_up.set()
        self.stop.set()


def read_stream(spark: SparkSession, settings: StreamSettings, schema: str) -> DataFrame:
    """Return the records of the job's topics as a stream."""
    options = {
        "iotmq.bootstrap.servers": settings.bootstrap,
        "subscribe": settings.topic,
        "startingOffsets": settings.starting_offsets,
        **LOW_LATENCY_OPTIONS,
        **settings.source,
    }
    if settings.rows_per_trigger_max is not None:
        options["maxOffsetsPerTrigger"] = str(settings.rows_per_trigger_max)
    return spark.readStream.format("iotmq").schema(schema).options(**options).load()


def run_stream(
    name: str,
    settings: StreamSettings,
    writer: Callable[[Report], DataStreamWriter],
    *,
    signals: Signals | None = None,
) -> int:
    """Run a job's stream to its end and say so; returns the process's answer: 0, 1 for failed, 130.

    `writer(report)` makes the stream anew, complete but for trigger and checkpoint: it is started to run, and
    once more to catch up.
    """
    told = Signals() if signals is None else signals
    try:
        with told.listening():
            report = StreamRun(settings, writer, told).run()
    except Exception as error:
        print(f"{name} failed: {without_plan(error)}", file=sys.stderr)
        return 1
    counts = "".join(f", {count} {what.replace('_', ' ')}" for what, count in report.counts.items())
    print(f"{name}: {report.rows_read} rows read in {report.batches} batches{counts}", flush=True)
    return TOLD_TWICE if report.ended == "given up" else 0


class StreamRun:
    """Run a stream until it is told to end, catch up, and report."""

    def __init__(
        self, settings: StreamSettings, writer: Callable[[Report], DataStreamWriter], told: Signals
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._stop = told.stop
        self._give_up = told.give_up
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
            self.report.error = without_plan(error)
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
        writer = self._writer(self.report).option("checkpointLocation", self._settings.checkpoint)
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=self._settings.trigger).start()

    def _note_progress(self, query: StreamingQuery) -> None:
        """Take over how many rows each finished batch read; a batch that is told of again counts once."""
        for progress in query.recentProgress:
            rows = int(progress["numInputRows"])
            batch_id = int(progress["batchId"])
            self._rows_of_batch[batch_id] = max(rows, self._rows_of_batch.get(batch_id, 0))
            for source in progress["sources"]:
                if source["endOffset"] is not None:
                    self.report.offsets = _as_document(source["endOffset"])


def without_plan(error: Exception) -> str:
    """Return the text of a failed query without its plan, which Spark appends: hundreds of columns."""
    return str(error).partition("\n=== Streaming Query ===")[0].rstrip()


def query_id(spark: SparkSession) -> str:
    """Return the id of the query whose batch is being written: that of its checkpoint."""
    # Batch numbers begin anew with each checkpoint; the query's id is the checkpoint's.
    found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "not inside of a batch"
    return found


def write_report(report: Report, path: Path) -> None:
    """Put the report in place whole, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (json.dumps(report.document(), indent=2) + "\n").encode()
    replace_file(path, data, is_synced=False)


def _as_document(offset: object) -> dict[str, Any]:
    document = json.loads(offset) if isinstance(offset, str) else offset
    return dict(document) if isinstance(document, dict) else {}


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure
