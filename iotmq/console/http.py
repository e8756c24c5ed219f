"""The operator's HTTP port: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import h11
import msgspec

from iotmq import limits
from iotmq.addresses import is_loopback
from iotmq.console.exposition import Exposition
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric, MetricSource, samples
from iotmq.remoting.tls.accepting import Acceptor, Starting, listening_sockets
from iotmq.remoting.tls.context import CertificateFiles, ContextSettings
from iotmq.remoting.tls.files import ServerTls
from iotmq.supervised import end, supervise, surviving

logger = logging.getLogger("iotmq.http")

# A check answers None when its part is ready, else the reason why it is not.
ReadinessCheck = Callable[[], str | None]

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
}
# Who was refused may still be sending: closed at once, the connection could take the answer with it.
_LINGER_S: Final = 1.0
_LINGER_READ_BYTES: Final = 65_536
_BACKLOG: Final = 128


class Elsewhere(Protocol):
    """Parts in other processes, which this port answers for."""

    async def refresh(self) -> None:
        """Ask them, in bounded time; what the others here tell is from then."""

    @property
    def not_alive_reason(self) -> str | None:
        """Return why /healthz should say no, None when it should not."""

    def worker_states(self) -> Mapping[str, str | None]:
        """Return why each is not ready, None for those that are. A check says what that means for all."""


class _Answer(NamedTuple):
    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


class HttpServer:
    """A role. `port` is the bound one after `start()`, also when the setting asked for any free port.

    `sources` and `checks` are looked at anew with each request, so parts may join while it runs.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        sources: Collection[MetricSource] = (),
        checks: Mapping[str, ReadinessCheck] | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._settings = settings
        self._exposition = Exposition(sources)
        self._checks: Mapping[str, ReadinessCheck] = {} if checks is None else checks
        self._elsewhere = elsewhere
        self._pages = {b"/metrics": self._metrics, b"/healthz": self._health, b"/readyz": self._readiness}
        self._tls = _tls(settings)
        # Compared as digests, which take as long whatever is wrong.
        self._tokens = tuple(_digest(each.token.encode()) for each in settings.tokens)
        self._open_paths = frozenset(path.encode() for path in settings.open_paths)
        # Both are set while the role runs.
        self._acceptors: list[Acceptor] = []
        self._reloads: asyncio.Task[None] | None = None
        self._starting: Starting | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._bad_count = 0
        self._silent_count = 0
        self._refused_count = 0
        self._unauthorized_count = 0
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
        await end(self._connections)

    def metrics(self) -> Iterable[Metric]:
        """Report the metrics of this port itself."""
        yield from samples(
            ("iotmq_http_bad_requests_total", "Requests that were no HTTP.", self._bad_count),
            (
                "iotmq_http_silent_connections_total",
                "Connections closed because no whole request came in http.request_timeout_s.",
                self._silent_count,
            ),
            (
                "iotmq_http_unauthorized_total",
                "Requests without a token of http.tokens.",
                self._unauthorized_count,
            ),
            (
                "iotmq_http_refused_connections_total",
                "Connections closed because too many were open.",
                self._refused_count,
            ),
        )
        if self._tls is not None:
            text = "Connections whose handshake of TLS failed."
            yield from samples(("iotmq_http_failed_handshakes_total", text, self._failed_handshakes_count))
            yield from self._tls.metrics((), prefix="iotmq_http_tls")

    # Connections --------------------------------------------------------------------------------------

    def _accepted(self, connection: socket.socket, _address: object) -> None:
        assert self._starting is not None, "only a role that runs accepts"
        if len(self._connections) + len(self._starting) >= limits.HTTP_CONNECTIONS_MAX:
            self._refused_count += 1
            connection.close()
            return

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=self._settings.header_bytes_max)
            return asyncio.StreamReaderProtocol(reader, self._connected)

        self._starting.start(connection, protocol, self._tls, self._started)

    def _started(self, error: Exception | None) -> None:
        if error is not None:
            self._failed_handshakes_count += 1
            logger.debug("connection not made: %s", error)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(serving)
        serving.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header_bytes_max = self._settings.header_bytes_max
        # It refuses what is larger than its limit and not complete, and `_request` reads no more than ours.
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=header_bytes_max - 1)
        try:
            with surviving("http"):
                await self._answer_requests(protocol, reader, writer)
        finally:
            writer.close()

    async def _answer_requests(
        self, protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    request = await self._request(protocol, reader)
                    if request is None:
                        return
                    if self._is_authorized(request):
                        answer = await self._answer(request)
                    else:
                        answer = self._refused(writer)
                    writer.write(_encoded(protocol, answer, has_body=request.method != b"HEAD"))
                    await writer.drain()
                if protocol.our_state is not h11.DONE:
                    return
                protocol.start_next_cycle()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            self._bad_count += 1
            detail = ascii(str(error))[:100]
            logger.warning("bad request", extra={"code": status, "detail": detail})
            writer.write(_encoded(protocol, _Answer(b"bad request\n", status)))
            await _linger(reader, writer)
        except TimeoutError:
            self._silent_count += 1
            writer.transport.abort()
        except ConnectionError as error:
            logger.debug("connection lost: %s", error)

    async def _request(self, protocol: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
        """Read a request to its end, its body without keeping it; None when the peer has closed."""
        request = None
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                held, _ = protocol.trailing_data
                protocol.receive_data(await reader.read(self._settings.header_bytes_max - len(held)))
            elif isinstance(event, h11.Request):
                if not event.http_version.startswith(b"1."):
                    raise h11.RemoteProtocolError("another version of HTTP")
                request = event
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return request

    # Pages --------------------------------------------------------------------------------------------

    def _is_authorized(self, request: h11.Request) -> bool:
        """Return whether the request needs no token, or has one."""
        if not self._tokens or request.target.partition(b"?")[0] in self._open_paths:
            return True
        given = [value for name, value in request.headers if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer":
            return False
        digest = _digest(token.strip())
        # All of them are looked at, so that the time does not tell which is nearly right.
        return sum(hmac.compare_digest(digest, each) for each in self._tokens) > 0

    def _refused(self, writer: asyncio.StreamWriter) -> _Answer:
        self._unauthorized_count += 1
        peer = writer.get_extra_info("peername")
        logger.warning("request without a token", extra={"peer": peer[0] if peer else ""})
        return _Answer(
            b"a token of http.tokens is needed\n",
            401,
            headers=(("WWW-Authenticate", 'Bearer realm="iotmq"'),),
        )

    async def _answer(self, request: h11.Request) -> _Answer:
        page = self._pages.get(request.target.partition(b"?")[0])
        if page is None:
            return _Answer(b"not found\n", 404)
        if request.method not in (b"GET", b"HEAD"):
            return _Answer(b"method not allowed\n", 405, headers=(("Allow", "GET, HEAD"),))
        if self._elsewhere is not None:
            await self._elsewhere.refresh()
        return page(request)

    def _metrics(self, request: h11.Request) -> _Answer:
        accepted = b",".join(value for name, value in request.headers if name == b"accept")
        body, content_type = self._exposition.render(accepted.decode("latin-1"))
        return _Answer(body, content_type=content_type)

    def _health(self, _request: h11.Request) -> _Answer:
        """Answered by the loop that serves everything else: an answer is the proof that it turns."""
        reason = None if self._elsewhere is None else self._elsewhere.not_alive_reason
        return _Answer(f"{reason or 'ok'}\n".encode(), 503 if reason else 200)

    def _readiness(self, _request: h11.Request) -> _Answer:
        """200 when every part is ready; 503 with the reasons of those that are not."""
        reasons = {name: check() for name, check in self._checks.items()}
        is_ready = not any(reasons.values())
        if self._elsewhere is not None:
            reasons |= self._elsewhere.worker_states()
        parts = {name: reason or "ready" for name, reason in reasons.items()}
        body = msgspec.json.encode({"ready": is_ready, "parts": parts})
        return _Answer(body, 200 if is_ready else 503, "application/json")


def _tls(settings: HttpSettings) -> ServerTls | None:
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


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _encoded(protocol: h11.Connection, answer: _Answer, *, has_body: bool = True) -> bytes:
    headers = [
        ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        *answer.headers,
    ]
    reason = _REASONS.get(answer.status, "")
    head = protocol.send(h11.Response(status_code=answer.status, headers=headers, reason=reason.encode()))
    body = protocol.send(h11.Data(answer.body)) if has_body else b""
    return b"".join((head or b"", body or b"", protocol.send(h11.EndOfMessage()) or b""))


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what still comes, for a moment, until the peer has the answer and closes."""
    try:
        async with asyncio.timeout(_LINGER_S):
            # TLS has no end of one direction.
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(_LINGER_READ_BYTES):
                pass
    except TimeoutError:
        writer.transport.abort()
