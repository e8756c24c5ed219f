"""SUBSCRIBE of `$exclusive/FILTER`: a filter like any other, once a broker lets the session have it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from iotmq.limits import MQTT_SUBSCRIPTIONS_PER_PACKET_MAX
from iotmq.metrics import Metric, samples
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.topics.topics import is_exclusive, split_exclusive
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.routing.refused_filters import refused_filter
from iotmq.ports.sessions import (
    EXCLUSIVE,
    ExclusiveClaim,
    Refused,
    SessionPort,
    SessionSubscription,
    UnsubscribeRequest,
)
from iotmq.remoting.codes import ResponseCode

_log: Final = logging.getLogger("iotmq.mqtt")


class ExclusiveSubscriptions:
    """The exclusive subscriptions of one front end's devices; none without a port, or when not enabled."""

    def __init__(self, port: SessionPort | None, *, is_enabled: bool) -> None:
        self._port = port if is_enabled else None
        self.refused = 0
        """Filters that some other session has, or that nobody could decide about."""
        self.lost = 0
        """Subscriptions of sessions that came back, which another session has now."""

    def claim(
        self, device: Device, event: packets.Subscribe, done: Callable[[packets.Subscribe], None]
    ) -> None:
        """Have `done` called with the plain filters in place of `$exclusive/...`, when a broker has decided.

        Those that the session gets have EXCLUSIVE among their options.
        """
        names: dict[str, str] = {}
        for name, _ in event.subscriptions:
            if is_exclusive(name):
                names[name] = self._plain(name)
        plain = [name for name in names.values() if name[0] != "\0"]
        if not plain:
            done(_renamed(event, names))
            return

        def decided(outcomes: list[Refused | None]) -> None:
            codes = {
                name: refused_filter(self._code(device, refused))
                for name, refused in zip(plain, outcomes, strict=True)
                if refused is not None
            }
            done(_renamed(event, {name: codes.get(found, found) for name, found in names.items()}))

        assert self._port is not None
        assert device.client_id is not None
        self._port.claim_exclusive(
            ExclusiveClaim(client_id=device.client_id, epoch=device.epoch, filters=plain), decided
        )

    def resume(
        self,
        device: Device,
        subscriptions: Iterable[SessionSubscription],
        lost: Callable[[Device, list[str]], None],
    ) -> None:
        """A kept session is back: the brokers that decide may be others now. `lost` gets what it has lost."""
        held = list({entry.topic_filter: None for entry in subscriptions if entry.options & EXCLUSIVE})
        # A session may have more than a request of a broker.
        for start in range(0, len(held), MQTT_SUBSCRIPTIONS_PER_PACKET_MAX):
            self._claim_again(device, held[start : start + MQTT_SUBSCRIPTIONS_PER_PACKET_MAX], lost)

    def _claim_again(
        self, device: Device, held: list[str], lost: Callable[[Device, list[str]], None]
    ) -> None:
        if self._port is None or device.client_id is None:
            return

        def decided(outcomes: list[Refused | None]) -> None:
            taken = [
                name
                for name, refused in zip(held, outcomes, strict=True)
                if refused is not None and refused.code == ResponseCode.NO_PERMISSION
            ]
            if taken and device.close_reason is None:
                self.lost += len(taken)
                _log.warning(
                    "exclusive subscriptions lost", extra={"client": device.client_id, "count": len(taken)}
                )
                lost(device, taken)

        self._port.claim_exclusive(
            ExclusiveClaim(client_id=device.client_id, epoch=device.epoch, filters=held), decided
        )

    def release(self, device: Device, filters: Iterable[str]) -> None:
        """A device did not get, or does not want, what it was to have alone."""
        unwanted = list(filters)
        if unwanted and self._port is not None and device.client_id is not None:
            self._port.unsubscribe(
                UnsubscribeRequest(client_id=device.client_id, epoch=device.epoch, filters=unwanted),
                _log_refusal,
            )

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_mqtt_exclusive_refused_total",
                "Exclusive subscriptions that a session did not get.",
                self.refused,
            ),
            (
                "iotmq_mqtt_exclusive_lost_total",
                "Exclusive subscriptions that sessions had lost when they came back.",
                self.lost,
            ),
        )

    def _plain(self, name: str) -> str:
        if self._port is None:
            return refused_filter(reason_codes.TOPIC_FILTER_INVALID)
        try:
            return split_exclusive(name)
        except ValueError:
            return refused_filter(reason_codes.TOPIC_FILTER_INVALID)

    def _code(self, device: Device, refused: Refused) -> int:
        self.refused += 1
        _log.debug("no exclusive subscription", extra={"client": device.client_id, "detail": refused.remark})
        if refused.code == ResponseCode.NO_PERMISSION:
            return reason_codes.QUOTA_EXCEEDED.v5_code
        return reason_codes.SUBACK_FAILURE


def plain_filters(filters: Iterable[str], known: Mapping[str, int]) -> tuple[str, ...]:
    """Filters of an UNSUBSCRIBE, with what is meant by `$exclusive/FILTER` where the session has it so."""
    found = []
    for name in filters:
        plain = name.partition("/")[2] if is_exclusive(name) else name
        found.append(plain if known.get(plain, 0) & EXCLUSIVE else name)
    return tuple(found)


def _renamed(event: packets.Subscribe, names: Mapping[str, str]) -> packets.Subscribe:
    return event._replace(
        subscriptions=tuple(
            (names[name], asked | EXCLUSIVE) if name in names else (name, asked)
            for name, asked in event.subscriptions
        )
    )


def _log_refusal(refused: Refused | None) -> None:
    """Log a release that failed: the broker finds by itself what nobody has any more."""
    if refused is not None:
        _log.debug("an exclusive subscription is not given back", extra={"detail": refused.remark})
