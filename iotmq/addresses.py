"""Parse and write HOST:PORT; a host of IPv6 has brackets around it."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_FORM: Final = re.compile(r"(?:\[([^\s/\[\]]+)\]|([^\s/\[\]]+?))(?::([0-9]{1,5}))?")


def parse_address(text: str, *, default_port: int | None = None, port_min: int = 1) -> tuple[str, int]:
    """Parse an address into host and port; ValueError names it.

    Brokers may tell an address of IPv6 without brackets: where a port has to be there, it is what follows the
    last colon.
    """
    found = _FORM.fullmatch(text)
    port = default_port if found is None or found[3] is None else int(found[3])
    if found is None or port is None or (default_port is not None and ":" in (found[2] or "")):
        raise ValueError(f"invalid address: {text!r} (expected HOST:PORT, for example 127.0.0.1:9876)")
    if not port_min <= port < 65_536:
        raise ValueError(f"invalid address: {text!r} (expected a port between {port_min} and 65535)")
    return found[1] or found[2], port


def address_text(host: str, port: int) -> str:
    """Write HOST:PORT for people and for the wire."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_address(address: str) -> str:
    """Return where this machine connects to for a listener: one on every address is met on loopback."""
    host, port = parse_address(address)
    return address_text({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a listener on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
