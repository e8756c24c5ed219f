"""The numbers of a running load test for Prometheus, over HTTP on loopback."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from loadtest.runs.load_run import Progress
from loadtest.swarm.errors import SwarmError

_BOUNDS_MS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
# Counters that go up and down.
_GAUGES: Final = {"ready": "connections", "outstanding": "outstanding_messages", "unsent": "unsent_messages"}


def metrics_text(progress: Progress) -> str:
    """The progress in the text format of Prometheus."""
    lines = []
    for name, value in progress.counters.items():
        kind, shown = ("gauge", _GAUGES[name]) if name in _GAUGES else ("counter", f"{name}_total")
        lines += [f"# TYPE iotmq_loadtest_{shown} {kind}", f"iotmq_loadtest_{shown} {value}"]
    lines.append("# TYPE iotmq_loadtest_connection_ends_total counter")
    for group, kinds in progress.ends.items():
        lines += [
            f'iotmq_loadtest_connection_ends_total{{group="{group}",kind="{kind}"}} {count}'
            for kind, count in kinds.items()
        ]
    lines.append("# TYPE iotmq_loadtest_latency_seconds histogram")
    for name, histogram in progress.histograms.items():
        lines += [
            f'iotmq_loadtest_latency_seconds_bucket{{kind="{name}",le="{bound / 1_000:g}"}} '
            f"{histogram.count_until(int(bound * 1e6))}"
            for bound in _BOUNDS_MS
        ]
        lines += [
            f'iotmq_loadtest_latency_seconds_bucket{{kind="{name}",le="+Inf"}} {histogram.count}',
            f'iotmq_loadtest_latency_seconds_count{{kind="{name}"}} {histogram.count}',
            f'iotmq_loadtest_latency_seconds_sum{{kind="{name}"}} {histogram.total_ns / 1e9}',
        ]
    return "\n".join(lines) + "\n"


class LiveMetrics:
    """Answers GET /metrics with what it was shown last. `close` ends it."""

    def __init__(self, port: int) -> None:
        self._text = ""
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                body = metrics._text.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise SwarmError(f"no metrics on 127.0.0.1:{port}: {error}") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def show(self, progress: Progress) -> None:
        """Answer with this from now on."""
        self._text = metrics_text(progress)
