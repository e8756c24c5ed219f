"""Who is at the other end of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iotmq.mqtt_front.device import Device


@dataclass(frozen=True, slots=True)
class Peer:
    """What a listener knows of a connection; one for all of them where it knows nothing of each."""

    listener: str
    """The listener's name."""
    address: str | None = None
    """An IP address without a port, as a proxy said it; None: that of the socket, if it has one."""
    certificate_identity: str | None = None
    """The name in a client certificate that was verified."""
    is_certificate_user: bool = False
    """Whether that name is the connection's user, who is then not asked for a password."""


def address_of(device: Device) -> str | None:
    """The IP address a device has, as far as it is known; None at a Unix socket."""
    if device.peer.address is not None:
        return device.peer.address
    if device.transport is None:
        return None
    name = device.transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else None
