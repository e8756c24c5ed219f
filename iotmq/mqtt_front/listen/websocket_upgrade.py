"""Check HTTP requests that become a WebSocket with MQTT [RFC 6455 section 4.2, MQTT section 6]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""Names of MQTT for Sec-WebSocket-Protocol, the one that is taken first where several are offered."""


class Headers(Protocol):
    """Headers of a request by name, whatever the case of its letters; a name may have several values."""

    def getall(self, name: str, default: Sequence[str]) -> Sequence[str]:
        """Return all values of a header."""


@dataclass(frozen=True, slots=True)
class UpgradeRules:
    """Hold a listener's rules for an upgrade request."""

    path: str
    origins: frozenset[str]
    """Origins of the pages that may connect, in small letters; all when there are none."""
    is_subprotocol_required: bool


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The request is granted."""

    subprotocol: str | None
    """The server's answer [MQTT-6.0.0-4]; None for a client that offered none and need not."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Report why a request was refused."""

    status: HTTPStatus
    text: str
    headers: tuple[tuple[str, str], ...] = ()


def answer(rules: UpgradeRules, path: bytes, headers: Headers) -> Upgrade | Refusal:
    """Judge a GET request for `path`, which may have a query behind it."""
    if path.partition(b"?")[0] != rules.path.encode():
        return Refusal(HTTPStatus.NOT_FOUND, f"MQTT is at {rules.path}")
    if not _has_token(headers, "Upgrade", "websocket") or not _has_token(headers, "Connection", "upgrade"):
        return Refusal(
            HTTPStatus.UPGRADE_REQUIRED, "this is for WebSocket clients", (("Upgrade", "websocket"),)
        )
    if list(headers.getall("Sec-WebSocket-Version", ())) != ["13"]:
        return Refusal(
            HTTPStatus.UPGRADE_REQUIRED, "the WebSocket version is 13", (("Sec-WebSocket-Version", "13"),)
        )
    origins = [origin.lower() for origin in headers.getall("Origin", ())]
    # Browsers always say it, and only browsers have somebody else's page to be kept out.
    if rules.origins and not rules.origins.issuperset(origins):
        return Refusal(HTTPStatus.FORBIDDEN, "allowed_origins of the listener does not have this origin")
    offered = list(_tokens(headers, "Sec-WebSocket-Protocol"))
    for name in SUBPROTOCOLS:
        if name in offered:
            return Upgrade(name)
    if rules.is_subprotocol_required or offered:  # [MQTT-6.0.0-3]
        return Refusal(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Protocol has to offer mqtt")
    return Upgrade(None)


def _has_token(headers: Headers, name: str, token: str) -> bool:
    return any(value.lower() == token for value in _tokens(headers, name))


def _tokens(headers: Headers, name: str) -> Iterator[str]:
    for value in headers.getall(name, ()):
        for token in value.split(","):
            yield token.strip(" \t")
