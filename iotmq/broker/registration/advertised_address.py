"""The address clients are told: whether they can have use for it, checked when the broker starts.

A broker cannot see what lies between it and its clients, so what looks wrong is said and counted, and the
broker runs: behind an address translation or a port mapping a foreign address is right.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final

from iotmq.addresses import address_text, is_loopback
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import ConnectionClosedError, IotmqError
from iotmq.message.hosts import encode_host
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0
_STARTED: Final = "bootTimestamp"


class AdvertisedAddress:
    """One broker's advertised address. `problems` are the sentences the last check found, none at first."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen_host: str,
        listen_port: int,
        runtime_info: Callable[[], dict[str, str]] | None,
    ) -> None:
        """`runtime_info` is what this broker answers to code 28; by its start it knows itself.

        None where a stranger's question would be refused: by access control, or for want of TLS.
        """
        self._host = host
        self._port = port
        self._listen_host = listen_host
        self._listen_port = listen_port
        self._runtime_info = runtime_info
        self.problems: list[str] = []

    async def check(self) -> None:
        """Look at the address, off the loop where that takes time, and log what is wrong with it."""
        if (self._host, self._port) == (self._listen_host, self._listen_port) and not _is_wildcard(
            self._host
        ):
            # Whoever reaches the listener has the right address.
            return
        problems = await asyncio.to_thread(self._look)
        if not _is_wildcard(self._host):
            problems += await self._knock()
        self.problems = problems
        for problem in problems:
            logger.warning("%s (broker.advertised_host, broker.advertised_port)", problem)

    def metrics(self) -> Iterable[Metric]:
        text = "Problems with the advertised address at the start; the log names them."
        return samples(("iotmq_broker_advertised_address_problems", text, len(self.problems)))

    def _look(self) -> list[str]:
        """Look up problems that the address itself shows. May wait for a name server."""
        host, port = self._host, self._port
        if _is_wildcard(host):
            return [f"clients are told {host}, not an address to connect to: they would reach themselves"]
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            return [f"the advertised name {host} cannot be resolved here: {error}"]
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if all(is_loopback(address) for address in addresses):
            if is_loopback(self._listen_host):
                return []
            return [
                f"clients are told {host}, the loopback of their own machine, "
                f"but the broker listens on {self._listen_host} for others: only local clients can connect"
            ]
        if not any(_is_own(address) for address in addresses):
            return [
                f"the advertised address {host} is none of this machine's: right behind an address "
                "translation or port mapping, else clients cannot connect"
            ]
        if is_loopback(self._listen_host):
            return [
                f"clients are told {host}, but the broker listens on {self._listen_host} only: set "
                "broker.listen_host, or nobody can connect"
            ]
        return []

    async def _knock(self) -> list[str]:
        """Connect to the address as a client would, and see who answers."""
        where = address_text(self._host, self._port)
        try:
            connection = await ClientConnection.connect(self._host, self._port, timeout_s=_TIMEOUT_S)
        except ConnectionClosedError as error:
            return [f"this machine cannot connect to the advertised address {where}: {error}"]
        runtime_info = self._runtime_info
        if runtime_info is None:
            await connection.close()
            return []
        try:
            answer = await connection.request(
                Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=_TIMEOUT_S
            )
        except IotmqError:
            # Somebody was met, who answers otherwise.
            return []
        finally:
            await connection.close()
        if answer.code == ResponseCode.SUCCESS:
            own = f'"{_STARTED}":"{runtime_info()[_STARTED]}"'
            if own.encode() not in answer.body_bytes():
                return [f"another broker answers at the advertised address {where}"]
        return []


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_own(address: str) -> bool:
    """Return whether the kernel lets us use the address as ours."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def resolve_store_host(settings: BrokerSettings) -> bytes:
    """The advertised address as records carry it, for opening the store. OSError for a name unknown now."""
    port = settings.advertised_port or settings.listen_port
    try:
        return encode_host(settings.advertised_host, port)
    except ValueError:
        pass
    found = socket.getaddrinfo(settings.advertised_host, port, type=socket.SOCK_STREAM)
    addresses = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return encode_host(str(addresses[0][4][0]), port)
