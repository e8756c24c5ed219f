"""Consume message by message, with any number of consumers: each holds what it has got for a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable

from iotmq.client.consuming.filter_check import check_filter
from iotmq.client.consuming.pop.pop_fetches import PopFetches
from iotmq.client.consuming.pop.pop_member import PopMember
from iotmq.client.consuming.pop.popped_message import PoppedMessage
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import Ending, Lifetime
from iotmq.client.transport.message import RETRY_PREFIX, check_group, check_topic
from iotmq.client.transport.settings import PopConsumerSettings, check_settings
from iotmq.client.transport.subscriptions import parse_subscription
from iotmq.errors import ClientClosedError, ClientError, IotmqError, SubscriptionError
from iotmq.event_loop import happens_within
from iotmq.metrics import Metric, samples

_log = logging.getLogger(__name__)


class PopConsumer(Lifetime):
    """A consumer of single messages, by `getmany` or `async for`; `async with` starts and stops it.

    Any number of consumers share the messages of a group, whatever the number of queues. A message is one
    consumer's for `invisible_ms`; then the next one to ask gets it, unless it was acknowledged (`ack`). After
    the group's retries (16) it is a dead letter. Order, of a queue or of each key, is kept only by consumers
    that are `orderly`.
    """

    def __init__(
        self, client: ClientTransport, group: str, settings: PopConsumerSettings | None = None
    ) -> None:
        check_group(group)
        self._client = client
        self.group = group
        check_settings(settings, PopConsumerSettings)
        self.settings = settings or PopConsumerSettings()
        if self.settings.pop_timeout_ms <= self.settings.hold_ms:
            raise ClientError("pop_timeout_ms must be longer than hold_ms, or every empty pop times out")
        self._fetches = PopFetches(client, group, self.settings)
        self._subscriptions = self._fetches.subscriptions
        self._member: PopMember | None = None
        """Set while it runs."""
        self._ending = Ending()

    async def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic`: all of it, the tags of an expression such as `TagA || TagB`, or the messages whose
        properties the SQL92 expression `sql` is true for. What passes no filter counts as consumed.

        All consumers of a group must subscribe to the same. May be called before `start` and after it.
        SubscriptionError, here or from `start`, when a broker of the topic does not understand `sql`.
        """
        check_topic(topic)
        subscription = parse_subscription(topic, tags, self._client.clock.now_ms(), sql=sql)
        if self._member is not None:
            await self._find(topic)
            await check_filter(self._client, self.group, subscription)
            if topic not in self._subscriptions:
                self._client.routes.want(topic)
        self._subscriptions[topic] = subscription
        if self._member is not None:
            self._fetches.refilter(subscription)
            self._fetches.route_changed(topic)
            await self._client.heartbeat()

    async def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more. What is held of it may still be settled."""
        if self._subscriptions.pop(topic, None) is None:
            raise SubscriptionError(f"group {self.group} has no subscription to {topic} here")
        if self._member is not None:
            self._client.routes.unwant(topic)
            self._fetches.route_changed(topic)
            await self._client.heartbeat()

    async def start(self) -> None:
        """Begin to fetch; the client must be started. Topics that do not exist yet are waited for."""
        await self._ending.over()
        if self._member is not None:
            return
        if not self._subscriptions:
            raise SubscriptionError(
                f"consumer group {self.group} has no subscription: call subscribe() first"
            )
        self._member = PopMember.enter(self._client, self.group, self._fetches)
        for topic in self._subscriptions:
            self._client.routes.want(topic)
        try:
            for topic in list(self._subscriptions):
                await self._find(topic)
            for subscription in list(self._subscriptions.values()):
                await check_filter(self._client, self.group, subscription)
            await self._find_retry_topic()
            await self._member.announce(self._fetches)
        except BaseException:
            await self.stop()
            raise
        self._fetches.open()

    async def stop(self) -> None:
        """Fetch no more, and give back what was fetched and not returned.

        Returned messages may be settled as long as the client lives.
        """
        member, self._member = self._member, None
        await self._ending.reached(None if member is None else self._leave(member))

    async def _leave(self, member: PopMember) -> None:
        for topic in self._subscriptions:
            self._client.routes.unwant(topic)
        await self._fetches.close()
        await member.leave(self._fetches)

    async def getmany(self, *, timeout_ms: int = 1_000, records_max: int = 1_024) -> list[PoppedMessage]:
        """Return the messages that are here, at most `records_max`, and wait for one; empty when none came in
        `timeout_ms`.

        BrokerError when a broker refuses, MessageFormatError for bytes that are no records.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while True:
            messages = self._take(records_max)
            if messages or not await happens_within(
                self._fetches.has_arrived, max(0, deadline_s - loop.time())
            ):
                return messages

    async def __aiter__(self) -> AsyncIterator[PoppedMessage]:
        """Iterate over messages until the consumer stops; raises what `getmany` raises."""
        self._check_running()
        while self._member is not None:
            for message in self._take(1):
                yield message
            if not self._fetches.arrived_count:
                await self._fetches.has_arrived.wait()

    async def ack(self, messages: Iterable[PoppedMessage]) -> None:
        """End many messages at once, for less than as many calls of `ack` of each.

        ReceiptExpiredError when one is somebody else's already; the others are ended all the same.
        """
        await self._fetches.settling.ack(*messages)

    @property
    def held_count(self) -> int:
        """Return how many messages it holds, fetched or returned, and neither settled nor expired."""
        return len(self._fetches.held)

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this consumer."""
        held, settling = self._fetches.held, self._fetches.settling
        yield from samples(
            ("iotmq_client_consumed_total", "Messages consumed", settling.acked_total),
            ("iotmq_client_given_back_total", "Failed messages given back", settling.given_back_total),
            ("iotmq_client_held_messages", "Popped messages held", len(held)),
            ("iotmq_client_held_bytes", "Bytes of popped messages held", held.bytes),
            ("iotmq_client_expired_total", "Popped messages not settled in time", held.expired_total),
            labels=(("group", self.group),),
        )

    def _take(self, count_max: int) -> list[PoppedMessage]:
        self._check_running()
        return self._fetches.take(count_max)

    async def _find(self, topic: str) -> None:
        try:
            await self._client.routes.find(topic)
        except IotmqError as error:
            _log.warning("group %s waits for topic %s: %s", self.group, topic, error)

    async def _find_retry_topic(self) -> None:
        """Consume what the group has failed while it consumed by queue, if it did."""
        topic = RETRY_PREFIX + self.group
        if topic in self._subscriptions:
            return
        await self._find(topic)
        if self._client.routes.known(topic) is not None:
            self._subscriptions[topic] = parse_subscription(topic, "*", self._client.clock.now_ms())
            self._client.routes.want(topic)

    def _check_running(self) -> None:
        if self._member is None:
            raise ClientClosedError(
                "the consumer is not started, or was stopped: use `async with client.pop_consumer(...)`"
            )
