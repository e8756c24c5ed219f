"""The operator's HTTP port: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import h11
import msgspec

from iotmq.console.exposition import Exposition
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric, MetricSource, samples
from iotmq.supervised import end, surviving

logger = logging.getLogger("iotmq.http")

# A check answers None when its part is ready, else the reason why it is not.
ReadinessCheck = Callable[[], str | None]

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
}
# Who was refused may still be sending: closed at once, the connection could take the answer with it.
_LINGER_S: Final = 1.0
_LINGER_READ_BYTES: Final = 65_536


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
        self._listener: asyncio.Server | None = None  # set while the role runs
        self._connections: set[asyncio.Task[None]] = set()
        self._bad_count = 0
        self._silent_count = 0
        self.port = settings.listen_port

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        settings = self._settings
        self._listener = await asyncio.start_server(
            self._connected, settings.listen_host, settings.listen_port, limit=settings.header_bytes_max
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and every connection."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            await end(self._connections)
            await listener.wait_closed()

    def metrics(self) -> Iterable[Metric]:
        """Report the metrics of this port itself."""
        yield from samples(
            ("iotmq_http_bad_requests_total", "Requests that were no HTTP.", self._bad_count),
            (
                "iotmq_http_silent_connections_total",
                "Connections closed because no whole request came in http.request_timeout_s.",
                self._silent_count,
            ),
        )

    # Connections --------------------------------------------------------------------------------------

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
                    answer = await self._answer(request)
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
            writer.write_eof()
            while await reader.read(_LINGER_READ_BYTES):
                pass
    except TimeoutError:
        writer.transport.abort()
