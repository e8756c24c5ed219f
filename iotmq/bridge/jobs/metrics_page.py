"""The metrics of a job as a page of 127.0.0.1, for Prometheus."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

_TIMEOUT_S: Final = 10


@contextlib.contextmanager
def metrics_page(render: Callable[[str], tuple[bytes, str]], port: int) -> Iterator[None]:
    """Show metrics at http://127.0.0.1:PORT/metrics until the end of the block; OSError for a port in use.

    `render` takes what the asker accepts, and returns the page and its type (console.exposition).
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            page, content_type = render(self.headers.get("Accept", ""))
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: Prometheus asks every few seconds."""

    server = HTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
