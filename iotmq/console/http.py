"""The operator's HTTP port: /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec
from aiohttp import web

from iotmq.console.exposition import Exposition
from iotmq.console.settings import HttpSettings
from iotmq.metrics import MetricSource

# A check answers None when its part is ready, else the reason why it is not.
ReadinessCheck = Callable[[], str | None]


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
    ) -> None:
        self._settings = settings
        self._exposition = Exposition(sources)
        self._checks: Mapping[str, ReadinessCheck] = {} if checks is None else checks
        self._runner: web.AppRunner | None = None  # set while the role runs
        self.port = settings.listen_port

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        application = web.Application(client_max_size=0)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._readiness)
        runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=75.0,
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

    async def stop(self) -> None:
        """Close the listener and every connection."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._exposition.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _health(self, _request: web.Request) -> web.Response:
        """Answered by the loop that serves everything else: an answer is the proof that it turns."""
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        """200 when every part is ready; 503 with the reasons of those that are not."""
        reasons = {name: check() for name, check in self._checks.items()}
        is_ready = not any(reasons.values())
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
