"""Describe the other end of a connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Peer:
    """Describe the peer of a connection; one object for all where a listener knows nothing of each."""

    listener: str
    """The listener's name."""
    address: str | None = None
    """An IP address without a port, as a proxy said it; None: that of the socket, if it has one."""
    certificate_identity: str | None = None
    """The name in a client certificate that was verified."""
    is_certificate_user: bool = False
    """Whether such a name is the connection's user, who is then not asked for a password."""
    server_name: str | None = None
    """The host that the device asked a proxy for."""
    proxy_id: str | None = None
    """The proxy's name for the connection, as in its own log."""
    certificate: Mapping[str, Any] | None = None
    """A client certificate that was verified, as in access.verdicts.Credentials, until the CONNECT."""

    @property
    def shown(self) -> dict[str, str]:
        """Return the facts as fields of a log line."""
        known = {
            "peer": self.address,
            "identity": self.certificate_identity,
            "server_name": self.server_name,
            "proxy_id": self.proxy_id,
        }
        return {"listener": self.listener} | {name: value for name, value in known.items() if value}

    def address_on(self, transport: asyncio.BaseTransport | None) -> str | None:
        """Return the IP address, a proxy's word before the socket's own; None at a Unix socket."""
        if self.address is not None or transport is None:
            return self.address
        name = transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else None

    def with_address(self, transport: asyncio.BaseTransport | None) -> Peer:
        """Return these facts with the address that `address_on` knows."""
        address = self.address_on(transport)
        return self if address is None else dataclasses.replace(self, address=address)
