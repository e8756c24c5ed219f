"""The page of metrics, read by the parsers of another library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from iotmq.console.exposition import Exposition
from iotmq.metrics import Metric

OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
LABELS = (("topic", 'a"b\n\\n'), ("kind", "öl{},="))


class Part:
    def metrics(self) -> Iterable[Metric]:
        yield Metric("sends_total", "counter", 'Sends, "all"\nof \\ them.', 3, LABELS)
        yield Metric("depth_bytes", "gauge", "Depth.", float("inf"))
        yield Metric("iotmq_sends_total", "counter", "Not asked.", 1e21, (("topic", ""),))
        yield Metric("share", "gauge", "Share.", 0.1)


@pytest.mark.parametrize("accept", ["", "text/plain", OPEN_METRICS])
def test_another_library_reads_what_the_parts_report(accept: str) -> None:
    page, content_type = Exposition([Part()]).render(accept)
    is_open = accept == OPEN_METRICS
    assert content_type.split(";")[0] == ("application/openmetrics-text" if is_open else "text/plain")
    read = read_open_metrics if is_open else read_text
    families = {family.name: family for family in read(page.decode())}
    sends = families["iotmq_sends"]
    assert (sends.type, sends.documentation) == ("counter", 'Sends, "all"\nof \\ them.')
    assert [(sample.name, sample.labels, sample.value) for sample in sends.samples] == [
        ("iotmq_sends_total", dict(LABELS), 3.0),
        ("iotmq_sends_total", {"topic": ""}, 1e21),
    ]
    assert families["iotmq_depth_bytes"].samples[0].value == float("inf")
    assert families["iotmq_share"].samples[0].value == 0.1
    assert families["iotmq_metrics_errors"].samples[0].value == 0


def test_the_process_is_described_as_by_another_library() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    theirs = {family.name: family for family in read_text(generate_latest(registry).decode())}
    page, _type = Exposition(()).render()
    ours = {family.name: family for family in read_text(page.decode())}
    for name, family in theirs.items():
        assert (ours[name].type, ours[name].documentation) == (family.type, family.documentation)
        value, expected = ours[name].samples[0].value, family.samples[0].value
        assert value == pytest.approx(expected, rel=0.05, abs=0.2 if "cpu" in name else 0)
    assert ours["process_open_fds"].samples[0].value >= 3
    assert 0 < time.time() - ours["process_start_time_seconds"].samples[0].value < os.times().elapsed
