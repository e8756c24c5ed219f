"""Which brokers round-robin passes by for a while: the failing and the slow ones."""

from __future__ import annotations

FAILED_AVOID_S_MIN = 0.5


class BrokerHealth:
    """What recent sends say about each broker. Time is an argument, in monotonic seconds."""

    __slots__ = ("_avoid_until_s", "_avoided_s_max", "_failures", "_slow_s")

    def __init__(self, *, slow_s: float, avoided_s_max: float) -> None:
        self._slow_s = slow_s
        self._avoided_s_max = avoided_s_max
        self._avoid_until_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def answered(self, broker_name: str, *, took_s: float, now_s: float) -> None:
        """A send was stored after `took_s`; a slow one earns a pause of twice that time."""
        if took_s > self._slow_s:
            self._avoid_until_s[broker_name] = now_s + min(2 * took_s, self._avoided_s_max)
        elif self._avoid_until_s:
            self._avoid_until_s.pop(broker_name, None)
        if self._failures:
            self._failures.pop(broker_name, None)

    def failed(self, broker_name: str, *, now_s: float) -> None:
        """A send failed or found no connection; the pause doubles with each failure in a row."""
        failures = self._failures.get(broker_name, 0)
        self._failures[broker_name] = failures + 1
        pause_s = min(FAILED_AVOID_S_MIN * 2.0 ** min(failures, 30), self._avoided_s_max)
        self._avoid_until_s[broker_name] = now_s + pause_s

    def is_avoided(self, broker_name: str, now_s: float) -> bool:
        """True while round-robin should use other brokers, if there are any."""
        until_s = self._avoid_until_s.get(broker_name)
        return until_s is not None and now_s < until_s

    @property
    def has_avoided(self) -> bool:
        """False lets the caller skip asking about single brokers."""
        return bool(self._avoid_until_s)
