"""Where browsers find MQTT in WebSockets, as a front end tells the console of its process."""

from __future__ import annotations

from typing import Literal, NamedTuple


class WebSocketPlace(NamedTuple):
    """A listener that browsers can connect to, at the host they know the process by."""

    name: str
    scheme: Literal["ws", "wss"]
    port: int
    path: str
    origins: frozenset[str]
    """Origins of pages that may connect, in small letters; empty: all."""

    def lets_in(self, origin: str) -> bool:
        """Return whether a page of an origin may connect."""
        return not self.origins or origin.lower() in self.origins
