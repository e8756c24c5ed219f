"""Connections on their way in: what comes before MQTT, which is a header of a proxy or a handshake of TLS.

Operations: accept, read a header, wait for a ClientHello, shake hands. Goals: a connection that says nothing,
or half of something, costs a socket and a timer, no transport and no buffer; a flood of handshakes costs the
devices that are connected at most a few milliseconds in a turn of the loop. Plan: bytes are peeked at in the
kernel until they are what a handshake begins with, in whole; then so many of these begin in a turn, and so
many are under way at a time. Of what is peeked at only a header is read, so the transport starts with an
untouched socket: it has no way to be handed bytes that were read already.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, NamedTuple, TypeAlias, cast

from iotmq import limits
from iotmq.event_loop import SomePerTurn
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt_front.connection.peer import Peer
from iotmq.mqtt_front.limiting.limiter import Refusal
from iotmq.mqtt_front.listen.own_handshakes import OwnHandshakes
from iotmq.mqtt_front.listen.proxy_header import NO_HEADER, ProxyHeader, ProxyHeaderError, ProxyHeaderReader
from iotmq.mqtt_front.listen.sockets import Sockets
from iotmq.mqtt_front.listen.tls import certificate_identity, has_expired, listener_tls
from iotmq.mqtt_front.settings.listeners import ListenerSettings
from iotmq.remoting.tls.accepting import Acceptor, Starting
from iotmq.supervised import supervise

_log = logging.getLogger("iotmq.mqtt")

MakeProtocol: TypeAlias = Callable[[Peer], asyncio.BaseProtocol]
Enter: TypeAlias = Callable[[str, str | None], Refusal | None]
"""Decides about a connection of a listener from an address."""

_TLS_HANDSHAKE: Final = 0x16
_RECORD_HEADER_BYTES: Final = 5
_PEEK_BYTES: Final = 2_048
#: Why connections end before they are MQTT, as metrics call it.
REASONS: Final = (
    "room",
    "banned",
    "overload",
    "connects_per_s",
    "connections_max",
    "untrusted_proxy",
    "proxy_header",
    "not_tls",
    "timeout",
    "handshakes",
    "handshake",
    "certificate",
    "identity",
)


class Door(NamedTuple):
    """Hold what decides about connections on their way in."""

    has_room: Callable[[], bool]
    """Whether one more connection may be open."""
    enter: Enter
    """Why one of an address may not, as soon as the address is known."""


class Handshakes:
    """Accepts for one listener; hands connections over when they are ready for `make`'s protocol."""

    def __init__(
        self,
        settings: ListenerSettings,
        listener: socket.socket,
        make: MakeProtocol,
        *,
        door: Door,
        ticket_secret: str = "",
        sockets: Sockets | None = None,
    ) -> None:
        """`listener` is bound and listens. With `sockets` connections by TLS are among these, else they are
        the event loop's.

        ConfigError when a file of the settings is no use.
        """
        self._settings = settings
        self._make = make
        # Of those of whom nothing is known.
        self._peer = Peer(settings.name)
        self._has_room, self._enter = door
        self._trusted = settings.trusted_networks
        self._loop = asyncio.get_running_loop()
        self._tls = listener_tls(settings, ticket_secret=ticket_secret)
        self._reloads = (
            None if self._tls is None else supervise("reading of certificates", self._tls.reload_repeatedly)
        )
        # Those whose next bytes are waited for, and those whose handshake may begin.
        self._waiting: set[_Arrival] = set()
        self._ready: SomePerTurn[_Arrival] = SomePerTurn(self._start, limits.TLS_HANDSHAKES_PER_TURN)
        # Those in the hands of the loop, until they are connected or failed.
        self._starting = Starting() if sockets is None or self._tls is None else OwnHandshakes(sockets)
        self._started: set[_Arrival] = set()
        self._ended = dict.fromkeys(REASONS, 0)
        self._handshakes: Counter[bool] = Counter()
        self._acceptor = Acceptor(listener, self._accepted)

    @property
    def count(self) -> int:
        """Connections that are open and not handed over yet."""
        return len(self._waiting) + len(self._ready) + len(self._started)

    def close(self) -> None:
        """Accept no more, and end what is not handed over."""
        self._acceptor.close()
        if self._reloads is not None:
            self._reloads.cancel()
        for arrival in (*self._waiting, *self._ready.take_all()):
            self._forget(arrival)
            arrival.connection.close()
        self._starting.cancel()

    def metrics(self, labels: tuple[tuple[str, str], ...]) -> Iterable[Metric]:
        """Report the metrics of arriving connections."""
        yield from samples(
            ("iotmq_mqtt_listener_arriving", "Connections that are not MQTT yet.", self.count), labels=labels
        )
        yield from samples_by(
            "reason",
            "iotmq_mqtt_listener_not_arrived_total",
            "Connections that ended before they were MQTT.",
            self._ended,
            labels=labels,
        )
        if self._tls is None:
            return
        yield from samples(
            ("iotmq_mqtt_listener_handshakes", "Handshakes of TLS under way.", self._handshakes_count),
            labels=labels,
        )
        yield from samples_by(
            "resumed",
            "iotmq_mqtt_listener_handshakes_total",
            "Handshakes of TLS that were completed.",
            {"false": self._handshakes[False], "true": self._handshakes[True]},
            labels=labels,
        )
        yield from self._tls.metrics(labels, prefix="iotmq_mqtt_listener_tls")
        if self._tls.lists_expire_s is not None:
            yield from samples(
                (
                    "iotmq_mqtt_listener_tls_revocation_list_expires_seconds",
                    "When the first list of revoked certificates is out of date, in seconds since 1970.",
                    self._tls.lists_expire_s,
                ),
                labels=labels,
            )

    @property
    def _handshakes_count(self) -> int:
        return len(self._ready) + self._starting.handshakes_count

    # Waiting

    def _accepted(self, connection: socket.socket, address: Any) -> None:
        arrival = _Arrival(connection, address)
        if not self._has_room():
            self._refuse(arrival, "room", "mqtt.connections_max are open")
            return
        if self._settings.proxy_protocol:
            if not self._is_trusted(address):
                self._refuse(arrival, "untrusted_proxy", "it is not in proxy_trusted of the listener")
                return
            arrival.reader = ProxyHeaderReader()
        elif self._is_turned_away(arrival, _host_of(address) or None):
            return
        arrival.timer = self._loop.call_later(self._settings.handshake_timeout_s, self._overdue, arrival)
        self._waiting.add(arrival)
        self._loop.add_reader(connection.fileno(), self._look, arrival)
        # A device that speaks first has often done so by now.
        self._look(arrival)

    def _look(self, arrival: _Arrival) -> None:
        """Something may have come."""
        try:
            seen = arrival.connection.recv(_PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            seen = b""
        if not seen:
            self._left(arrival)
        elif arrival.reader is not None:
            self._read_header(arrival, arrival.reader, seen)
        elif seen[0] != _TLS_HANDSHAKE:
            self._refuse(arrival, "not_tls", "this port takes encrypted connections only")
        else:
            self._look_at_hello(arrival, seen)

    def _read_header(self, arrival: _Arrival, reader: ProxyHeaderReader, seen: bytes) -> None:
        """Take the header of a proxy out of the kernel, and leave there what comes behind it."""
        try:
            size = reader.receive_data(seen)
        except ProxyHeaderError as error:
            self._refuse(arrival, "proxy_header", str(error))
            return
        try:
            arrival.connection.recv(size)
        except OSError:  # a reset since the look took it away
            self._left(arrival)
            return
        if reader.header is None:
            return
        arrival.header, arrival.reader = reader.header, None
        if self._is_turned_away(arrival, reader.header.address):
            return
        if self._tls is None:
            self._forget(arrival)
            self._start(arrival)
        else:
            self._look(arrival)

    def _look_at_hello(self, arrival: _Arrival, seen: bytes) -> None:
        """Begin the handshake when the first record is whole; else have the kernel say when it is.

        A kernel that speaks up before, because the device has left or because it does not heed
        SO_RCVLOWAT, has the handshake begin with what is there.
        """
        size = _RECORD_HEADER_BYTES
        if len(seen) >= size:
            size += int.from_bytes(seen[3:5])
        if size > limits.TLS_HELLO_BYTES_MAX:
            self._refuse(arrival, "not_tls", f"a first record of {size} bytes")
        elif len(seen) >= size > _RECORD_HEADER_BYTES or arrival.awaited_bytes == size:
            self._hello_arrived(arrival)
        else:
            arrival.awaited_bytes = size
            arrival.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _is_turned_away(self, arrival: _Arrival, address: str | None) -> bool:
        """Close a connection that may not be there. The log has heard of it, as far as it is to."""
        refusal = self._enter(self._settings.name, address)
        if refusal is None:
            return False
        self._ended[refusal.cause] += 1
        self._left(arrival)
        return True

    def _left(self, arrival: _Arrival) -> None:
        """The peer has gone by itself, which is no fault: balancers see like that whether we listen."""
        self._forget(arrival)
        arrival.connection.close()

    def _overdue(self, arrival: _Arrival) -> None:
        self._refuse(
            arrival, "timeout", f"no handshake or header within {self._settings.handshake_timeout_s} s"
        )

    def _refuse(self, arrival: _Arrival, reason: str, detail: str) -> None:
        self._forget(arrival)
        self._count_end(arrival, reason, detail)
        arrival.connection.close()

    def _forget(self, arrival: _Arrival) -> None:
        """Forget a connection whose first bytes were waited for."""
        if arrival.timer is not None:
            arrival.timer.cancel()
            arrival.timer = None
        if arrival in self._waiting:
            self._waiting.discard(arrival)
            self._loop.remove_reader(arrival.connection.fileno())

    def _count_end(self, arrival: _Arrival, reason: str, detail: str) -> None:
        self._ended[reason] += 1
        _log.warning(
            "connection closed before MQTT",
            extra={
                "listener": self._settings.name,
                "peer": arrival.header.address or _host_of(arrival.address),
                "reason": reason,
                "detail": detail,
            },
        )

    def _is_trusted(self, address: Any) -> bool:
        """Return whether a header from there counts."""
        host = _host_of(address)
        if not host:
            return True  # whoever may write to the socket
        proxy = ip_address(host.partition("%")[0])
        if isinstance(proxy, IPv6Address) and proxy.ipv4_mapped is not None:
            proxy = proxy.ipv4_mapped
        return any(proxy in network for network in self._trusted)

    # Starting

    def _hello_arrived(self, arrival: _Arrival) -> None:
        if self._handshakes_count >= self._settings.handshakes_max:
            self._refuse(arrival, "handshakes", f"{self._handshakes_count} handshakes are under way")
            return
        self._forget(arrival)
        if arrival.awaited_bytes:
            arrival.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._ready.add(arrival)

    def _start(self, arrival: _Arrival) -> None:
        self._started.add(arrival)

        def entered(transport: asyncio.Transport) -> None:
            self._started.discard(arrival)
            self._hand_over(arrival, transport)

        def done(error: Exception | None) -> None:
            if arrival in self._started:
                self._started.discard(arrival)
                self._count_end(arrival, _reason_of(error), str(error or "the peer left"))

        self._starting.start(arrival.connection, lambda: _Entrance(entered), self._tls, done)

    def _hand_over(self, arrival: _Arrival, transport: asyncio.Transport) -> None:
        """There is a transport that is ready for MQTT."""
        settings, header = self._settings, arrival.header
        shown: dict[str, Any] | None = None
        identity = header.certificate_name if settings.proxy_identity_trusted else None
        if self._tls is not None:
            encrypted: ssl.SSLObject = transport.get_extra_info("ssl_object")
            certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
            is_resumed = bool(encrypted.session_reused)
            self._handshakes[is_resumed] += 1
            refusal = self._refusal_of(certificate, is_resumed=is_resumed)
            if refusal is not None:
                self._count_end(arrival, *refusal)
                transport.abort()
                return
            identity = self._identity_of(certificate) or identity
            if certificate:
                shown = {**certificate, "der": encrypted.getpeercert(True)}
            # The transport would keep it as long as the connection.
            certificate.clear()
            if isinstance(self._starting, Starting):
                transport.set_write_buffer_limits(high=limits.TLS_BUFFER_BYTES)
                # Of uvloop's own: what comes from a device that is not read, before the kernel keeps it.
                transport.set_read_buffer_limits(high=limits.TLS_BUFFER_BYTES)  # type: ignore[attr-defined]
        protocol = self._make(self._peer_of(header, identity, shown))
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def _refusal_of(self, certificate: dict[str, Any], *, is_resumed: bool) -> tuple[str, str] | None:
        """Return why a device does not get in although OpenSSL let its certificate pass.

        Reason and detail.
        """
        if not certificate:
            return None
        if is_resumed and has_expired(certificate, time.time()):
            return "certificate", "its certificate has expired since its session began"
        if self._settings.client_identity and self._identity_of(certificate) is None:
            return "identity", f"its certificate has no {self._settings.client_identity}"
        return None

    def _identity_of(self, certificate: dict[str, Any]) -> str | None:
        kind = self._settings.client_identity
        return certificate_identity(certificate, kind) if kind and certificate else None

    def _peer_of(self, header: ProxyHeader, identity: str | None, shown: dict[str, Any] | None) -> Peer:
        if header is NO_HEADER and identity is None and shown is None:
            return self._peer
        return Peer(
            self._settings.name,
            address=header.address,
            certificate_identity=identity,
            is_certificate_user=self._settings.client_identity_is_user,
            server_name=header.server_name,
            proxy_id=header.shown_id,
            certificate=shown,
        )


class _Arrival:
    """A connection that is waited for."""

    __slots__ = ("address", "awaited_bytes", "connection", "header", "reader", "timer")

    def __init__(self, connection: socket.socket, address: Any) -> None:
        self.connection = connection
        self.address = address
        self.timer: asyncio.TimerHandle | None = None
        self.reader: ProxyHeaderReader | None = None
        """Set while a header is read."""
        self.header = NO_HEADER
        self.awaited_bytes = 0
        """With how many bytes the kernel is to speak up; 0 for any."""


class _Entrance(asyncio.Protocol):
    """Keeps the place of the protocol until there is something for it to do."""

    __slots__ = ("_entered",)

    def __init__(self, entered: Callable[[asyncio.Transport], None]) -> None:
        self._entered = entered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop's TLS is none by its class.
        self._entered(cast(asyncio.Transport, transport))


def _host_of(address: Any) -> str:
    """Of what accept() returned; empty for a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""


def _reason_of(error: Exception | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate"
    if isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "certificate"
    if isinstance(error, ConnectionAbortedError):
        return "timeout"
    return "handshake"
