"""Pull one queue again and again, from the broker it names, with pauses where pulls fail or bring nothing."""

from __future__ import annotations

import asyncio

from iotmq.backoff import Backoff
from iotmq.client.consuming.pulls import Pulled, pull_command, read_pulled
from iotmq.client.transport.calls import broker_address
from iotmq.client.transport.client import IotmqClient
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import PullConsumerSettings, PushConsumerSettings
from iotmq.client.transport.subscriptions import Subscription


class PollBackoff:
    """Pauses after pulls that bring nothing, for brokers that answer them at once instead of holding them."""

    __slots__ = ("_last_empty_s", "_longest_s", "_pauses")

    def __init__(self, *, shortest_s: float, longest_s: float) -> None:
        self._longest_s = longest_s
        self._pauses = Backoff(min_s=shortest_s, max_s=longest_s)
        self._last_empty_s = 0.0

    def reset(self) -> None:
        """Make the next pause the shortest again, because messages came."""
        self._pauses.reset()

    async def after_empty(self) -> None:
        """Pause after an empty answer, unless the broker held the pull as long as the longest pause."""
        now_s = asyncio.get_running_loop().time()
        last_s, self._last_empty_s = self._last_empty_s, now_s
        if now_s - last_s < self._longest_s:
            await asyncio.sleep(self._pauses.next_s())
        else:
            self._pauses.reset()


class QueuePulls:
    """The pulls of one queue for a consumer."""

    def __init__(
        self,
        client: IotmqClient,
        group: str,
        queue: MessageQueue,
        subscription: Subscription,
        settings: PushConsumerSettings | PullConsumerSettings,
        poll_backoff: PollBackoff,
    ) -> None:
        self.client = client
        self.queue = queue
        self.subscription = subscription
        self.poll_backoff = poll_backoff
        self.failures = reconnect_backoff(client)
        """Pauses after pulls that fail."""
        self.pulled_ms = 0
        """When the broker was last asked; 0 for never."""
        self.broker_id = MASTER_ID
        """The broker to pull from, as the last answer told."""
        self._group = group
        self._settings = settings

    async def pull(self, offset: int) -> Pulled:
        """Ask for messages from `offset` on; raises as a request does, and BrokerError for a refusal."""
        settings = self._settings
        address = await broker_address(self.client, self.queue, self.broker_id)
        command = pull_command(
            self._group,
            self.queue,
            offset,
            records_max=settings.pull_records_max,
            bytes_max=settings.pull_bytes_max,
            hold_ms=settings.hold_ms,
            subscription=self.subscription,
        )
        self.pulled_ms = self.client.clock.now_ms()
        response = await self.client.request(address, command, timeout_s=settings.pull_timeout_ms / 1000)
        pulled = read_pulled(response, self.queue)
        self.broker_id = pulled.preferred_broker_id
        return pulled


def reconnect_backoff(client: IotmqClient) -> Backoff:
    """Make pauses as long as those between tries to connect."""
    return Backoff(
        min_s=client.settings.reconnect_ms_min / 1000, max_s=client.settings.reconnect_ms_max / 1000
    )
