"""Avoid failing and slow brokers for a while when queues are chosen in turn."""

from __future__ import annotations

from iotmq.limits import BROKERS_MAX

FAILED_AVOID_S_MIN = 0.5


class BrokerHealth:
    """Judge each broker by its recent sends. Time is an argument, in monotonic seconds."""

    __slots__ = ("_avoided", "_avoided_s_max", "_slow_s")

    def __init__(self, *, slow_s: float, avoided_s_max: float) -> None:
        self._slow_s = slow_s
        self._avoided_s_max = avoided_s_max
        # Until when, and failures in a row; the one that was heard of longest ago comes first.
        self._avoided: dict[str, tuple[float, int]] = {}

    def answered(self, broker_name: str, *, took_s: float, now_s: float) -> None:
        """Note a send that was stored after `took_s`; a slow one earns a pause of twice that time."""
        if took_s > self._slow_s:
            self._avoid(broker_name, now_s + min(2 * took_s, self._avoided_s_max), 0)
        elif self._avoided:
            self._avoided.pop(broker_name, None)

    def failed(self, broker_name: str, *, now_s: float) -> None:
        """Note a send that failed or found no connection; the pause doubles with each failure in a row."""
        _, failures = self._avoided.get(broker_name, (0.0, 0))
        pause_s = min(FAILED_AVOID_S_MIN * 2.0 ** min(failures, 30), self._avoided_s_max)
        self._avoid(broker_name, now_s + pause_s, failures + 1)

    def _avoid(self, broker_name: str, until_s: float, failures: int) -> None:
        self._avoided.pop(broker_name, None)
        if len(self._avoided) >= BROKERS_MAX:
            del self._avoided[next(iter(self._avoided))]
        self._avoided[broker_name] = (until_s, failures)

    def is_avoided(self, broker_name: str, now_s: float) -> bool:
        """Return whether round-robin should use other brokers, if there are any."""
        avoided = self._avoided.get(broker_name)
        return avoided is not None and now_s < avoided[0]

    @property
    def has_avoided(self) -> bool:
        """False lets the caller skip asking about single brokers."""
        return bool(self._avoided)
