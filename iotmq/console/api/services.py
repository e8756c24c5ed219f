"""The native client that handlers ask brokers with: made and started with the first of them that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.clock import Clock
from iotmq.console.access.access import Access
from iotmq.console.api.streams.streams import Streams
from iotmq.history.sampler import MetricHistory

_GROUP = "iotmq_http_api"


class Services:
    """The parts that handlers use. `stop()` ends them."""

    def __init__(
        self,
        make_client: Callable[[], IotmqClient],
        clock: Clock,
        access: Access,
        history: MetricHistory | None = None,
    ) -> None:
        self.access = access
        self._make_client = make_client
        self.history = history
        """The history of this process; None where it has none."""
        self.clock = clock
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
