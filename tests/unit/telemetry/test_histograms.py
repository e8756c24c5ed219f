"""Histograms and their exemplars, read by the parsers of another library."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from manual_clock import ManualClock
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from iotmq.console.exposition import Exposition
from iotmq.metrics import Metric
from iotmq.telemetry.histograms import BOUNDS_US, Histogram
from iotmq.telemetry.latencies import Latencies, bucket_end_us

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Part:
    def __init__(self) -> None:
        self.latencies = Latencies()
        self.histogram = Histogram("iotmq_put_seconds", "Puts.", self.latencies, ManualClock())

    def metrics(self) -> Iterable[Metric]:
        yield from self.histogram.metrics((("worker", "1"),))
        yield from self.histogram.metrics((("worker", "2"),))


@pytest.fixture
def part() -> Part:
    part = Part()
    for took_us in (5, 200, 200, 1_500, 20_000_000):
        part.latencies.add(took_us)
    part.histogram.note(200, TRACE, SPAN)
    part.histogram.note(20_000_000, TRACE, SPAN)
    return part


def test_openmetrics_has_exemplars(part: Part) -> None:
    page, _ = Exposition([part]).render("application/openmetrics-text")
    (family,) = [each for each in read_open_metrics(page.decode()) if each.name == "iotmq_put_seconds"]
    assert family.type == "histogram"
    found = {
        sample.labels["le"]: sample.exemplar
        for sample in family.samples
        if sample.exemplar is not None and sample.labels["worker"] == "1"
    }
    assert {le: (exemplar.labels, exemplar.value) for le, exemplar in found.items()} == {
        "0.000256": ({"trace_id": TRACE, "span_id": SPAN}, 0.0002),
        "+Inf": ({"trace_id": TRACE, "span_id": SPAN}, 20.0),
    }


def test_plain_text_has_none(part: Part) -> None:
    page, _ = Exposition([part]).render()
    assert TRACE not in page.decode()
    (family,) = [each for each in read_text(page.decode()) if each.name == "iotmq_put_seconds"]
    values = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in family.samples
        if sample.labels["worker"] == "2"
    }
    assert family.type == "histogram"
    assert values["iotmq_put_seconds_count", None] == 5
    assert values["iotmq_put_seconds_sum", None] == pytest.approx(20.001905)
    assert values["iotmq_put_seconds_bucket", "0.000256"] == 3
    assert values["iotmq_put_seconds_bucket", "+Inf"] == 5


def test_the_bounds_are_ends_of_buckets() -> None:
    ends = {bucket_end_us(bucket) for bucket in range(304)}
    assert ends.issuperset(BOUNDS_US)
