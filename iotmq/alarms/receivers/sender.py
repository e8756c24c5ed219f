"""The protocol of all ways to tell people."""

from __future__ import annotations

from typing import Protocol

from iotmq.alarms.notification import Notification
from iotmq.errors import IotmqError


class DeliveryError(IotmqError):
    """A receiver did not take a notification; the text says why."""


class Sender(Protocol):
    """Tells a receiver."""

    async def send(self, notification: Notification) -> None:
        """Tell it; returns when it has taken it. DeliveryError. How long that may take is the caller's."""

    async def close(self) -> None:
        """End the connections."""
