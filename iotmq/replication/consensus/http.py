"""HTTP to a consensus store: each request has a time limit, and each answer a limit of bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from typing import Final, NamedTuple

import aiohttp

from iotmq import limits
from iotmq.errors import ConsensusUnavailableError
from iotmq.replication.consensus.renewed import Renewed

# A watch says nothing while nothing changes, and so does one that hangs: it is opened again after this time.
_SILENCE_S: Final = 30.0
# Of one process: a watch, and requests that run at the same time (one for each member's lease).
_CONNECTIONS_MAX: Final = 16
_OK: Final = 200


class RequestNotSentError(ConsensusUnavailableError):
    """No connection could be made, so the request was certainly not carried out."""


class StatusError(ConsensusUnavailableError):
    """An answer that was to go on was refused with an HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Request(NamedTuple):
    """An HTTP request."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


class Answer(NamedTuple):
    """An HTTP answer, whole."""

    status: int
    body: bytes


class HttpClient:
    """Sends requests; make it while an event loop runs.

    Redirects are not followed, cookies not kept, and nothing is decompressed: what a server may cost stays
    what it sends.
    """

    def __init__(self, tls: Renewed[ssl.SSLContext], *, timeout_s: float) -> None:
        self._tls = tls
        self._timeout_s = timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS_MAX),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
            # Half of the time for connecting: a host that is gone leaves time to find that out.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout_s / 2),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def send(self, request: Request) -> Answer:
        """Send a request and return its answer, whatever its status."""
        async with (
            self._named_errors(request),
            asyncio.timeout(self._timeout_s),
            await self._open(request) as answer,
        ):
            return Answer(answer.status, await _body(answer))

    async def follow(self, request: Request, take: Callable[[bytes], None]) -> None:
        """Hand over each line of an answer that goes on, until it ends or nothing comes any more."""
        async with self._named_errors(request):
            async with asyncio.timeout(self._timeout_s):
                answer = await self._open(request)
            # Closed and not released: what is left of the stream is of no interest.
            with closing(answer):
                if answer.status != _OK:
                    async with asyncio.timeout(self._timeout_s):
                        text = (await _body(answer))[:200].decode(errors="replace")
                    raise StatusError(f"{request.url}: status {answer.status}: {text}", answer.status)
                await _follow_lines(answer, take)

    async def _open(self, request: Request) -> aiohttp.ClientResponse:
        return await self._session.request(
            request.method,
            request.url,
            headers=request.headers,
            data=request.body or None,
            ssl=await self._tls.value(),
            allow_redirects=False,
        )

    @asynccontextmanager
    async def _named_errors(self, request: Request) -> AsyncIterator[None]:
        """Turn errors of the network into one that names the server."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise RequestNotSentError(f"{request.url}: {error}") from error
        except aiohttp.ClientConnectorError as error:
            # The text of aiohttp has the address of an object in it.
            raise RequestNotSentError(f"{request.url}: no connection: {error.os_error}") from error
        except aiohttp.ConnectionTimeoutError as error:
            raise RequestNotSentError(f"{request.url}: {error}") from error
        except TimeoutError as error:
            raise ConsensusUnavailableError(f"{request.url}: no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConsensusUnavailableError(f"{request.url}: {error or type(error).__name__}") from error


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        _check_size(body, answer)
    return bytes(body)


async def _follow_lines(answer: aiohttp.ClientResponse, take: Callable[[bytes], None]) -> None:
    held = b""
    while True:
        try:
            async with asyncio.timeout(_SILENCE_S):
                chunk = await answer.content.readany()
        except TimeoutError:
            return
        if not chunk:
            return
        *lines, held = (held + chunk).split(b"\n")
        for line in (*lines, held):
            _check_size(line, answer)
        for line in filter(None, lines):
            take(line)


def _check_size(data: bytes | bytearray, answer: aiohttp.ClientResponse) -> None:
    if len(data) > limits.CONSENSUS_ANSWER_BYTES_MAX:
        answer.close()
        raise ConsensusUnavailableError(
            f"{answer.url}: an answer of more than {limits.CONSENSUS_ANSWER_BYTES_MAX:,} bytes"
        )
