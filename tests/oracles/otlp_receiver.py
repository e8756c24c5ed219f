"""A receiver of OTLP over HTTP that remembers what came, as the protocol's own messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """Use as a context manager; `status` is what it answers with."""

    def __init__(self) -> None:
        self.status = 200
        self.metrics_requests: list[ExportMetricsServiceRequest] = []
        self.trace_requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.status == 200:
                    receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                    if self.path == "/v1/metrics":
                        receiver.metrics_requests.append(ExportMetricsServiceRequest.FromString(body))
                    elif self.path == "/v1/traces":
                        receiver.trace_requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing is to be read of it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def spans(self, name: str = "") -> list[Span]:
        """Those that came, in their order; with `name` those of that name."""
        return [
            span
            for request in list(self.trace_requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if name in ("", span.name)
        ]

    def metrics(self) -> dict[str, Metric]:
        """Those of the latest export by name; none before the first."""
        return {metric.name: metric for metric in self._latest()}

    def resource(self) -> dict[str, Any]:
        """The attributes of the process, of the latest export of metrics."""
        (found,) = self.metrics_requests[-1].resource_metrics
        return attributes_of(found.resource)

    def _latest(self) -> Iterator[Metric]:
        for resource in self.metrics_requests[-1].resource_metrics if self.metrics_requests else ():
            for scope in resource.scope_metrics:
                yield from scope.metrics


def attributes_of(of: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}
