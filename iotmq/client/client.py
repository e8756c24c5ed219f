"""The way in: one object that makes producers, consumers and all others, and ends them in the right order."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property
from types import TracebackType
from typing import TypeVar

from iotmq.client.admin.admin import Admin
from iotmq.client.admin.scheduled import WaitingMessages
from iotmq.client.consuming.members.rebalance import Allocation, allocate_averagely
from iotmq.client.consuming.pop.pop_consumer import PopConsumer
from iotmq.client.consuming.pulling.pull_consumer import DEFAULT_GROUP as PULL_GROUP
from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.listener_calls import ColumnsListener, Listener
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import DEFAULT_GROUP as PRODUCER_GROUP
from iotmq.client.sending.producer import Producer
from iotmq.client.sending.requests import REPLIER_GROUP, REQUESTER_GROUP, Replier, Requester
from iotmq.client.sending.transactions import Check, TransactionProducer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.interceptors import Interceptor
from iotmq.client.transport.lifetime import Ending, Lifetime
from iotmq.client.transport.measured import Measured
from iotmq.client.transport.settings import (
    ClientSettings,
    PopConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from iotmq.clock import Clock
from iotmq.metrics import Metric

_Part = TypeVar("_Part", bound=Measured)


class IotmqClient(ClientTransport):
    """A client of a cluster, made by `iotmq.connect`; `async with` starts it and ends it with all its parts.

    `await client.producer()` gives a part that lives as long as the client; `async with client.producer()`
    one that ends before. One client is one member of each consumer group it takes part in. It has one
    connection per broker, which all its parts share.
    """

    def __init__(
        self,
        settings: ClientSettings | None = None,
        *,
        clock: Clock | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        super().__init__(settings, clock=clock, interceptors=interceptors)
        # A part that nobody holds has no work: its work would hold it. Other threads may read it meanwhile.
        self._parts: weakref.WeakValueDictionary[int, Measured] = weakref.WeakValueDictionary()
        self._ending = Ending()
        self._is_ending = False

    def producer(self, group: str = PRODUCER_GROUP, settings: ProducerSettings | None = None) -> Producer:
        """Make a producer for any topic."""
        return self._adopt(Producer(self, group, settings))

    def transaction_producer(
        self,
        group: str,
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
    ) -> TransactionProducer:
        """Make a producer that prepares messages, too; `check` says how a transaction ended."""
        return self._adopt(TransactionProducer(self, group, check, settings, topics=topics))

    def requester(self, group: str = REQUESTER_GROUP, settings: ProducerSettings | None = None) -> Requester:
        """Make a part that sends requests and waits for their replies."""
        return self._adopt(Requester(self, group, settings))

    def replier(self, group: str = REPLIER_GROUP) -> Replier:
        """Make a part that replies to requests; it needs no start."""
        return self._adopt(Replier(self, group))

    def push_consumer(
        self,
        group: str,
        listener: Listener | None = None,
        *,
        columns_listener: ColumnsListener | None = None,
        settings: PushConsumerSettings | None = None,
        allocate: Allocation = allocate_averagely,
    ) -> PushConsumer:
        """Make a member of a consumer group that calls a listener; `subscribe` before it starts."""
        return self._adopt(
            PushConsumer(
                self,
                group,
                listener,
                columns_listener=columns_listener,
                settings=settings,
                allocate=allocate,
            )
        )

    def pull_consumer(
        self,
        group: str = PULL_GROUP,
        settings: PullConsumerSettings | None = None,
        *,
        allocate: Allocation = allocate_averagely,
    ) -> PullConsumer:
        """Make a consumer that is asked for messages, as a member of its group or from queues it is told."""
        return self._adopt(PullConsumer(self, group, settings, allocate=allocate))

    def pop_consumer(self, group: str, settings: PopConsumerSettings | None = None) -> PopConsumer:
        """Make a consumer of single messages; `subscribe` before it starts. A group may have any number."""
        return self._adopt(PopConsumer(self, group, settings))

    @cached_property
    def admin(self) -> Admin:
        """Return what asks and changes brokers and registries."""
        return Admin(self)

    @cached_property
    def waiting_messages(self) -> WaitingMessages:
        """Return what lists and cancels scheduled messages."""
        return WaitingMessages(self)

    def metrics(self) -> Iterable[Metric]:
        """Report the numbers of this client, its interceptors, and all parts that are held."""
        yield from self.connections.metrics()
        yield from self.connection_events.metrics()
        yield from self.interceptors.metrics()
        # A copy, because parts come and go while another thread asks.
        for held in self._parts.valuerefs():
            if (part := held()) is not None:
                yield from part.metrics()

    async def stop(self) -> None:
        """End all parts, then the connections; a second time does nothing.

        Consumers first: they take nothing more, finish what their listeners are at, and commit. Then
        requesters and producers, which wait for the sends in flight. The first error is raised at the end.
        """
        await self._end_once(lambda part: part.stop())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # As if every part had a block of its own.
        await self._end_once(lambda part: part.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return f"<IotmqClient {self.client_id} of {self.registries.addresses_text}>"

    def _adopt(self, part: _Part) -> _Part:
        """End a part of this client, made by its class, with the client, and report its numbers."""
        self._parts[id(part)] = part
        return part

    async def _end_once(self, end: Callable[[Lifetime], Coroutine[None, None, None]]) -> None:
        work = None
        if self._is_running and not self._is_ending:
            self._is_ending = True
            work = self._end(end)
        await self._ending.reached(work)

    async def _end(self, end: Callable[[Lifetime], Coroutine[None, None, None]]) -> None:
        parts = [part for part in self._parts.values() if isinstance(part, Lifetime)]
        try:
            await _all_of(
                end(part) for part in parts if isinstance(part, PopConsumer | PushConsumer | PullConsumer)
            )
        finally:
            try:
                await _all_of(end(part) for part in parts)
            finally:
                try:
                    await _all_of(interceptor.stop() for interceptor in self.interceptors.all)
                finally:
                    await super().stop()


async def _all_of(ends: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait for all; one that fails keeps no other from its end."""
    for result in await asyncio.gather(*ends, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
