"""The operator's HTTP port: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from iotmq.console.exposition import Exposition
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric, MetricSource, samples

# A check answers None when its part is ready, else the reason why it is not.
ReadinessCheck = Callable[[], str | None]


class Elsewhere(Protocol):
    """Parts in other processes, which this port answers for."""

    async def refresh(self) -> None:
        """Ask them, in bounded time; what the others here tell is from then."""

    @property
    def not_alive_reason(self) -> str | None:
        """Return why /healthz should say no, None when it should not."""

    def worker_states(self) -> Mapping[str, str | None]:
        """Return why each is not ready, None for those that are. A check says what that means for all."""


# Silent connections are looked for so many times within the time they have.
_LOOKS_PER_TIMEOUT = 4


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
        self._log = _RequestLog(logging.getLogger("iotmq.http"), {})
        self._runner: web.AppRunner | None = None  # set while the role runs
        self._looking: asyncio.TimerHandle | None = None
        # When each connection was first seen, or made its last request; in seconds of the loop's clock.
        self._asked_s: dict[asyncio.BaseProtocol, float] = {}
        self._silent_count = 0
        self.port = settings.listen_port

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        application = web.Application(client_max_size=0, middlewares=[self._note_request])
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._readiness)
        runner = web.AppRunner(
            application,
            access_log=None,
            logger=self._log,
            handle_signals=False,
            # Ours comes first, and counts.
            keepalive_timeout=2 * self._settings.request_timeout_s,
            shutdown_timeout=0.5,
            max_line_size=self._settings.header_bytes_max,
            max_field_size=self._settings.header_bytes_max,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._settings.listen_host, self._settings.listen_port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]
        self._close_silent()

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._looking is not None:
            self._looking.cancel()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def metrics(self) -> Iterable[Metric]:
        """Report the metrics of this port itself."""
        yield from samples(
            ("iotmq_http_bad_requests_total", "Requests that were no HTTP.", self._log.bad_requests),
            (
                "iotmq_http_silent_connections_total",
                "Connections closed because no whole request came in http.request_timeout_s.",
                self._silent_count,
            ),
        )

    @web.middleware
    async def _note_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._asked_s[request.protocol] = asyncio.get_running_loop().time()
        return await handler(request)

    def _close_silent(self) -> None:
        """Close what has asked for nothing in time, and look again. aiohttp waits for ever for the end
        of a request that comes byte by byte."""
        assert self._runner is not None
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        connections = self._runner.server.connections
        self._asked_s = {connection: self._asked_s.get(connection, now_s) for connection in connections}
        for connection in connections:
            if now_s - self._asked_s[connection] >= self._settings.request_timeout_s:
                self._silent_count += 1
                connection.force_close()
        self._looking = loop.call_later(
            self._settings.request_timeout_s / _LOOKS_PER_TIMEOUT, self._close_silent
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._elsewhere is not None:
            await self._elsewhere.refresh()
        body, content_type = self._exposition.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _health(self, _request: web.Request) -> web.Response:
        """Answered by the loop that serves everything else: an answer is the proof that it turns."""
        reason = None
        if self._elsewhere is not None:
            await self._elsewhere.refresh()
            reason = self._elsewhere.not_alive_reason
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _readiness(self, _request: web.Request) -> web.Response:
        """200 when every part is ready; 503 with the reasons of those that are not."""
        if self._elsewhere is not None:
            await self._elsewhere.refresh()
        reasons = {name: check() for name, check in self._checks.items()}
        is_ready = not any(reasons.values())
        if self._elsewhere is not None:
            reasons |= self._elsewhere.worker_states()
        return web.Response(
            body=msgspec.json.encode(
                {
                    "ready": is_ready,
                    "parts": {name: reason or "ready" for name, reason in reasons.items()},
                }
            ),
            content_type="application/json",
            status=200 if is_ready else 503,
        )


class _RequestLog(logging.LoggerAdapter[logging.Logger]):
    """Log for aiohttp; bytes that are not HTTP are the peer's fault and get a line without a traceback."""

    bad_requests = 0

    def exception(self, msg: object, *args: object, exc_info: object = True, **words: object) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self._refused(exc_info)
        else:
            super().exception(msg, *args, exc_info=exc_info, **words)  # type: ignore[arg-type]

    def debug(self, msg: object, *args: object, exc_info: object = None, **words: object) -> None:
        # A connection whose first bytes are no HTTP is reported this way.
        if isinstance(exc_info, HttpProcessingError):
            self._refused(exc_info)
        else:
            super().debug(msg, *args, exc_info=exc_info, **words)  # type: ignore[arg-type]

    def _refused(self, error: HttpProcessingError) -> None:
        self.bad_requests += 1
        detail = ascii(error.message.strip().partition("\n")[0])[:100]
        self.logger.warning("bad request", extra={"code": error.code, "detail": detail})
