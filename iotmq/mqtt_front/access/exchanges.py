"""Exchanges of AUTH packets of MQTT 5, by the method that the CONNECT names.

There is no standard for tokens. The method iotmq-jwt, whose name says whose it is:

    CONNECT, data = token               -> CONNACK, or AUTH 0x18 without data when there was no token
    AUTH 0x19, data = another token     -> AUTH 0x00: the connection lasts as long as the new token
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.mqtt_front.access.verdicts import Accepted, Denied, Question


class Presented(NamedTuple):
    """The device has shown a token, about which the chain is asked."""

    token: bytes


class Exchange(Protocol):
    """One of them. `data` is that of the device's CONNECT or AUTH."""

    def step(self, data: bytes | None) -> Question | Presented | Accepted | Denied: ...


class TokenExchange:
    """One that has the device show a token."""

    def __init__(self) -> None:
        self._is_asked = False

    def step(self, data: bytes | None) -> Question | Presented | Denied:
        """Take the data of the device's CONNECT or AUTH."""
        if data:
            return Presented(data)
        if self._is_asked:
            return Denied(NOT_AUTHORIZED, "exchange", "no token in the exchange")
        self._is_asked = True
        return Question(None)
