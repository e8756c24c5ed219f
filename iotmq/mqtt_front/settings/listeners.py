"""Settings of the further places devices connect to (`[[mqtt.listeners]]` of the configuration)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.addresses import address_text, is_loopback, parse_address
from iotmq.ports.websockets import WebSocketPlace
from iotmq.setting_types import FileName, ListenHost, Port

TCP_NAME: Final = "tcp"
"""The name of the listener of `mqtt.listen_port`."""
WORKER_PLACE: Final = "{worker}"
"""Stands in a socket's path for the number of the worker, because no two processes can listen on one."""
ANY_ORIGIN: Final = "*"
"""Among `allowed_origins`: pages of every origin are let in."""


ENCRYPTED_TRANSPORTS: Final = ("tls", "wss")
"""Those that need a certificate."""
WEBSOCKET_TRANSPORTS: Final = ("ws", "wss")


class CertificateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A certificate and its key."""

    certificate_file: Annotated[FileName, Meta(min_length=1)]
    """PEM file with the certificate and those between it and its root."""
    key_file: FileName = ""
    """PEM file with the key; empty when the certificate's file has it."""


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more place where devices connect.

    ValueError when its settings do not belong together.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]*$", max_length=limits.MQTT_LISTENER_NAME_BYTES_MAX)]
    """Name of the listener in logs and metrics; each has another one, and none is "tcp"."""
    transport: Literal["tcp", "tls", "unix", "ws", "wss"]
    """How MQTT is carried: by TCP, by TLS (usually at port 8883), by a Unix socket for this machine only
    ("unix"), in WebSockets ("ws", usually at port 8083), or in WebSockets by TLS ("wss", 8084)."""
    listen_host: ListenHost = "127.0.0.1"
    listen_port: Port = 0
    """TCP port; 0 takes a free one."""
    socket_path: Annotated[str, Meta(max_length=limits.UNIX_SOCKET_PATH_BYTES_MAX)] = ""
    """Where a "unix" listener has its socket. With mqtt.workers above 1 it has to have {worker} in it, for
    the number of the worker."""
    socket_mode: Annotated[str, Meta(pattern=r"^0?[0-7]{3}$")] = "0660"
    """Permissions of that socket in octal digits: users with write permission may connect."""
    certificates: Annotated[
        tuple[CertificateSettings, ...], Meta(max_length=limits.MQTT_LISTENER_CERTIFICATES_MAX)
    ] = ()
    """Certificates of an encrypted listener. A device gets the one with the name it asks for (SNI), else the
    first. These files, and those about clients, are read again when they change; open connections stay."""
    tls_version_min: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS a device may speak."""
    tls_ciphers: Annotated[str, Meta(min_length=1, max_length=1_024)] = "ECDHE+AESGCM:ECDHE+CHACHA20"
    """Ciphers of TLS 1.2, as OpenSSL names them. TLS 1.3 uses its own."""
    client_ca_file: FileName = ""
    """PEM file with the roots of client certificates; empty: devices are not asked for one."""
    client_certificates: Literal["required", "optional"] = "required"
    """Whether devices need a certificate where client_ca_file is set. A device with an invalid certificate is
    always refused."""
    client_crl_files: Annotated[tuple[str, ...], Meta(max_length=limits.MQTT_LISTENER_CRL_FILES_MAX)] = ()
    """PEM files with lists of revoked client certificates, one list for every root. If a list is missing or
    out of date, all client certificates are refused."""
    client_crl_depth: Literal["device", "chain"] = "device"
    """Which certificates are looked up in client_crl_files: only the device's, or also those between it and
    its root."""
    client_identity: Literal["", "cn", "san-dns", "san-uri", "san-email"] = ""
    """Field of a client certificate that is the device's identity: its common name, or its first alternative
    name of a kind. A device whose certificate lacks the field is refused."""
    client_identity_is_user: bool = False
    """Use the identity as the device's user name; no password is asked for then. A device without one is for
    the authentication chain; without a chain it is refused, unless `chain` says that nobody is asked."""
    handshake_timeout_s: Annotated[float, Meta(ge=0.1, le=600.0)] = limits.TLS_HANDSHAKE_S
    """Seconds a device has for the header of the PROXY protocol and the TLS handshake."""
    handshakes_max: Annotated[int, Meta(ge=1, le=100_000)] = limits.TLS_HANDSHAKES_MAX
    """Handshakes at one time; more connections are closed at once. A handshake costs about half a millisecond
    of a core."""
    websocket_path: Annotated[
        str, Meta(pattern=r"^/[!->@-~]*$", max_length=limits.MQTT_WEBSOCKET_PATH_BYTES_MAX)
    ] = "/mqtt"
    """Where a "ws" or "wss" listener has MQTT; every other path is answered with 404."""
    websocket_subprotocol_required: bool = True
    """False: a WebSocket client that names no subprotocol is let in, too. MQTT has them name "mqtt"."""
    allowed_origins: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=limits.MQTT_WEBSOCKET_ORIGIN_BYTES_MAX)], ...],
        Meta(max_length=limits.MQTT_WEBSOCKET_ORIGINS_MAX),
    ] = ()
    """Origins of the web pages whose browsers a WebSocket listener lets in, such as
    https://console.example.com; others are answered with 403. Clients that are not browsers name none. ["*"],
    or empty: all; empty is refused on loopback if devices need not authenticate, because any page in a
    browser of this machine could publish and subscribe."""
    proxy_protocol: bool = False
    """Expect a header of the PROXY protocol, version 1 or 2, at the start of every connection: it carries the
    device's address. A connection without it is closed."""
    proxy_trusted: Annotated[tuple[str, ...], Meta(min_length=1, max_length=limits.PROXY_NETWORKS_MAX)] = (
        "127.0.0.0/8",
        "::1/128",
    )
    """Networks of the load balancers; connections from elsewhere are closed. Connections to a "unix" listener
    are always trusted."""
    chain: Annotated[tuple[str, ...], Meta(max_length=limits.MQTT_LINKS_MAX)] | None = None
    """Names of the links of [[mqtt.authentication.chain]] that are asked about devices of this listener, in
    this order; none given: all of them. ["anonymous"]: nobody is asked."""
    proxy_identity_trusted: bool = False
    """Use the common name of a client certificate that the load balancer has verified as the device's
    identity, as client_identity does for our own."""

    def __post_init__(self) -> None:
        if (self.transport == "unix") != bool(self.socket_path):
            raise ValueError('socket_path is for transport = "unix", which has to have one')
        if self.is_encrypted != bool(self.certificates):
            raise ValueError('certificates are for transport = "tls" or "wss", which have to have one')
        if self.client_ca_file and not self.is_encrypted:
            raise ValueError('client_ca_file is for transport = "tls" or "wss"')
        for name in ("client_crl_files", "client_identity"):
            if getattr(self, name) and not self.client_ca_file:
                raise ValueError(f"{name} means nothing without client_ca_file")
        if self.client_identity_is_user and not (self.client_identity or self.proxy_identity_trusted):
            raise ValueError("client_identity_is_user needs a client_identity or proxy_identity_trusted")
        if self.proxy_identity_trusted and not self.proxy_protocol:
            raise ValueError("proxy_identity_trusted means nothing without proxy_protocol")
        if self.chain is not None and not self.chain:
            raise ValueError('an empty chain lets nobody in; ["anonymous"] asks nobody')
        _ = self.trusted_networks

    @property
    def trusted_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return those of proxy_trusted."""
        try:
            return tuple(ip_network(network) for network in self.proxy_trusted)
        except ValueError as error:
            raise ValueError(f"proxy_trusted: {error}") from error

    @property
    def is_reachable(self) -> bool:
        """Return whether devices of other machines get here, by themselves or through a load balancer."""
        return self.proxy_protocol or (self.is_on_network and not is_loopback(self.listen_host))

    @property
    def is_encrypted(self) -> bool:
        return self.transport in ENCRYPTED_TRANSPORTS

    @property
    def needs_client_certificate(self) -> bool:
        """Return whether nobody gets in without a certificate that was verified."""
        return bool(self.client_ca_file) and self.client_certificates == "required"

    @property
    def is_websocket(self) -> bool:
        """Return whether MQTT is in WebSocket frames."""
        return self.transport in WEBSOCKET_TRANSPORTS

    @property
    def origins(self) -> frozenset[str]:
        """Return the origins that a WebSocket listener lets in, in small letters; empty: all."""
        if ANY_ORIGIN in self.allowed_origins:
            return frozenset()
        return frozenset(origin.lower() for origin in self.allowed_origins)

    @property
    def is_on_network(self) -> bool:
        """Return whether it has a host and a port."""
        return self.transport != "unix"

    @property
    def shown_address(self) -> str:
        """HOST:PORT, with brackets around a host of IPv6; or the path."""
        if not self.is_on_network:
            return self.socket_path
        return address_text(self.listen_host, self.listen_port)


def websocket_places(
    listeners: Iterable[ListenerSettings], addresses: Mapping[str, str]
) -> list[WebSocketPlace]:
    """Return the listeners that browsers can connect to, of those that have an address as `mqtt.NAME`."""
    return [
        WebSocketPlace(
            each.name,
            "wss" if each.is_encrypted else "ws",
            parse_address(addresses[f"mqtt.{each.name}"])[1],
            each.websocket_path,
            each.origins,
        )
        for each in listeners
        # No browser sends the header of a load balancer.
        if each.is_websocket and not each.proxy_protocol and f"mqtt.{each.name}" in addresses
    ]


def tcp_listener(host: str, port: int) -> ListenerSettings:
    """Return the listener of `mqtt.listen_host` and `mqtt.listen_port`, as one of those beside it."""
    return ListenerSettings(name=TCP_NAME, transport="tcp", listen_host=host, listen_port=port)
