"""Count what is refused, and log it: each rule has a line a second at most, and says how many there were."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from iotmq import limits
from iotmq.audit_log import Record
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.permissions.topic_template import Subject

_log: Final = logging.getLogger("iotmq.mqtt")

_PAUSE_S: Final = 1.0
REVOKED: Final = "revoked"
"""Stands for the end of a subscription that rules allow no more."""
OTHERS: Final = "others"
"""Stands for rules that came when as many were counted as may be."""


class Refusals:
    """The refusals of one front end."""

    def __init__(self, clock: Clock, audit: Record) -> None:
        self._clock = clock
        self._audit = audit
        self._counts: Counter[tuple[str, str]] = Counter()
        # When the next line may be written, and how many refusals have had none.
        self._next_line_s: dict[tuple[str, str], float] = {}
        self._silent: Counter[tuple[str, str]] = Counter()
        self.heard: Callable[[Subject, str, str, str, str], None] | None = None
        """Told of every refusal: to whom, what, the topic, the rule, the detail; None for nobody."""

    @property
    def count(self) -> int:
        """Everything refused so far."""
        return self._counts.total()

    def note(self, subject: Subject, what: str, topic: str, *, rule: str, detail: str = "") -> None:
        """A rule has refused something to a device."""
        if self.heard is not None:
            self.heard(subject, what, topic, rule, detail)
        key = (what, rule)
        if key not in self._counts and len(self._counts) >= limits.MQTT_REFUSING_RULES_MAX:
            key = (what, OTHERS)
        self._counts[key] += 1
        now_s = self._clock.monotonic_s()
        if now_s < self._next_line_s.get(key, 0.0):
            self._silent[key] += 1
            return
        self._next_line_s[key] = now_s + _PAUSE_S
        fields: dict[str, str | int | None] = {
            "what": what,
            "topic": topic,
            "rule": rule,
            "client": subject.client_id,
            "user": subject.user,
            "listener": subject.listener,
        }
        if detail:
            fields["detail"] = detail
        silent = self._silent.pop(key, 0)
        if silent:
            fields["more"] = silent
        _log.warning("a device may not do that", extra=fields | {"peer": subject.address})
        self._audit("revoked" if what == REVOKED else "denied", **fields, address=subject.address)

    def metrics(self) -> Iterable[Metric]:
        for (what, rule), count in sorted(self._counts.items()):
            yield from samples(
                (
                    "iotmq_mqtt_permissions_refused_total",
                    "What devices were refused, by what it was (publish, subscribe, will, revoked) and rule.",
                    count,
                ),
                labels=(("what", what), ("rule", rule)),
            )
