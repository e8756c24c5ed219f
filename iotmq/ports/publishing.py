"""Define what the HTTP API asks of the rules by which a front end places what devices publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol


class Placed(NamedTuple):
    """Where a message goes, and with what."""

    topic: str
    """The broker topic; empty: nowhere."""
    key: str
    tags: str
    properties: Mapping[str, str]
    """All that the place gives to its messages; MQTT_TOPIC among them where devices get it."""
    qos_max: int = 2
    expiry_s: int | None = None
    delay_s: int = 0
    is_stored: bool = True
    """False: only those who are subscribed now get it."""
    why: str = ""
    """Why it goes nowhere, or is put aside."""


class PublishPlaces(Protocol):
    """The places of what is published to MQTT topics."""

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to follow changes; `changed` is called when `fixed` may answer differently from now on."""

    def stop(self) -> None:
        """Follow no more."""

    def fixed(self, mqtt_topic: str) -> Placed | None:
        """Return the place of all messages of an MQTT topic; None where each has to be asked about.

        MessageRefusedError for a topic that nobody may publish to.
        """

    def place(self, mqtt_topic: str, payload: bytes, *, expiry_s: int | None, is_retained: bool) -> Placed:
        """Return the place of a message."""
