"""Count the traffic of connections, and limit the lines they may log about their peers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from traceback import extract_tb
from typing import Final

from iotmq.metrics import Metric, samples
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
        prefix = "iotmq_remoting_"
        yield from samples(
            (f"{prefix}connections", "Open native connections.", connections),
            (f"{prefix}unfinished_bytes", "Bytes of frames not whole yet.", self.unfinished_bytes),
            labels=labels,
        )
        for name, help_text, value in (
            ("connections_opened", "Native connections accepted.", self.connections_opened),
            ("tls_connections", "Native connections by TLS accepted.", self.tls_connections),
            ("requests", "Requests received.", self.requests),
            ("requests_refused", "Requests refused: too many in flight.", self.requests_refused),
            ("requests_timed_out", "Requests to peers that got no answer in time.", self.requests_timed_out),
            ("request_errors", "Requests answered with an error code.", self.request_errors),
            ("responses_unmatched", "Responses to no waiting request.", self.responses_unmatched),
            ("handler_failures", "Requests that failed for a fault of iotmq.", self.handler_failures),
            ("frames_ignored", "Frames with an empty header, skipped.", self.frames_ignored),
            ("received_bytes", "Bytes received.", self.bytes_received),
            ("sent_bytes", "Bytes sent.", self.bytes_sent),
        ):
            yield Metric(f"{prefix}{name}_total", "counter", help_text, value, labels)
        for reason, count in self.malformed.items():
            yield Metric(
                f"{prefix}malformed_frames_total", "counter", "Connections ended by malformed frames.",
                count, (*labels, ("reason", reason)),
            )  # fmt: skip
        for close_reason, count in self.closed.items():
            yield Metric(
                f"{prefix}connections_closed_total", "counter", "Connections ended by this side.",
                count, (*labels, ("reason", close_reason)),
            )  # fmt: skip
