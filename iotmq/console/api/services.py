"""The native client that handlers ask brokers with: made and started with the first of them that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from iotmq.alarms.role import AlarmsRole
from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.clock import Clock
from iotmq.console.access.access import Access
from iotmq.console.api.streams.streams import Streams
from iotmq.history.sampler import MetricHistory
from iotmq.metrics import Metric

_GROUP = "iotmq_http_api"


class OwnProcess(Protocol):
    """The process that the API belongs to."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Return HOST:PORT of its listeners by role."""

    @property
    def history(self) -> MetricHistory | None:
        """Return what it remembers of its metrics; None when that is switched off."""

    async def states(self) -> Mapping[str, str | None]:
        """Return why parts are not ready, None for those that are. Asks workers, whose numbers come along."""

    def metrics(self) -> Iterable[Metric]:
        """Report the numbers of all its parts."""


class Services:
    """The parts that handlers use. `stop()` ends them."""

    def __init__(
        self,
        make_client: Callable[[], IotmqClient],
        clock: Clock,
        access: Access,
        own: OwnProcess,
        *,
        areas: frozenset[str],
        alarms: AlarmsRole | None = None,
    ) -> None:
        """`areas` are those of the routes there are."""
        self.areas = areas
        self.access = access
        self.alarms = alarms
        """Those of this process; None when they are switched off."""
        self._make_client = make_client
        self.clock = clock
        self.own = own
        self.streams = Streams(self.client)
        self._starting: asyncio.Task[tuple[IotmqClient, Producer]] | None = None

    async def client(self) -> IotmqClient:
        """Return the client, started."""
        return (await self._started())[0]

    async def producer(self) -> Producer:
        """Return a producer, started."""
        return (await self._started())[1]

    async def stop(self) -> None:
        """End the client, if there is one."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        starting.cancel()
        (made,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(made, tuple):
            await made[0].stop()

    async def _started(self) -> tuple[IotmqClient, Producer]:
        starting = self._starting
        if starting is None or (starting.done() and starting.exception() is not None):
            # One that could not start is made anew for the next who asks.
            starting = self._starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(starting)

    async def _start(self) -> tuple[IotmqClient, Producer]:
        client = self._make_client()
        await client.start()
        producer = client.producer(_GROUP)
        await producer.start()
        return client, producer
