"""Audit records of a front end: connections, refusals, denied topics, and what operators do to devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from iotmq.audit_log import AUDIT_TOPIC, AuditLog
from iotmq.clock import Clock
from iotmq.metrics import Metric
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.gateway import AppendDone, GatewayPort


class Audit:
    """The audit records of one front end, written through its gateway. `record` is what parts are given."""

    def __init__(self, settings: MqttSettings, gateway: GatewayPort, clock: Clock, *, source: str) -> None:
        self._log = AuditLog(
            partial(_write, gateway),
            clock,
            source=source,
            events=settings.audit_events,
            per_second_max=settings.audit_records_per_s_max,
        )
        self.refusals = self._log.refusals
        self.heard: Callable[[str, dict[str, str | int | None]], None] | None = None
        """Told of every event, whatever the setting names; None for nobody."""

    def record(self, event: str, **fields: str | int | None) -> None:
        """As `audit_log.no_audit`. Events that the setting does not name cost a look at it."""
        if self.heard is not None:
            self.heard(event, fields)
        self._log.record(event, **fields)

    def close(self) -> None:
        """Hand over all that waits; before the gateway stops."""
        self._log.close()

    def metrics(self) -> Iterable[Metric]:
        return self._log.metrics("iotmq_mqtt")


def facts_of(device: Device) -> dict[str, str | int | None]:
    """Return what a record says of a device."""
    peer = device.peer
    return {
        "client": device.client_id,
        "user": device.user,
        "address": None if peer is None else peer.address_on(device.transport),
        "listener": None if peer is None else peer.listener,
        "certificate": None if peer is None else peer.certificate_identity,
    }


def _write(gateway: GatewayPort, elements: bytes, count: int, is_repeat: bool, done: AppendDone) -> None:
    gateway.append_own(AUDIT_TOPIC, elements, count=count, is_repeat=is_repeat, done=done)
