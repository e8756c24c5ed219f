"""The exporter with receivers that answer, refuse, and are not there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eventually import eventually
from otlp_receiver import OtlpReceiver, attributes_of

from iotmq.errors import ConfigError
from iotmq.metrics import Exemplar, Metric
from iotmq.telemetry.otlp import OtlpExport
from iotmq.telemetry.settings import TelemetryHeaderSettings, TelemetrySettings
from iotmq.telemetry.tracing import Tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GAUGE = Metric("iotmq_depth_bytes", "gauge", "Depth.", 1.5, (("queue", "a"),))
Start = Callable[..., OtlpExport]


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def start(receiver: OtlpReceiver) -> Iterator[Start]:
    running: list[OtlpExport] = []

    def begin(tracing: Tracing | None = None, **settings: Any) -> OtlpExport:
        used = TelemetrySettings(**{"endpoint": f"{receiver.endpoint}/", "timeout_s": 0.2, **settings})
        export = OtlpExport(used, tracing, instance="gw-1")
        export.start()
        running.append(export)
        return export

    yield begin
    for export in running:
        export.stop()


def counted(export: OtlpExport) -> dict[tuple[str, ...], float]:
    return {
        (metric.name.removeprefix("iotmq_telemetry_"), *(value for _, value in metric.labels)): metric.value
        for metric in export.metrics()
    }


def histogram(worker: str) -> list[Metric]:
    labels = (("worker", worker),)
    text, exemplar = "Puts.", Exemplar(TRACE, SPAN, 0.3, 1_700_000_000.5)
    bound = (("le", "0.25"), *labels)
    return [
        Metric("iotmq_put_seconds_bucket", "histogram", text, 3, bound),
        Metric("iotmq_put_seconds_bucket", "histogram", text, 5, (("le", "+Inf"), *labels), exemplar),
        Metric("iotmq_put_seconds_sum", "histogram", text, 1.5, labels),
        Metric("iotmq_put_seconds_count", "histogram", text, 5, labels),
    ]


def test_metrics_keep_their_names_kinds_and_labels(receiver: OtlpReceiver, start: Start) -> None:
    export = start(headers=(TelemetryHeaderSettings(name="authorization", value="Bearer of-this-test"),))
    counter = Metric("iotmq_sends_total", "counter", "Sends.", 3)
    export.give([GAUGE, counter, *histogram("1"), *histogram("2")])
    found = eventually(receiver.metrics, "an export")
    assert receiver.headers[0]["authorization"] == "Bearer of-this-test"
    assert receiver.resource()["service.instance.id"] == "gw-1"
    depth, sends, puts = found["iotmq_depth_bytes"], found["iotmq_sends_total"], found["iotmq_put_seconds"]
    assert (depth.description, depth.unit, puts.unit) == ("Depth.", "By", "s")
    (point,) = depth.gauge.data_points
    assert (point.as_double, attributes_of(point)) == (1.5, {"queue": "a"})
    (point,) = sends.sum.data_points
    assert (point.as_double, sends.sum.is_monotonic) == (3.0, True)
    first, second = puts.histogram.data_points
    assert (list(first.bucket_counts), list(first.explicit_bounds)) == ([3, 2], [0.25])
    assert (first.count, first.sum, second.count) == (5, 1.5, 5)
    assert not first.HasField("min")
    (exemplar,) = first.exemplars
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex(), exemplar.as_double) == (TRACE, SPAN, 0.3)
    eventually(lambda: counted(export)["exports_total", "metrics"] == 1, "the count")


def test_what_a_receiver_refuses_is_counted_and_the_next_goes_through(
    receiver: OtlpReceiver, start: Start
) -> None:
    receiver.status = 400
    own = Tracing()
    export = start(own)
    export.give([GAUGE])
    own.received(None, "pump", b"t", "telemetry", 0, 3).end("refused")
    eventually(lambda: counted(export)["failed_exports_total", "metrics"] == 1, "a failed export")
    eventually(lambda: counted(export)["failed_exports_total", "spans"] == 1, "failed spans")
    receiver.status = 200
    export.give([GAUGE])
    own.received(None, "pump", b"t", "telemetry", 0, 3).end("refused")
    (span,) = eventually(receiver.spans, "the next span")
    assert (span.status.code, span.status.message) == (2, "refused")
    assert eventually(receiver.metrics, "the next export")


def test_the_last_of_it_is_exported_at_the_stop(receiver: OtlpReceiver, start: Start) -> None:
    own = Tracing()
    export = start(own)
    export.give([GAUGE])
    own.received(None, "pump", b"t", "telemetry", 0, 3).end()
    export.stop()
    assert receiver.metrics().keys() == {"iotmq_depth_bytes"}
    assert len(receiver.spans("receive")) == 1


def test_of_snapshots_that_wait_the_latest_is_exported() -> None:
    used = TelemetrySettings(endpoint="http://127.0.0.1:9")
    export = OtlpExport(used, None, instance="gw-1")
    export.give([GAUGE])
    export.give([])
    assert counted(export)["left_out_snapshots_total",] == 1


def test_without_the_packages_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigError, match="iotmq\\[otlp\\]"):
        OtlpExport(TelemetrySettings(endpoint="http://127.0.0.1:9"), None, instance="gw-1")
