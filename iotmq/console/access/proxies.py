"""Requests that come through proxies: from where they came before, and below which path."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Final, TypeAlias

from iotmq.console.server.messages import Request
from iotmq.credentials.addresses import parsed

Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,255}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")
_WITH_PORT: Final = re.compile(r"(\d[\d.]*):\d{1,5}|\[([0-9A-Fa-f:.]+)\](?::\d{1,5})?")
# More proxies in a row than anybody has; what stands in front of them is not looked at.
_HOPS_MAX: Final = 16


def networks_of(texts: Iterable[str]) -> Networks:
    """Return addresses and networks; ValueError names one that is none."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is no address or network: {error}") from None
    return tuple(found)


class Proxies:
    """The proxies of the settings; what others say of a request's way does not count."""

    def __init__(self, networks: Networks, base_path: str) -> None:
        self._networks = networks
        self._base_path = base_path

    def seen(self, request: Request) -> Request:
        """Return the request as its sender has made it, with the path below `base_path`."""
        base = self._base_path
        if base and (request.path == base or request.path.startswith(f"{base}/")):
            request = request._replace(path=request.path[len(base) :] or "/")
        if not self._networks or not self._is_proxy(request.peer):
            return request
        headers = request.headers
        host = _last(headers, "x-forwarded-host")
        if _HOST.fullmatch(host):
            headers = {**headers, "host": host}
        return request._replace(
            headers=headers,
            peer=self._sender(request),
            is_encrypted=_last(headers, "x-forwarded-proto").lower() == "https",
            proxy=request.peer,
        )

    def _sender(self, request: Request) -> str:
        """Return the last address of the way that is no proxy of ours: the ones in front anybody can say."""
        sender = request.peer
        way = request.headers.get("x-forwarded-for", "").rsplit(",", _HOPS_MAX)[-_HOPS_MAX:]
        for text in reversed(way):
            address = parsed(_without_port(text.strip()))
            if address is None:
                break
            sender = str(address)
            if not self._is_proxy(sender):
                break
        return sender

    def _is_proxy(self, address: str) -> bool:
        found = parsed(address)
        return found is not None and any(found in network for network in self._networks)


def _without_port(text: str) -> str:
    """Return the address of a hop; some proxies write the port behind it, too."""
    found = _WITH_PORT.fullmatch(text)
    return text if found is None else found[1] or found[2]


def _last(headers: Mapping[str, str], name: str) -> str:
    """Return what the nearest proxy has said."""
    return headers.get(name, "").rpartition(",")[2].strip()
