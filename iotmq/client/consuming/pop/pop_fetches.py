"""Ask all brokers of a consumer's topics, and keep what came until it is returned."""

from __future__ import annotations

import asyncio
from collections import deque

from iotmq.client.consuming.pop.held_messages import HeldMessages
from iotmq.client.consuming.pop.pop_fetch import PopFetch, PopParts
from iotmq.client.consuming.pop.popped_calls import PoppedCalls
from iotmq.client.consuming.pop.popped_message import PoppedMessage
from iotmq.client.consuming.pop.settling import Settling
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PopConsumerSettings
from iotmq.client.transport.subscriptions import Subscription
from iotmq.supervised import end


class PopFetches:
    """The fetches of one consumer: one for each topic and broker."""

    def __init__(self, client: ClientTransport, group: str, settings: PopConsumerSettings) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        """The subscriptions by topic, that of the group's retry topic included."""
        calls = client.interceptors.for_consumer(group)
        self._calls = None if calls is None else PoppedCalls(calls)
        self.held = HeldMessages(
            count_max=settings.held_max,
            bytes_max=settings.held_bytes_max,
            invisible_s=settings.invisible_ms / 1000,
            is_unread=self._was_not_returned,
            calls=self._calls,
        )
        self.settling = Settling(client, group, self.held)
        self.has_arrived = asyncio.Event()
        """Set while `take` has something, an error included."""
        self._client = client
        self._parts = PopParts(client, group, settings, self.held, self.settling)
        self._fetches: dict[MessageQueue, PopFetch] = {}
        """Topic and broker, as the first queue there -> what asks it."""
        self._arrived: deque[PoppedMessage] = deque()
        """Messages that are held and not returned yet, in the order in which their times end."""
        self._failure: Exception | None = None
        """The error that the next call raises."""
        self._background: set[asyncio.Task[None]] = set()
        self._is_open = False

    @property
    def arrived_count(self) -> int:
        """Return how many messages wait to be returned."""
        return len(self._arrived)

    def take(self, count_max: int) -> list[PoppedMessage]:
        """Return the messages that are here; raises the last error, once."""
        self.held.wanted()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        messages = [self._arrived.popleft() for _ in range(min(count_max, len(self._arrived)))]
        if not self._arrived:
            self.has_arrived.clear()
        if messages and self._calls is not None:
            self._calls.returned(messages)
        return messages

    def open(self) -> None:
        """Ask brokers from now on."""
        self._is_open = True
        for topic in list(self.subscriptions):
            self.route_changed(topic)

    async def close(self) -> None:
        """Ask no more, and give back what was not returned."""
        self._is_open = False
        fetches, self._fetches = self._fetches, {}
        await end([fetch.cancel() for fetch in fetches.values()])
        messages = list(self._arrived)
        self._arrived.clear()
        self.held.clear()
        self.has_arrived.set()
        await self.settling.give_back(messages)

    def refilter(self, subscription: Subscription) -> None:
        """Ask with another subscription from the next time on."""
        for queue, fetch in self._fetches.items():
            if queue.topic == subscription.topic:
                fetch.subscription = subscription

    def route_changed(self, topic: str) -> None:
        """Ask the brokers that have the topic now, and no others."""
        if not self._is_open:
            return
        route = self._client.routes.known(topic)
        subscription = self.subscriptions.get(topic)
        names = set() if route is None else {queue.broker_name for queue in route.readable}
        for queue in [queue for queue in self._fetches if queue.topic == topic]:
            if subscription is None or queue.broker_name not in names:
                self._fetches.pop(queue).cancel()
        if subscription is not None:
            for name in sorted(names):
                queue = MessageQueue(topic, name, 0)
                if queue not in self._fetches:
                    self._fetches[queue] = PopFetch(self._parts, queue, subscription, self)

    # --- what fetches tell --------------------------------------------------------------------------

    @property
    def sharers(self) -> int:
        """Return how many fetches want a part of the credit."""
        return max(1, sum(not fetch.is_asking for fetch in self._fetches.values()))

    def arrived(self, messages: list[PoppedMessage]) -> None:
        """Take messages that a fetch has got."""
        if messages:
            self._arrived.extend(messages)
            self.has_arrived.set()

    def failed(self, error: Exception) -> None:
        """Have the next call raise an error."""
        self._failure = error
        self.has_arrived.set()

    def in_background(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _was_not_returned(self, message: PoppedMessage) -> bool:
        """Drop a message that is somebody else's; False when the application has it."""
        if not self._arrived or self._arrived[0] is not message:
            return False
        self._arrived.popleft()
        if not self._arrived and self._failure is None:
            self.has_arrived.clear()
        return True
