"""Define the errors that broken MQTT packets raise inside the language core."""

from __future__ import annotations

from iotmq.errors import PeerError
from iotmq.mqtt.reason_codes import Reason


class MqttProtocolError(PeerError):
    """The device broke a rule of the specification; `reason` says which kind and the text says how."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(reason.v5_code, message)
        self.reason = reason
