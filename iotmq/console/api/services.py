"""The native client that handlers ask brokers with: made and started with the first of them that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from iotmq import limits
from iotmq.alarms.role import AlarmsRole
from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.settings import ProducerSettings
from iotmq.clock import Clock
from iotmq.console.access.access import Access
from iotmq.console.api.publishing import Publisher
from iotmq.console.api.replays import Replays
from iotmq.console.api.streams.streams import Streams
from iotmq.history.sampler import MetricHistory
from iotmq.message.message_ids import UniqueKeys
from iotmq.metrics import Metric
from iotmq.ports.device_access import DeviceAccess
from iotmq.ports.publishing import PublishPlaces
from iotmq.ports.websockets import WebSocketPlace

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

    def places(self) -> PublishPlaces:
        """Make what says where the messages of an MQTT topic go, by its settings."""

    def device_access(self) -> DeviceAccess:
        """Make what says who devices are and what they may do, by its settings."""

    def websockets(self) -> Sequence[WebSocketPlace]:
        """Return its listeners for MQTT in WebSockets."""


class _Started(NamedTuple):
    client: IotmqClient
    producer: Producer
    publisher: Publisher


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
        self.replays = Replays(clock)
        self.unique_keys = UniqueKeys(clock=clock)
        self._starting: asyncio.Task[_Started] | None = None
        self.started_publisher: Publisher | None = None
        """The one that `publisher` returns, once that is started."""

    async def client(self) -> IotmqClient:
        """Return the client, started."""
        return (await self._started()).client

    async def producer(self) -> Producer:
        """Return a producer, started."""
        return (await self._started()).producer

    async def publisher(self) -> Publisher:
        """Return what sends to MQTT topics."""
        return (await self._started()).publisher

    async def stop(self) -> None:
        """End what goes on, and the client, if there is one."""
        await self.replays.stop()
        starting, self._starting = self._starting, None
        self.started_publisher = None
        if starting is None:
            return
        starting.cancel()
        (made,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(made, _Started):
            made.publisher.stop()
            await made.client.stop()

    async def _started(self) -> _Started:
        starting = self._starting
        if starting is None or (starting.done() and starting.exception() is not None):
            # One that could not start is made anew for the next who asks.
            starting = self._starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(starting)

    async def _start(self) -> _Started:
        client = self._make_client()
        await client.start()
        # A topic that a first message makes gets all the queues its template allows, as from a front end.
        producer = client.producer(_GROUP, ProducerSettings(new_topic_queues=limits.QUEUES_PER_TOPIC_MAX))
        await producer.start()
        publisher = self.started_publisher = Publisher(client, producer, self.own.places())
        return _Started(client, producer, publisher)
