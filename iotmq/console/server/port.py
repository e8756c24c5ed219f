"""The port: it accepts connections, by TLS where there is a certificate, and holds them."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Iterable
from typing import Final

from iotmq import limits
from iotmq.addresses import is_loopback
from iotmq.console.server.connection import Counts, HttpConnection
from iotmq.console.server.messages import Site
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric, samples
from iotmq.remoting.tls.accepting import Acceptor, Starting, listening_sockets
from iotmq.remoting.tls.context import CertificateFiles, ContextSettings
from iotmq.remoting.tls.files import ServerTls
from iotmq.supervised import supervise

logger = logging.getLogger("iotmq.http")

_BACKLOG: Final = 128


class HttpPort:
    """A role. `port` is the bound one after `start()`, also when the setting asked for any free port."""

    def __init__(self, settings: HttpSettings, site: Site) -> None:
        self._settings = settings
        self.site = site
        self.counts = Counts()
        self.head_bytes_max = settings.header_bytes_max
        self.request_timeout_s = settings.request_timeout_s
        self.bodies_bytes = 0
        self._tls = http_tls(settings)
        # These are set while the role runs.
        self._acceptors: list[Acceptor] = []
        self._reloads: asyncio.Task[None] | None = None
        self._starting: Starting | None = None
        self._connections: set[HttpConnection] = set()
        self._is_empty = asyncio.Event()
        self._refused_count = 0
        self._failed_handshakes_count = 0
        self.port = settings.listen_port

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        settings = self._settings
        listening = await listening_sockets(settings.listen_host, settings.listen_port, backlog=_BACKLOG)
        self._starting = Starting()
        self._acceptors = [Acceptor(each, self._accepted) for each in listening]
        if self._tls is not None:
            self._reloads = supervise("reading of certificates", self._tls.reload_repeatedly)
        elif settings.tokens and not is_loopback(settings.listen_host):
            logger.warning("tokens come unencrypted: set http.tls_certificate_file")
        self.port = listening[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and every connection."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = []
        if self._reloads is not None:
            self._reloads.cancel()
            self._reloads = None
        if self._starting is not None:
            self._starting.cancel()
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            self._is_empty.clear()
            await self._is_empty.wait()

    def metrics(self) -> Iterable[Metric]:
        """Report the metrics of this port and its site."""
        yield from samples(
            ("iotmq_http_bad_requests_total", "Requests that were no HTTP.", self.counts.bad),
            (
                "iotmq_http_silent_connections_total",
                "Connections closed because no whole request came in http.request_timeout_s.",
                self.counts.silent,
            ),
            (
                "iotmq_http_refused_connections_total",
                "Connections closed because too many were open.",
                self._refused_count,
            ),
        )
        yield from self.site.metrics()
        if self._tls is not None:
            text = "Connections whose handshake of TLS failed."
            yield from samples(("iotmq_http_failed_handshakes_total", text, self._failed_handshakes_count))
            yield from self._tls.metrics((), prefix="iotmq_http_tls")

    # Connections --------------------------------------------------------------------------------------

    def _accepted(self, connection: socket.socket, _address: object) -> None:
        assert self._starting is not None, "only a role that runs accepts"
        if len(self._connections) + len(self._starting) >= limits.HTTP_CONNECTIONS_MAX:
            self._refused_count += 1
            # Whoever keeps silent ones open does not keep others out: the quietest makes room.
            quietest = min(self._connections, key=lambda each: each.quiet_until_s, default=None)
            if quietest is None or math.isinf(quietest.quiet_until_s):
                connection.close()
                return
            quietest.abort()
        self._starting.start(connection, lambda: HttpConnection(self), self._tls, self._started)

    def _started(self, error: Exception | None) -> None:
        if error is not None:
            self._failed_handshakes_count += 1
            logger.debug("connection not made: %s", error)

    @property
    def unread_bytes(self) -> int:
        """Return how much of their answers the peers have not read."""
        return sum(connection.unread_bytes for connection in self._connections)

    def connected(self, connection: HttpConnection) -> None:
        """Hold a connection until it is lost."""
        self._connections.add(connection)

    def disconnected(self, connection: HttpConnection) -> None:
        """Forget it."""
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()


def http_tls(settings: HttpSettings) -> ServerTls | None:
    """Load the certificate; None without one. ConfigError names a file that is no use."""
    if not settings.tls_certificate_file:
        return None
    return ServerTls(
        ContextSettings(
            certificates=(CertificateFiles(settings.tls_certificate_file, settings.tls_key_file),),
            client_ca_file=settings.tls_client_ca_file,
            application_protocols=("http/1.1",),
        ),
        is_enforced=True,
    )
