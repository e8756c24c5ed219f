"""Parse the URL of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from iotmq.addresses import address_text
from iotmq.errors import ClientError

Scheme = Literal["mqtt", "mqtts", "ws", "wss", "unix"]

DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 8083, "wss": 8084}
WEBSOCKET_PATH: Final = "/mqtt"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server; `path` is the path of a WebSocket's URL, or of a Unix socket."""

    scheme: Scheme = "mqtt"
    """`mqtt`, `mqtts`, `ws`, `wss` or `unix`; `mqtts` and `wss` are encrypted."""
    host: str = "127.0.0.1"
    """A name or an IP address; unused with `unix`."""
    port: int = 1883
    """The port; unused with `unix`."""
    path: str = ""
    """The path of a WebSocket's URL, or of a Unix socket."""

    @property
    def is_secure(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        path = self.path if self.scheme in ("ws", "wss") else ""
        return f"{self.scheme}://{address_text(self.host, self.port)}{path}"


class ParsedUrl(NamedTuple):
    """The parts of a URL; `topic` is the path of an mqtt or mqtts URL."""

    address: Address
    user_name: str | None
    password: bytes | None
    topic: str


def parse_url(url: str) -> ParsedUrl:
    """Parse `mqtt(s)://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC]`, `ws(s)://...[/PATH]` or `unix:PATH`.

    ClientError for anything else.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ClientError(f"{url}: {error}") from None
    if parts.scheme == "unix":
        path = unquote(parts.netloc + parts.path)
        if not path:
            raise ClientError(f"{url}: a Unix socket has a path, as in unix:/run/mqtt.sock")
        return ParsedUrl(Address("unix", "", 0, path), None, None, "")
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ClientError(f"{url}: the form is mqtt://HOST:PORT/TOPIC, or mqtts, ws, wss or unix")
    is_websocket = parts.scheme in ("ws", "wss")
    raw_path = parts.path + (f"?{parts.query}" if parts.query and is_websocket else "")
    address = Address(
        cast("Scheme", parts.scheme),
        parts.hostname,
        port if port is not None else DEFAULT_PORTS[parts.scheme],
        (raw_path or WEBSOCKET_PATH) if is_websocket else "",
    )
    topic = "" if is_websocket else unquote(parts.path.removeprefix("/"))
    password = None if parts.password is None else unquote(parts.password).encode()
    return ParsedUrl(address, None if parts.username is None else unquote(parts.username), password, topic)


def parse_references(text: str, address: Address) -> list[Address]:
    """Parse a server reference (MQTT 5 section 4.11): HOST[:PORT], separated by spaces.

    They are reached the way `address` is; what cannot be read is left out.
    """
    found = []
    for word in text.split():
        try:
            parts = urlsplit(f"//{word}")
            port = parts.port
        except ValueError:
            continue
        if parts.hostname and address.scheme != "unix":
            found.append(Address(address.scheme, parts.hostname, port or address.port, address.path))
    return found
