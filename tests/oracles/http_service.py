"""An operator's service on a real socket, that answers as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpService:
    """`answer` says what the next requests get; `asked` has the bodies of those that came."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.under_way_most = 0
        self.answer: Answer = _not_found
        self._runner: web.AppRunner | None = None

    @property
    def count(self) -> int:
        return len(self.asked)

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def says(self, body: object, **options: Any) -> None:
        """Answer every request with this, as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def answer(_request: web.Request) -> web.StreamResponse:
            return web.Response(body=data, content_type="application/json", **options)

        self.answer = answer

    def hangs(self) -> asyncio.Event:
        """Answer nothing until the event, and then what was said before."""
        former, released = self.answer, asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            await released.wait()
            return await former(request)

        self.answer = answer
        return released

    async def start(self) -> None:
        """Listen, at the port of before if there was one."""
        server = web.Server(self._handle)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        is_form = request.content_type == "application/x-www-form-urlencoded"
        read = dict(parse_qsl(body.decode())) if is_form else json.loads(body or b"{}")
        self.asked.append(read)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.under_way += 1
        self.under_way_most = max(self.under_way_most, self.under_way)
        try:
            return await self.answer(request)  # type: ignore[arg-type]
        finally:
            self.under_way -= 1


async def _not_found(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=404)


@asynccontextmanager
async def serving() -> AsyncIterator[HttpService]:
    service = HttpService()
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
