"""Define what a device says of itself, and what is decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from iotmq.mqtt.reason_codes import Reason
from iotmq.mqtt_front.access.identity import Identity


class Credentials(NamedTuple):
    """Hold the credentials of a device that wants to connect. Do not log the password or the token."""

    client_id: str
    user_name: str | None
    password: bytes | None
    address: str | None
    """Without a port; None at a Unix socket."""
    listener: str
    certificate_identity: str | None = None
    certificate: Mapping[str, Any] | None = None
    """A client certificate that was verified, as SSLSocket.getpeercert() gives it, and `der`: its bytes."""
    token: bytes | None = None
    """A token that came in an exchange, with a CONNECT or an AUTH."""
    protocol_level: int = 4


class Accepted(NamedTuple):
    """The device may connect as `identity`; `data` is the last message of its exchange."""

    identity: Identity
    data: bytes | None = None
    client_id: str | None = None
    """The client id that it gets whatever it asked for; None: the one it asked for."""
    cache_s: float | None = None
    """How long the answer holds; None: as long as the settings of the link say."""


class Denied(NamedTuple):
    """The device may not connect. `cause` is for metrics, `detail` for the log only."""

    reason: Reason
    cause: str
    detail: str = ""
    cache_s: float | None = None
    """How long the answer holds; None: as long as the settings of the link say."""


class NotMine(NamedTuple):
    """A link of the chain knows nothing of the device: the next one is asked."""

    cache_s: float | None = None
    """How long the answer holds; None: as long as the settings of the link say."""


NOT_MINE: Final = NotMine()
NEVER_MINE: Final = NotMine(cache_s=86_400.0)
"""The same, of devices that show nothing that the link could look at."""


class Question(NamedTuple):
    """The exchange goes on: `data` is the next message to the device."""

    data: bytes | None
