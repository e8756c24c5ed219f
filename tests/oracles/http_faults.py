"""A small HTTP server for tests that can be told to answer wrongly, late or not at all."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Self

import pytest
from aiohttp import web

from iotmq.errors import ConsensusUnavailableError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FaultyServer:
    """`async with` serves on a free port of loopback; `fail` makes the next requests for a path go wrong.

    Faults: "lost" does what was asked for and closes the connection, "hang" does it and never answers,
    "refuse:STATUS" does nothing and answers with that status; bytes are the answer, and nothing is done.
    """

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self._faults: dict[str, deque[str | bytes]] = defaultdict(deque)
        self.requests: Counter[str] = Counter()
        self.host = "127.0.0.1"
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    def fail(self, path: str, fault: str | bytes, times: int = 1) -> None:
        self._faults[path].extend([fault] * times)

    def mend(self) -> None:
        """Fail no more."""
        self._faults.clear()

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=4 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests[request.path] += 1
        faults = self._faults[request.path]
        if not faults:
            return await self._handler(request)
        fault = faults.popleft()
        if isinstance(fault, bytes):
            return web.Response(body=fault, content_type="application/json")
        if fault.startswith("refuse:"):
            return web.json_response({"message": "refused by a test"}, status=int(fault[7:]))
        await self._handler(request)
        if fault == "lost":
            assert request.transport is not None
            request.transport.abort()
        await asyncio.Event().wait()
        raise AssertionError


async def stream(request: web.Request) -> web.StreamResponse:
    """An answer that goes on."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def patience_ms(fault: str | bytes) -> int:
    """How long to wait: short for what never comes, and long for all else, on a busy machine."""
    return 500 if fault == "hang" else 5_000


async def fails(work: Awaitable[object]) -> str:
    """What an operator reads of a request that failed."""
    with pytest.raises(ConsensusUnavailableError) as caught:
        await work
    return str(caught.value)
