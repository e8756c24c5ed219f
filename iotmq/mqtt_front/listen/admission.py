"""Admit or refuse sessions at this front end, and say why."""

from __future__ import annotations

from typing import Final

from iotmq.mqtt.reason_codes import (
    SERVER_BUSY,
    SERVER_SHUTTING_DOWN,
    SERVER_UNAVAILABLE,
    USE_ANOTHER_SERVER,
    Reason,
)
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.limiting.limiter import Refusal
from iotmq.mqtt_front.sessions.drain import Drain

# Connections past the limit that are kept until their CONNECT comes, so that it can be answered.
ANSWERED_PAST_MAX: Final = 64


class Admission:
    """`connections_max` and `server_reference` are the settings."""

    def __init__(self, drain: Drain, *, connections_max: int, server_reference: str) -> None:
        self._drain = drain
        self._no_room = Refusal(SERVER_BUSY, "room", f"mqtt.connections_max is {connections_max}")
        self._elsewhere = (
            USE_ANOTHER_SERVER._replace(server_reference=server_reference) if server_reference else None
        )
        # Connections past a limit whose CONNECT has not come.
        self._past: dict[Device, Refusal] = {}
        self.is_stopping = False

    @property
    def stop_reason(self) -> Reason:
        """Return the reason given to connected devices when the front end stops."""
        return self._drain.reason or self._elsewhere or SERVER_SHUTTING_DOWN

    @property
    def no_room(self) -> Refusal:
        """Return the refusal of a connection past `connections_max`."""
        return self._no_room

    def keep_past(self, device: Device, refusal: Refusal) -> bool:
        """A connection came that is refused; False when it is to be closed at once."""
        if self.is_stopping or len(self._past) >= ANSWERED_PAST_MAX:
            return False
        self._past[device] = refusal
        return True

    def refusal(self, device: Device) -> tuple[Reason, str] | None:
        """Return why the CONNECT of a device is refused; None when it is not."""
        past = self._past.pop(device, None)
        if self._drain.reason is not None:
            self._drain.refused_total += 1
            return self._drain.reason, "this server is being drained"
        if self.is_stopping:
            return self._elsewhere or SERVER_UNAVAILABLE, "this server is shutting down"
        if past is not None:
            return (past.reason if self._elsewhere is None else self._elsewhere), past.detail
        return None

    def lost(self, device: Device) -> None:
        """The connection is over."""
        self._past.pop(device, None)
