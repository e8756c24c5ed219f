"""Export metrics and spans to an OpenTelemetry collector, by OTLP over HTTP, from a thread of its own.

The thread waits for the network, nobody else does. It gets snapshots of the metrics from the loop, the latest
of which counts, and takes the spans that ended.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import iotmq
from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples, samples_by
from iotmq.supervised import FAILURES
from iotmq.telemetry.settings import TelemetrySettings
from iotmq.telemetry.tracing import EndedSpan, Tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
    from opentelemetry.sdk.trace import ReadableSpan

_Item = TypeVar("_Item")

# How long spans wait for others that go with them.
_SPANS_S: Final = 1.0
# So long the last ones have at the stop.
_STOP_S: Final = 0.4


class OtlpExport:
    """Exports what it is given, and the spans of `tracing`, while it runs."""

    def __init__(
        self,
        settings: TelemetrySettings,
        tracing: Tracing | None,
        *,
        instance: str,
    ) -> None:
        """`instance` names this process. ConfigError when the packages are not there."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics.export import MetricExportResult
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import SpanExportResult
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise ConfigError(
                f"telemetry.endpoint needs the extra otlp: pip install 'iotmq[otlp]' ({error})"
            ) from error
        self._tracing = tracing
        options: dict[str, Any] = {
            "headers": {each.name: each.value for each in settings.headers} or None,
            "certificate_file": settings.ca_file or None,
            "timeout": settings.timeout_s,
        }
        base = settings.endpoint.rstrip("/")
        self._metric_exporter = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", **options)
        self._span_exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces", **options)
        self._succeeded = (MetricExportResult.SUCCESS, SpanExportResult.SUCCESS)
        self._resource = Resource.create(
            {
                "service.name": "iotmq",
                "service.version": iotmq.__version__,
                "service.instance.id": instance,
                "host.name": socket.gethostname(),
                "process.pid": os.getpid(),
                **settings.resource_attributes,
            }
        )
        self._scope = InstrumentationScope("iotmq", iotmq.__version__)
        self._begun_ns = time.time_ns()
        self._wake = threading.Event()
        self._is_stopping = False
        # The latest snapshot, until the thread takes it.
        self._waiting: list[Metric] | None = None
        self._left_out_total = 0
        self._thread = threading.Thread(target=self._run, name="iotmq-otlp", daemon=True)
        self._ended = threading.Event()
        self._exported = {"metrics": 0, "spans": 0}
        self._failed = {"metrics": 0, "spans": 0}

    def start(self) -> None:
        """Begin to export spans, and what `give` is called with."""
        self._thread.start()

    def give(self, metrics: list[Metric]) -> None:
        """Export these numbers; those before them that still wait are left out."""
        if self._waiting is not None:
            self._left_out_total += 1
        self._waiting = metrics
        self._wake.set()

    def stop(self) -> None:
        """Export what there is, as far as that is a matter of a moment; blocks meanwhile."""
        self._is_stopping = True
        self._wake.set()
        self._ended.wait(_STOP_S)
        # Ends what it may wait for; the thread is a daemon.
        self._metric_exporter.shutdown(timeout_millis=0)
        self._span_exporter.shutdown()  # type: ignore[no-untyped-call]

    def metrics(self) -> Iterable[Metric]:
        """Report what was exported, and what could not be."""
        yield from samples_by(
            "signal",
            "iotmq_telemetry_exports_total",
            "Exports by OpenTelemetry that were taken.",
            self._exported,
        )
        yield from samples_by(
            "signal",
            "iotmq_telemetry_failed_exports_total",
            "Exports by OpenTelemetry that failed: their spans are lost, the metrics come with the next.",
            self._failed,
        )
        yield from samples(
            (
                "iotmq_telemetry_left_out_snapshots_total",
                "Snapshots of the metrics left out because the one before was not exported yet.",
                self._left_out_total,
            )
        )

    # The thread

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(_SPANS_S)
            self._wake.clear()
            self._export()
        self._export()
        self._ended.set()

    def _export(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._attempt("metrics", self._export_metrics, waiting)
        while self._tracing is not None and (spans := self._tracing.take(limits.SPANS_PER_EXPORT_MAX)):
            self._attempt("spans", self._export_spans, spans)

    def _attempt(self, signal: str, export: Callable[[list[_Item]], bool], items: list[_Item]) -> None:
        try:
            is_taken = export(items)
        except Exception:
            # Whatever it is, the next ones are tried.
            FAILURES.note("export by OpenTelemetry")
            is_taken = False
        (self._exported if is_taken else self._failed)[signal] += 1

    def _export_metrics(self, metrics: list[Metric]) -> bool:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics

        converted = list(otlp_metrics(metrics, self._begun_ns, time.time_ns()))
        scope = ScopeMetrics(scope=self._scope, metrics=converted, schema_url="")
        resource = ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")
        return self._metric_exporter.export(MetricsData(resource_metrics=[resource])) in self._succeeded

    def _export_spans(self, spans: list[EndedSpan]) -> bool:
        return self._span_exporter.export([self._readable(span) for span in spans]) in self._succeeded

    def _readable(self, span: EndedSpan) -> ReadableSpan:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import ReadableSpan

        def context(span_id: str, *, is_remote: bool) -> trace.SpanContext:
            sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            return trace.SpanContext(int(span.trace_id, 16), int(span_id, 16), is_remote, sampled)

        kinds = {
            "server": trace.SpanKind.SERVER,
            "internal": trace.SpanKind.INTERNAL,
            "producer": trace.SpanKind.PRODUCER,
        }
        status = trace.Status(trace.StatusCode.ERROR, span.error) if span.error else trace.Status()
        return ReadableSpan(
            name=span.name,
            context=context(span.span_id, is_remote=False),
            parent=context(span.parent_id, is_remote=True) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=kinds[span.kind],
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def otlp_metrics(metrics: Sequence[Metric], begun_ns: int, now_ns: int) -> Iterable[OtlpMetric]:
    """Return the same metrics under the same names, as OpenTelemetry has them."""
    from opentelemetry.sdk.metrics import export

    families: dict[str, list[Metric]] = {}
    for metric in metrics:
        families.setdefault(metric.family, []).append(metric)
    for name, group in families.items():
        first = group[0]
        data: export.Sum | export.Gauge | export.Histogram
        if first.kind == "histogram":
            points = list(_histogram_points(group, begun_ns, now_ns))
            data = export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
        else:
            numbers = [
                export.NumberDataPoint(
                    attributes=dict(metric.labels),
                    start_time_unix_nano=begun_ns,
                    time_unix_nano=now_ns,
                    value=float(metric.value),
                )
                for metric in group
            ]
            data = (
                export.Sum(numbers, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
                if first.kind == "counter"
                else export.Gauge(numbers)
            )
        yield export.Metric(name=name, description=first.help, unit=_unit(name), data=data)


def _histogram_points(group: Sequence[Metric], begun_ns: int, now_ns: int) -> Iterable[Any]:
    from opentelemetry.sdk.metrics import Exemplar
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    by_labels: dict[tuple[tuple[str, str], ...], list[Metric]] = {}
    for metric in group:
        # A worker's number comes behind the bound.
        labels = tuple(label for label in metric.labels if label[0] != "le")
        by_labels.setdefault(labels, []).append(metric)
    for labels, own in by_labels.items():
        buckets = [metric for metric in own if metric.name.endswith("_bucket")]
        below = [int(metric.value) for metric in buckets]
        total = {metric.name.rpartition("_")[2]: metric.value for metric in own}
        # The least and the greatest are not known, which the types do not foresee.
        unknown: dict[str, Any] = {"min": None, "max": None}
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=begun_ns,
            time_unix_nano=now_ns,
            count=int(total["count"]),
            sum=float(total["sum"]),
            bucket_counts=[count - former for count, former in zip(below, [0, *below[:-1]], strict=True)],
            explicit_bounds=[float(_bound(metric.labels)) for metric in buckets[:-1]],
            **unknown,
            exemplars=[
                Exemplar(
                    {},
                    metric.exemplar.value,
                    int(metric.exemplar.time_s * 1e9),
                    int(metric.exemplar.span_id, 16),
                    int(metric.exemplar.trace_id, 16),
                )
                for metric in buckets
                if metric.exemplar is not None
            ],
        )


def _bound(labels: Iterable[tuple[str, str]]) -> str:
    return dict(labels)["le"]


_UNITS: Final[Mapping[str, str]] = {"seconds": "s", "bytes": "By", "ms": "ms", "ratio": "1"}


def _unit(name: str) -> str:
    """Return the unit that the name ends in, as OpenTelemetry writes it."""
    return _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")
