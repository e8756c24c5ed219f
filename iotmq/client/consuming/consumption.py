"""Count a listener's results, topic by topic, over the last minute."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from iotmq.clock import Clock

# The window: so many parts of so many seconds, and the one that is going on.
_PART_S: Final = 10.0
_PARTS: Final = 6


class Rate(NamedTuple):
    """Messages a second, and milliseconds per message on average."""

    consumed_tps: float = 0.0
    failed_tps: float = 0.0
    average_ms: float = 0.0


class _Totals(NamedTuple):
    at_s: float
    consumed: int = 0
    failed: int = 0
    seconds: float = 0.0


class Consumption:
    """Count consumed and failed messages by subscribed topic, once per listener call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now: dict[str, _Totals] = {}
        self._parts: dict[str, deque[_Totals]] = {}

    def count(self, topic: str, *, consumed: int, failed: int, seconds: float) -> None:
        """Count the messages of a listener call that ended."""
        now_s = self._clock.monotonic_s()
        before = self._now.get(topic)
        if before is None:
            before = _Totals(now_s)
            self._parts[topic] = deque([before], maxlen=_PARTS + 1)
        parts = self._parts[topic]
        if now_s - parts[-1].at_s >= _PART_S:
            parts.append(before._replace(at_s=now_s))
        self._now[topic] = _Totals(
            now_s, before.consumed + consumed, before.failed + failed, before.seconds + seconds
        )

    def failed_total(self, topic: str) -> int:
        """Return the number of messages that failed since the start."""
        totals = self._now.get(topic)
        return 0 if totals is None else totals.failed

    def rate(self, topic: str) -> Rate:
        """Compute the rate over the last minute, or since the first call when that was later."""
        now = self._now.get(topic)
        if now is None:
            return Rate()
        now_s = self._clock.monotonic_s()
        parts = self._parts[topic]
        # Parts begin with calls, so in silence they grow old: what is older than the window is over.
        begin = next((part for part in parts if now_s - part.at_s <= _PART_S * _PARTS), None)
        if begin is None:
            return Rate()
        passed_s = max(now_s - begin.at_s, 1.0)
        consumed, failed = now.consumed - begin.consumed, now.failed - begin.failed
        calls = consumed + failed
        return Rate(
            consumed / passed_s,
            failed / passed_s,
            (now.seconds - begin.seconds) * 1_000 / calls if calls else 0.0,
        )
