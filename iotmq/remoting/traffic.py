"""Count the traffic of connections, and limit the lines they may log about their peers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from traceback import extract_tb
from typing import Final

from iotmq.metrics import Metric, samples, samples_by
from iotmq.remoting.codes import request_name
from iotmq.remoting.frames.frame import REASONS

_log = logging.getLogger("iotmq.remoting")

_FAILURES_REMEMBERED: Final = 256

#: Why we end connections ourselves, besides malformed frames.
CLOSE_REASONS: Final = ("idle", "slow", "refused", "memory", "handshake", "plain")


class Traffic:
    """Plain counters shared by the connections of one listener or one client."""

    def __init__(self) -> None:
        self.requests = 0
        self.requests_refused = 0
        self.requests_timed_out = 0
        self.request_errors = 0
        self.responses_unmatched = 0
        self.handler_failures = 0
        self.frames_ignored = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.connections_opened = 0
        self.tls_connections = 0
        # Bytes of frames that are not whole yet, of all connections.
        self.unfinished_bytes = 0
        self.malformed = dict.fromkeys(REASONS, 0)
        self.closed = dict.fromkeys(CLOSE_REASONS, 0)
        self._failures_seen: set[str] = set()

    def warn(self, event: str, peer: tuple[str, int], reason: str, detail: str) -> None:
        """Log one line about a peer; what it sent is never part of it, and the log itself stops floods."""
        _log.warning(event, extra={"peer": f"{peer[0]}:{peer[1]}", "reason": reason, "detail": detail})

    def handler_failed(self, code: int, error: Exception) -> None:
        """Count a fault of ours; each place is logged once, with the traceback only for debugging."""
        self.handler_failures += 1
        frames = extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
        if place in self._failures_seen or len(self._failures_seen) >= _FAILURES_REMEMBERED:
            return
        self._failures_seen.add(place)
        _log.error(
            "a request handler failed",
            extra={
                "code": code,
                "request": request_name(code),
                "place": place,
                "detail": ascii(f"{type(error).__name__}: {error}"[:200]),
            },
            exc_info=error if _log.isEnabledFor(logging.DEBUG) else None,
        )

    def metrics(self, connections: int, labels: tuple[tuple[str, str], ...] = ()) -> Iterator[Metric]:
        """Yield the counters as samples; `connections` are those open now."""
        timed_out = self.requests_timed_out
        yield from samples(
            ("connections", "Open native connections.", connections),
            ("unfinished_bytes", "Bytes of frames not whole yet.", self.unfinished_bytes),
            ("connections_opened_total", "Native connections accepted.", self.connections_opened),
            ("tls_connections_total", "Native connections by TLS accepted.", self.tls_connections),
            ("requests_total", "Requests received.", self.requests),
            ("requests_refused_total", "Requests refused: too many in flight.", self.requests_refused),
            ("requests_timed_out_total", "Requests to peers that got no answer in time.", timed_out),
            ("request_errors_total", "Requests answered with an error code.", self.request_errors),
            ("responses_unmatched_total", "Responses to no waiting request.", self.responses_unmatched),
            ("handler_failures_total", "Requests that failed for a fault of iotmq.", self.handler_failures),
            ("frames_ignored_total", "Frames with an empty header, skipped.", self.frames_ignored),
            ("received_bytes_total", "Bytes received.", self.bytes_received),
            ("sent_bytes_total", "Bytes sent.", self.bytes_sent),
            prefix="iotmq_remoting_",
            labels=labels,
        )
        yield from samples_by(
            "reason",
            "iotmq_remoting_malformed_frames_total",
            "Connections ended by malformed frames.",
            self.malformed,
            labels=labels,
        )
        yield from samples_by(
            "reason",
            "iotmq_remoting_connections_closed_total",
            "Connections ended by this side.",
            self.closed,
            labels=labels,
        )
