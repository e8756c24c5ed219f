"""Serve one slave: its reports come in, frames with the log's bytes go out."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

REPORT: Final = struct.Struct(">q")
FRAME_HEADER: Final = struct.Struct(">qi")
# A Java slave has a buffer of 4 MiB, and a longer frame stalls it for ever.
FRAME_BYTES_MAX: Final = 128 * 1024
HEARTBEAT_S: Final = 5.0
# A slave reports every 5 s; its connection ends after so long without a report.
SILENCE_S: Final = 20.0


class LogRange(NamedTuple):
    """Where a log begins and ends, and the size of its files."""

    oldest: int
    end: int
    segment_bytes: int


class HaRefusedError(Exception):
    """The slave cannot be served; the text says why, for the log. The connection ends."""


class HaMaster:
    """One connection of a slave. `sent_position` is what comes next, None before the first report."""

    def __init__(self, *, now_s: float, full_copy: bool = False) -> None:
        """With `full_copy` an empty slave gets the log from its oldest file on, else only the last file."""
        self._full_copy = full_copy
        self._unread = b""
        self._heard_s = now_s
        self._written_s = now_s
        self.sent_position: int | None = None
        # The greatest position the slave has reported on this connection; -1 before the first report.
        self.reported_position = -1

    def receive_data(self, data: bytes, log: LogRange, *, now_s: float) -> None:
        """Take reports; only the last whole one counts. HaRefusedError for positions that cannot be."""
        data = self._unread + data
        whole = len(data) - len(data) % REPORT.size
        self._unread = data[whole:]
        for (position,) in REPORT.iter_unpack(data[:whole]):
            self._take_report(position, log)
            self._heard_s = now_s

    def next_range(self, log: LogRange) -> tuple[int, int]:
        """Return position and size of the bytes to be sent next; size 0 when there is nothing to send."""
        position = self.sent_position
        if position is None:
            return 0, 0
        if position < log.oldest:
            raise HaRefusedError(f"the slave is at {position}, and the log begins at {log.oldest} by now")
        file_end = position - position % log.segment_bytes + log.segment_bytes
        return position, max(0, min(log.end, file_end, position + FRAME_BYTES_MAX) - position)

    def send_data(self, size: int, *, now_s: float) -> bytes:
        """Return the header of a frame of so many bytes, which follow it; 0 is a heartbeat."""
        assert self.sent_position is not None, "nothing may be sent before the first report"
        assert 0 <= size <= FRAME_BYTES_MAX
        header = FRAME_HEADER.pack(self.sent_position, size)
        self.sent_position += size
        self._written_s = now_s
        return header

    def is_heartbeat_due(self, now_s: float) -> bool:
        """Return whether the slave has to hear something, because nothing was sent for 5 s."""
        return self.sent_position is not None and now_s - self._written_s >= HEARTBEAT_S

    def is_silent(self, now_s: float) -> bool:
        """Return whether the slave has not reported for 20 s."""
        return now_s - self._heard_s > SILENCE_S

    @property
    def next_deadline_s(self) -> float:
        """Return when to look again at heartbeat and silence."""
        silent_s = self._heard_s + SILENCE_S
        return silent_s if self.sent_position is None else min(self._written_s + HEARTBEAT_S, silent_s)

    def _take_report(self, position: int, log: LogRange) -> None:
        if self.sent_position is None:
            self.sent_position = self._start_of(position, log)
            self.reported_position = position
            return
        if position > self.sent_position:
            raise HaRefusedError(
                f"the slave reports {position}, but was sent the log up to {self.sent_position}"
            )
        self.reported_position = max(self.reported_position, position)

    def _start_of(self, position: int, log: LogRange) -> int:
        if position == 0:
            return log.oldest if self._full_copy else max(log.oldest, log.end - log.end % log.segment_bytes)
        # An empty slave may report 1 (`ha_slave`), also while there is nothing yet.
        if position > max(log.end, 1):
            raise HaRefusedError(f"the slave's log ends at {position}, past the end {log.end} of this one")
        if position < log.oldest:
            raise HaRefusedError(f"the slave's log ends at {position}, and this one begins at {log.oldest}")
        return position
