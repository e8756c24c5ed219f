"""Follow one master: frames come in, whole pieces of its log come out, and reports of the own position."""

from __future__ import annotations

from typing import Final

from iotmq.limits import HA_UNFINISHED_BYTES_MAX
from iotmq.replication.rocketmq.ha_master import FRAME_HEADER, REPORT

REPORT_S: Final = 5.0
# A master sends a heartbeat every 5 s. One that says nothing for so long is gone, whatever TCP believes.
SILENCE_S: Final = 20.0
# A Java master sends 32 KiB at most; nobody needs more than the buffer of a Java slave.
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024


class HaBrokenError(Exception):
    """Report a frame that does not fit the log here; the connection ends."""


class HaSlave:
    """One connection to a master. `position` is the end of the log here; what follows it is in `data`."""

    def __init__(self, position: int, *, now_s: float, begins_at_zero: bool = False) -> None:
        """`begins_at_zero`: the log is empty, and the master's begins at 0.

        A report of 0 asks for the master's last file only. So 1 is reported, and the byte in front put in
        here: the first byte of a record's size is 0, because no record has 16 MiB.
        """
        assert not begins_at_zero or position == 0
        self.position = position
        self.data = b"\0" if begins_at_zero else b""
        self._unread = b""
        self._heard_s = now_s
        self._reported_s = now_s

    @property
    def expected_position(self) -> int:
        """Return the position that the next frame has to have."""
        return self.position + len(self.data)

    def first_report(self) -> bytes:
        """Return the report that asks for the log, to be sent as soon as the connection is there."""
        return REPORT.pack(self.expected_position)

    def receive_data(self, data: bytes, *, now_s: float) -> None:
        """Take frames; their bytes are behind `data` afterwards. HaBrokenError for what cannot be."""
        self._heard_s = now_s
        unread = self._unread + data
        at = 0
        pieces = [self.data]
        expected = self.expected_position
        while len(unread) - at >= FRAME_HEADER.size:
            position, size = FRAME_HEADER.unpack_from(unread, at)
            if not 0 <= size <= FRAME_BYTES_MAX:
                raise HaBrokenError(f"a frame of {size} bytes, the maximum is {FRAME_BYTES_MAX}")
            if position != expected:
                raise HaBrokenError(f"a frame for position {position}, but {expected} comes next")
            if len(unread) - at < FRAME_HEADER.size + size:
                break
            at += FRAME_HEADER.size
            pieces.append(unread[at : at + size])
            at += size
            expected += size
        self._unread = unread[at:]
        self.data = b"".join(pieces)

    def appended(self, position: int) -> None:
        """Note that the log here ends at `position` now; what is left of `data` begins there.

        HaBrokenError when that is more than a record that is not whole yet can be.
        """
        assert self.position <= position <= self.expected_position
        self.data = self.data[position - self.position :]
        self.position = position
        if len(self.data) > HA_UNFINISHED_BYTES_MAX:
            raise HaBrokenError(
                f"{len(self.data)} bytes from position {position} on that are no whole record"
            )

    def report(self, *, now_s: float, position: int | None = None) -> bytes:
        """Return the report of what the log here has, or of less: up to `position`."""
        self._reported_s = now_s
        if position is None:
            position = self.position
        assert position <= self.position
        # An empty log reports again what it asked for: 0 would be another question.
        return REPORT.pack(position or min(self.expected_position, 1))

    def is_report_due(self, now_s: float) -> bool:
        """Return whether nothing was reported for 5 s."""
        return now_s - self._reported_s >= REPORT_S

    def is_silent(self, now_s: float) -> bool:
        """Return whether the master has said nothing for 20 s."""
        return now_s - self._heard_s > SILENCE_S
