"""Wills with a delay that brokers keep for devices that have gone from this front end.

A broker knows no rules. So the front end looks at them when rules change or somebody is banned, and has the
broker drop those that may not be published any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from iotmq import limits
from iotmq.clock import Clock
from iotmq.mqtt.reason_codes import Reason
from iotmq.mqtt_front.permissions.rights import Rights
from iotmq.mqtt_front.permissions.rule import Use
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.ports.sessions import CloseRequest, SessionPort


class LeftWill:
    """One of them, with what is asked about it; bans end it (limiting.guard)."""

    __slots__ = ("_book", "asked", "close_reason", "epoch", "is_for_rules", "rights", "subject", "until_s")

    def __init__(
        self,
        book: LeftWills,
        subject: Subject,
        rights: Rights | None,
        asked: tuple[str, Use] | None,
        *,
        is_for_rules: bool,
    ) -> None:
        """`asked` as rules are asked about it, `is_for_rules`: nobody else has decided about it."""
        self._book = book
        self.close_reason: Reason | None = None
        self.subject = subject
        self.rights = rights
        self.asked = asked
        self.is_for_rules = is_for_rules
        # Set when it is left.
        self.epoch = 0
        self.until_s = 0.0

    @property
    def client_id(self) -> str:
        return self.subject.client_id

    @property
    def user(self) -> str | None:
        return self.subject.user

    @property
    def address(self) -> str | None:
        return self.subject.address

    def close(self, reason: Reason, detail: str = "") -> None:
        """Have the broker drop it."""
        self.close_reason = reason
        self._book.drop(self)

    def finish(self) -> None:
        """Do nothing more."""


class LeftWills:
    """Those of one front end: of very many the one that was left first is not looked at any more."""

    def __init__(self, port: SessionPort, clock: Clock) -> None:
        self._port = port
        self._clock = clock
        # By client id.
        self._wills: dict[str, LeftWill] = {}

    def __len__(self) -> int:
        return len(self._wills)

    def __iter__(self) -> Iterator[LeftWill]:
        """Yield those whose time has not come."""
        now_s = self._clock.monotonic_s()
        for will in list(self._wills.values()):
            if will.until_s > now_s:
                yield will
            else:
                self.forget(will.client_id)

    def add(self, will: LeftWill, *, epoch: int, delay_s: float) -> None:
        """A device has gone, and its broker has this will."""
        will.epoch = epoch
        will.until_s = self._clock.monotonic_s() + delay_s
        self.forget(will.client_id)
        if len(self._wills) >= limits.MQTT_LEFT_WILLS_MAX:
            del self._wills[next(iter(self._wills))]
        self._wills[will.client_id] = will

    def forget(self, client_id: str) -> None:
        """The device is back, or the will has been published."""
        self._wills.pop(client_id, None)

    def drop(self, will: LeftWill) -> None:
        """Have the broker forget a will."""
        if self._wills.get(will.client_id) is will:
            del self._wills[will.client_id]
            self._port.close_session(
                CloseRequest(client_id=will.client_id, epoch=will.epoch, expiry_s=0, drops_will=True)
            )
