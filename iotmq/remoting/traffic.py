"""What connections of one part count, and the few lines they may log about their peers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from traceback import extract_tb
from typing import Final

from iotmq.clock import Clock, SystemClock
from iotmq.metrics import Metric
from iotmq.remoting.codes import request_name
from iotmq.remoting.frame import REASONS

_log = logging.getLogger("iotmq.remoting")

# A peer that sends garbage in a loop must not fill the log: this many lines, then a count of the rest.
_LINES_PER_PERIOD: Final = 10
_PERIOD_S: Final = 10.0
_FAILURES_REMEMBERED: Final = 256

#: Why we end connections ourselves, besides malformed frames.
CLOSE_REASONS: Final = ("idle", "slow", "refused")


class Traffic:
    """Plain counters shared by the connections of one listener or one client."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
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
        self.malformed = dict.fromkeys(REASONS, 0)
        self.closed = dict.fromkeys(CLOSE_REASONS, 0)
        self._period_started_s = -_PERIOD_S
        self._lines_in_period = 0
        self._lines_left_out = 0
        self._failures_seen: set[tuple[int, str]] = set()

    def warn(self, event: str, peer: tuple[str, int], reason: str, detail: str) -> None:
        """Log one line about a peer, at most ten in ten seconds; the next one says how many were left out."""
        now_s = self._clock.monotonic_s()
        if now_s - self._period_started_s >= _PERIOD_S:
            self._period_started_s = now_s
            self._lines_in_period = 0
        if self._lines_in_period >= _LINES_PER_PERIOD:
            self._lines_left_out += 1
            return
        self._lines_in_period += 1
        left_out, self._lines_left_out = self._lines_left_out, 0
        _log.warning(
            "event=%s peer=%s:%d reason=%s left_out=%d detail=%s",
            event, peer[0], peer[1], reason, left_out, detail,
        )  # fmt: skip

    def handler_failed(self, code: int, error: Exception) -> None:
        """Count a fault of ours; each place is logged once, with the traceback only for debugging."""
        self.handler_failures += 1
        frames = extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
        if (code, place) in self._failures_seen or len(self._failures_seen) >= _FAILURES_REMEMBERED:
            return
        self._failures_seen.add((code, place))
        _log.error(
            "event=handler_failed code=%d name=%s place=%s error=%s: %s",
            code, request_name(code), place, type(error).__name__, ascii(str(error)[:200]),
            exc_info=error if _log.isEnabledFor(logging.DEBUG) else None,
        )  # fmt: skip

    def metrics(self, connections: int, labels: tuple[tuple[str, str], ...] = ()) -> Iterator[Metric]:
        """The counters as samples; `connections` are those open now."""
        prefix = "iotmq_remoting_"
        yield Metric(f"{prefix}connections", "gauge", "Open native connections.", connections, labels)
        for name, help_text, value in (
            ("connections_opened", "Native connections accepted.", self.connections_opened),
            ("requests", "Requests received.", self.requests),
            ("requests_refused", "Requests refused: too many in flight.", self.requests_refused),
            ("requests_timed_out", "Our requests that got no answer in time.", self.requests_timed_out),
            ("request_errors", "Requests answered with an error code.", self.request_errors),
            ("responses_unmatched", "Responses to no waiting request.", self.responses_unmatched),
            ("handler_failures", "Requests that hit a fault of ours.", self.handler_failures),
            ("frames_ignored", "Frames with an empty header, skipped.", self.frames_ignored),
            ("received_bytes", "Bytes received.", self.bytes_received),
            ("sent_bytes", "Bytes handed to the transport.", self.bytes_sent),
        ):
            yield Metric(f"{prefix}{name}_total", "counter", help_text, value, labels)
        for reason, count in self.malformed.items():
            yield Metric(
                f"{prefix}malformed_frames_total", "counter", "Connections ended by bytes that are no frame.",
                count, (*labels, ("reason", reason)),
            )  # fmt: skip
        for close_reason, count in self.closed.items():
            yield Metric(
                f"{prefix}connections_closed_total", "counter", "Connections ended by this side.",
                count, (*labels, ("reason", close_reason)),
            )  # fmt: skip
