"""Telemetry as a role of a process: snapshots of its metrics, and its traces, go to a collector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from iotmq.metrics import Metric
from iotmq.supervised import end, supervise
from iotmq.telemetry.otlp import OtlpExport
from iotmq.telemetry.settings import TelemetrySettings
from iotmq.telemetry.tracing import Tracing, begin_tracing, end_tracing


class TelemetryRole:
    """Exports from `start` to `stop`. Messages are traced by the roles that start meanwhile."""

    def __init__(
        self,
        settings: TelemetrySettings,
        metrics: Callable[[], Iterable[Metric]] | None,
        *,
        refresh: Callable[[], Awaitable[None]] | None = None,
        instance: str,
    ) -> None:
        """`refresh` is awaited before `metrics` are asked; None for `metrics` of which others tell.

        ConfigError when the packages are not there.
        """
        self._interval_s = settings.interval_s
        self._metrics = metrics if settings.metrics_enabled else None
        self._refresh = refresh
        self._tracing: Tracing | None = None
        if settings.traces:
            self._tracing = Tracing(
                sample_ratio=settings.sample_ratio, trusts_devices=settings.trusts_devices
            )
        self._export = OtlpExport(settings, self._tracing, instance=instance)
        self._work: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; before the roles that look whether messages are traced."""
        if self._tracing is not None:
            begin_tracing(self._tracing)
        self._export.start()
        if self._metrics is not None:
            self._work = [supervise("snapshots of metrics", self._give_repeatedly)]

    def give_metrics(self) -> None:
        """Export the numbers as they are now."""
        if self._metrics is not None:
            self._export.give(list(self._metrics()))

    async def stop(self) -> None:
        """Export the last of it."""
        await end(self._work)
        if self._tracing is not None:
            end_tracing(self._tracing)
        await asyncio.to_thread(self._export.stop)

    def metrics(self) -> Iterable[Metric]:
        """Report what was exported, dropped and refused."""
        yield from self._export.metrics()
        if self._tracing is not None:
            yield from self._tracing.metrics()

    async def _give_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self._refresh is not None:
                await self._refresh()
            self.give_metrics()
