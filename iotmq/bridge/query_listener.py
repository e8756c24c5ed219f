"""How a stream is doing: a line for each micro-batch, and the same as metrics.

Spark gives sources in Python no metrics of their own. What is here is made of the progress that Spark reports
after each batch: where the batch ended, and where the queues end by what the source says then.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from iotmq.clock import Clock, SystemClock
from iotmq.metrics import Metric, samples

_PREFIX: Final = "iotmq_spark_"
# Samples of queues' ends: when was what is not read yet first there? An hour at a batch each second.
_ENDS_REMEMBERED: Final = 3_600
_QUERIES_MAX: Final = 256
_UNNAMED: Final = "query"


class Lag(NamedTuple):
    """How far a batch ended before the ends of the queues: offsets, and seconds as far as it is known."""

    average: float = 0.0
    maximum: int = 0
    minimum: int = 0
    total: int = 0
    seconds: float = 0.0


class BatchProgress(NamedTuple):
    """One micro-batch of a query."""

    query: str
    batch: int
    rows: int
    seconds: float
    rows_per_s: float
    lag: Lag

    def __str__(self) -> str:
        line = f"{self.query}: batch {self.batch}: {self.rows:,} rows in {self.seconds:.3f} s"
        if self.seconds:
            line += f" ({self.rows_per_s:,.0f} rows/s)"
        if not self.lag.total:
            return f"{line}, nothing left"
        return (
            f"{line}, {self.lag.total:,} left for {self.lag.seconds:.1f} s"
            f" (a queue {self.lag.minimum:,} to {self.lag.maximum:,}, {self.lag.average:,.0f} on average)"
        )


def queue_offsets(document: str | None) -> dict[tuple[str, str], int]:
    """Return the offsets of a source of ours by topic and queue; none for another source's document."""
    try:
        topics = json.loads(document or "{}")["topics"]
        return {(topic, queue): int(n) for topic, queues in topics.items() for queue, n in queues.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


class Follower:
    """Works out how far one query is behind. The ends it has seen say since when there is something left."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: deque[tuple[float, Mapping[tuple[str, str], int]]] = deque(maxlen=_ENDS_REMEMBERED)

    def lag(self, reached: Mapping[tuple[str, str], int], ends: Mapping[tuple[str, str], int]) -> Lag:
        """Return how far `reached` is before `ends`, which are those of this moment."""
        now_s = self._clock.monotonic_s()
        self._ends.append((now_s, ends))
        behind = {queue: max(0, ends[queue] - reached.get(queue, 0)) for queue in ends}
        if not behind:
            return Lag()
        # What was read is nobody's backlog any more.
        while self._ends and not _is_ahead(self._ends[0][1], reached):
            self._ends.popleft()
        lags = behind.values()
        return Lag(
            average=sum(lags) / len(lags),
            maximum=max(lags),
            minimum=min(lags),
            total=sum(lags),
            seconds=now_s - self._ends[0][0] if self._ends else 0.0,
        )


def _is_ahead(ends: Mapping[tuple[str, str], int], reached: Mapping[tuple[str, str], int]) -> bool:
    return any(end > reached.get(queue, 0) for queue, end in ends.items())


class ProgressListener(StreamingQueryListener):
    """Tells `say` about each batch that read something, and has the last of each query as metrics.

    Register it with ``spark.streams.addListener``. Spark calls it in a thread of its own.
    """

    def __init__(self, say: Callable[[str], None] = print, *, clock: Clock | None = None) -> None:
        self._say = say
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._followers: dict[str, Follower] = {}
        self._names: dict[str, str] = {}
        self._last: dict[str, BatchProgress] = {}
        self._totals: dict[str, tuple[int, int, float]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        with self._lock:
            if len(self._followers) < _QUERIES_MAX:
                self._followers[str(event.id)] = Follower(self._clock)
                self._names[str(event.id)] = event.name or f"{_UNNAMED} {str(event.id)[:8]}"

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        made = self.take(
            str(progress.id),
            batch=progress.batchId,
            rows=progress.numInputRows,
            duration_ms=progress.durationMs.get("triggerExecution", 0),
            sources=[(source.endOffset, source.latestOffset) for source in progress.sources],
        )
        if made is not None and made.rows:
            self._say(str(made))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing: what was said last still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            for known in (self._followers, self._names, self._last, self._totals):
                known.pop(str(event.id), None)

    def take(
        self, query_id: str, *, batch: int, rows: int, duration_ms: int, sources: Iterable[tuple[Any, Any]]
    ) -> BatchProgress | None:
        """Take over the progress of one batch; None for a query whose start was not seen."""
        with self._lock:
            follower = self._followers.get(query_id)
            if follower is None:
                return None
            reached: dict[tuple[str, str], int] = {}
            ends: dict[tuple[str, str], int] = {}
            for reached_there, ends_there in sources:
                if found := queue_offsets(ends_there):
                    reached |= queue_offsets(reached_there)
                    ends |= found
            seconds = duration_ms / 1000
            made = BatchProgress(
                self._names[query_id],
                batch,
                rows,
                seconds,
                rows / seconds if seconds else 0.0,
                follower.lag(reached, ends),
            )
            self._last[query_id] = made
            batches, all_rows, all_s = self._totals.get(query_id, (0, 0, 0.0))
            self._totals[query_id] = (batches + 1, all_rows + rows, all_s + seconds)
            return made

    def metrics(self) -> Iterator[Metric]:
        """Yield the samples of all queries that run (iotmq.metrics.MetricSource)."""
        with self._lock:
            known = [(self._last[each], self._totals[each]) for each in self._last]
        for last, (batches, rows, seconds) in known:
            yield from samples(
                ("batches_total", "Micro-batches done since the job started.", batches),
                ("rows_total", "Rows that they read.", rows),
                ("batch_seconds_total", "Seconds that they took.", seconds),
                ("batch_rows", "Rows of the last micro-batch.", last.rows),
                ("batch_seconds", "Seconds that the last micro-batch took.", last.seconds),
                ("behind_offsets", "Offsets that are not read yet, of all queues.", last.lag.total),
                ("behind_offsets_average", "Offsets that are not read yet, of a queue.", last.lag.average),
                ("behind_offsets_maximum", "Those of the queue with the most.", last.lag.maximum),
                ("behind_offsets_minimum", "Those of the queue with the fewest.", last.lag.minimum),
                (
                    "behind_seconds",
                    "Seconds since the oldest record that is not read yet was first seen.",
                    last.lag.seconds,
                ),
                prefix=_PREFIX,
                labels=(("query", last.query),),
            )
