"""Define what a device says of itself, and what is decided about it."""

from __future__ import annotations

from typing import NamedTuple

from iotmq.mqtt.reason_codes import Reason


class Credentials(NamedTuple):
    """Hold the credentials of a device that wants to connect. Do not log the password."""

    client_id: str
    user_name: str | None
    password: bytes | None
    address: str | None
    """Without a port; None at a Unix socket."""
    listener: str
    certificate_identity: str | None = None


class Accepted(NamedTuple):
    """The device is `user`, or anonymous when that is None; `data` is the last message of its exchange."""

    user: str | None
    data: bytes | None = None


class Denied(NamedTuple):
    """The device may not connect. `cause` is for metrics, `detail` for the log only."""

    reason: Reason
    cause: str
    detail: str = ""


class Question(NamedTuple):
    """The exchange goes on: `data` is the next message to the device."""

    data: bytes | None
