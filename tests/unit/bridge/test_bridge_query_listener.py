"""Lines and metrics of progress, from what Spark reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from manual_clock import ManualClock

from iotmq.bridge import query_listener
from iotmq.bridge.query_listener import ProgressListener, queue_offsets


def document(**queues: int) -> str:
    return json.dumps({"v": 1, "topics": {"t": {f"b:{name[1:]}": n for name, n in queues.items()}}})


class Query:
    """A listener that hears of one query."""

    def __init__(self, name: str | None = "readings") -> None:
        self.clock = ManualClock()
        self.lines: list[str] = []
        self.listener = ProgressListener(self.lines.append, clock=self.clock)
        self.start("q", name)

    def start(self, query_id: str, name: str | None) -> None:
        event: Any = SimpleNamespace(id=query_id, name=name)
        self.listener.onQueryStarted(event)

    def batch(self, number: int, rows: int, reached: str | None, ends: str | None) -> None:
        source = SimpleNamespace(endOffset=reached, latestOffset=ends)
        event: Any = SimpleNamespace(
            progress=SimpleNamespace(
                id="q",
                batchId=number,
                numInputRows=rows,
                durationMs={"triggerExecution": 250},
                sources=[source],
            )
        )
        self.listener.onQueryProgress(event)

    @property
    def metrics(self) -> dict[str, float]:
        return {sample.name.removeprefix("iotmq_spark_"): sample.value for sample in self.listener.metrics()}


def test_a_batch_that_read_everything_has_a_line() -> None:
    query = Query()
    query.batch(3, 1500, document(q0=10, q1=20), document(q0=10, q1=20))
    assert query.lines == ["readings: batch 3: 1,500 rows in 0.250 s (6,000 rows/s), nothing left"]


def test_what_is_left_is_said_with_how_long_it_has_been_there() -> None:
    query = Query()
    query.batch(0, 10, document(q0=5, q1=5), document(q0=5, q1=1005))
    query.clock.advance(2.0)
    query.batch(1, 100, document(q0=5, q1=105), document(q0=105, q1=1105))
    assert query.lines[-1] == (
        "readings: batch 1: 100 rows in 0.250 s (400 rows/s), 1,100 left for 2.0 s"
        " (a queue 100 to 1,000, 550 on average)"
    )
    # What was left at first has been read: the rest was first seen two seconds later.
    query.clock.advance(1.0)
    query.batch(2, 900, document(q0=50, q1=1005), document(q0=105, q1=1105))
    assert query.metrics["behind_seconds"] == 1.0
    assert query.metrics["behind_offsets"] == 155


def test_metrics_add_up_over_batches_and_end_with_the_query() -> None:
    query = Query()
    query.batch(0, 10, document(q0=5), document(q0=8))
    query.batch(1, 3, document(q0=8), document(q0=8))
    assert query.metrics == {
        "batches_total": 2,
        "rows_total": 13,
        "batch_seconds_total": 0.5,
        "batch_rows": 3,
        "batch_seconds": 0.25,
        "behind_offsets": 0,
        "behind_offsets_average": 0.0,
        "behind_offsets_maximum": 0,
        "behind_offsets_minimum": 0,
        "behind_seconds": 0.0,
    }
    ended: Any = SimpleNamespace(id="q")
    query.listener.onQueryTerminated(ended)
    assert query.metrics == {}


def test_batches_without_rows_are_not_worth_a_line() -> None:
    query = Query()
    query.batch(0, 0, document(q0=5), document(q0=5))
    assert query.lines == []
    assert query.metrics["batches_total"] == 1


def test_a_query_without_a_name_is_called_by_its_id() -> None:
    query = Query(None)
    query.batch(0, 1, None, None)
    assert query.lines == ["query q: batch 0: 1 rows in 0.250 s (4 rows/s), nothing left"]


@pytest.mark.parametrize("text", [None, "", "7", "[1]", '{"topics": 3}', '{"topics": {"t": 1}}', "rubbish"])
def test_offsets_of_other_sources_are_left_out(text: str | None) -> None:
    assert queue_offsets(text) == {}


def test_queries_are_followed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_listener, "_QUERIES_MAX", 1)
    query = Query()
    query.start("another", "another")
    assert query.listener.take("another", batch=0, rows=1, duration_ms=1, sources=()) is None
    assert query.listener.take("q", batch=0, rows=1, duration_ms=1, sources=()) is not None
