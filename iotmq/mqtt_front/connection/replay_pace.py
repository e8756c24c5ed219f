"""Limit how fast a device is sent its backlog and retained messages, in messages and bytes a second."""

from __future__ import annotations

from typing import Final, NamedTuple

# What may come at once: so much of a second's worth, and one message at least.
BURST_S: Final = 0.1


class PaceLimits(NamedTuple):
    """0 is no limit."""

    messages_per_s: int = 0
    bytes_per_s: int = 0

    def begin(self) -> Pace | None:
        """A pace for one device; None without limits."""
        return Pace(self) if self.messages_per_s or self.bytes_per_s else None

    def records_at_once(self, count_max: int) -> int:
        """Return how many records are worth reading in one go."""
        if not self.messages_per_s:
            return count_max
        return min(count_max, int(self.messages_per_s * BURST_S) + 1)


class Pace:
    """Says when the next message may go; each that has gone takes its part of a second."""

    __slots__ = ("_limits", "_next_s")

    def __init__(self, limits: PaceLimits) -> None:
        self._limits = limits
        # When all that has gone would have gone at the pace.
        self._next_s = 0.0

    def pause_s(self, now_s: float) -> float:
        """Return how long to wait, so that a burst may follow; 0 when a message may go."""
        return self._next_s - now_s + BURST_S if self._next_s > now_s else 0.0

    def count(self, size: int, now_s: float, *, count: int = 1) -> None:
        """A message has gone, or several, of `size` bytes together."""
        messages_per_s, bytes_per_s = self._limits
        takes_s = max(
            count / messages_per_s if messages_per_s else 0.0, size / bytes_per_s if bytes_per_s else 0.0
        )
        self._next_s = max(self._next_s, now_s - BURST_S) + takes_s
