"""Take part in a consumer group: tell brokers the subscriptions, and divide the queues with the others."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import msgspec

from iotmq.client.consuming.filter_check import check_filter
from iotmq.client.consuming.members.rebalance import Allocation
from iotmq.client.consuming.offsets.offset_reset import read_offsets
from iotmq.client.transport.application_calls import call_application
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import RETRY_PREFIX, check_group, check_topic
from iotmq.client.transport.routes import MessageQueue, TopicRoute
from iotmq.client.transport.settings import PullConsumerSettings, PushConsumerSettings
from iotmq.client.transport.subscriptions import ConsumerData, Subscription, consumer_data, parse_subscription
from iotmq.errors import ClientError, IotmqError, RequestError, SubscriptionError
from iotmq.event_loop import happens_within
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

# Members come and go in bursts (a deployment, a broker that restarts): one look for all of them.
_REBALANCE_PAUSE_S: Final = 0.05
_REBALANCE_RETRY_S: Final = 1.0


class RebalanceListener(Protocol):
    """Define what an application is told when queues come to a consumer, and before they go.

    Both may be coroutine functions; no queue comes or goes before they return. What they raise is logged.
    """

    def assigned(self, queues: list[MessageQueue]) -> Awaitable[None] | None:
        """Handle queues that this consumer reads from now on."""

    def revoked(self, queues: list[MessageQueue]) -> Awaitable[None] | None:
        """Handle queues that go to another consumer when this returns; `commit` still reaches them."""


class QueueOwner(Protocol):
    """Define what the consumer behind a member does with its queues."""

    @property
    def held(self) -> Collection[MessageQueue]:
        """Return the queues that are read now."""

    def open(self, queue: MessageQueue, subscription: Subscription) -> bool:
        """Begin to read a queue; False when that is not possible yet."""

    async def release(self, queue: MessageQueue) -> None:
        """Read a queue no more and store how far it is consumed."""

    def refilter(self, subscription: Subscription) -> None:
        """Read the queues of a topic with another subscription."""

    def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the queues that are read."""


class _MemberList(msgspec.Struct):
    consumerIdList: list[str] = []  # noqa: N815 - the wire's spelling


class Member:
    """One member of a group, between `enter` and `leave`; `owner` reads the queues that are divided to it."""

    def __init__(
        self,
        client: ClientTransport,
        group: str,
        settings: PushConsumerSettings | PullConsumerSettings,
        owner: QueueOwner,
        allocate: Allocation,
    ) -> None:
        check_group(group)
        if settings.pull_timeout_ms <= settings.hold_ms:
            raise ClientError("pull_timeout_ms must be longer than hold_ms, or every empty pull times out")
        if settings.consume_from == "timestamp" and not settings.consume_from_timestamp_ms:
            raise ClientError(
                'consume_from="timestamp" needs consume_from_timestamp_ms; "first" begins at the beginning'
            )
        self._client = client
        self.group = group
        """The consumer group's name."""
        self.subscriptions: dict[str, Subscription] = {}
        """The subscriptions by topic, that of the group's retry topic included."""
        self._settings = settings
        self._owner = owner
        self._allocate = allocate
        self._listener: RebalanceListener | None = None
        self._due = asyncio.Event()
        self._has_balanced = asyncio.Event()
        self._divisions: list[asyncio.Task[None]] = []
        self._is_inside = False

    async def subscribe(self, topic: str, tags: str, sql: str | None) -> None:
        """Consume `topic`, before `enter` or after it."""
        check_topic(topic)
        before = self.subscriptions.get(topic)
        version_ms = max(self._client.clock.now_ms(), before.version_ms + 1 if before else 0)
        subscription = parse_subscription(topic, tags, version_ms, sql=sql)
        if self._is_inside:
            await check_filter(self._client, self.group, subscription)
        self.subscriptions[topic] = subscription
        self._owner.refilter(subscription)
        if self._is_inside:
            if before is None:
                self._client.routes.want(topic)
            await self._announce()

    async def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more; its queues go to other members."""
        if self.subscriptions.pop(topic, None) is None:
            raise SubscriptionError(f"group {self.group} has no subscription to {topic} here")
        if self._is_inside:
            self._client.routes.unwant(topic)
            await self._announce()

    def on_rebalance(self, listener: RebalanceListener) -> None:
        """Tell `listener` about queues that come and go, instead of the one before."""
        for name in ("assigned", "revoked"):
            if not callable(getattr(listener, name, None)):
                raise ClientError(f"a rebalance listener has assigned() and revoked(); there is no {name}()")
        self._listener = listener

    def enter(self, *, with_retries: bool) -> None:
        """Name the member in heartbeats; `with_retries` subscribes to the group's retry topic."""
        if not self.subscriptions:
            raise SubscriptionError(
                f"consumer group {self.group} has no subscription: call subscribe() first"
            )
        self._client.add_consumer(self)
        if with_retries:
            topic = RETRY_PREFIX + self.group
            self.subscriptions[topic] = parse_subscription(topic, "*", self._client.clock.now_ms())
        self._is_inside = True
        self._has_balanced.clear()
        self._client.add_request_handler(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._told_to_move)
        for topic in self.subscriptions:
            self._client.routes.want(topic)

    async def join(self) -> None:
        """Divide the queues from now on; returns when that was done once.

        Topics that do not exist yet are waited for in the background.
        """
        await self._find_routes()
        for subscription in list(self.subscriptions.values()):
            await check_filter(self._client, self.group, subscription)
        await self._announce()
        self._divisions = [supervise("division of queues", self._divide_forever)]
        await self._has_balanced.wait()

    async def end_division(self) -> None:
        """Divide no more; the listener hears that all queues go."""
        await end(self._divisions)
        await self._tell_revoked(self._of_application(self._owner.held))

    async def leave(self) -> None:
        """Tell the brokers that this member is gone."""
        self._is_inside = False
        for topic in self.subscriptions:
            self._client.routes.unwant(topic)
        self._client.remove_request_handler(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._told_to_move)
        await self._client.remove_consumer(self)

    @property
    def assigned(self) -> list[MessageQueue]:
        """Return the queues that are read now, sorted; without those of the retry topic."""
        return self._of_application(self._owner.held)

    def divide_soon(self) -> None:
        """Look at queues and members again, soon."""
        self._due.set()

    # --- what the client asks and tells -------------------------------------------------------------

    def heartbeat(self) -> ConsumerData:
        """Return this member's part of the heartbeat."""
        return consumer_data(
            self.group,
            self.subscriptions.values(),
            is_push=isinstance(self._settings, PushConsumerSettings),
            model=self._settings.model,
            consume_from=self._settings.consume_from,
        )

    def members_changed(self) -> None:
        """Look at the members again, soon."""
        self._due.set()

    def route_changed(self, topic: str) -> None:
        """Look at the queues again, soon."""
        if topic in self.subscriptions:
            self._due.set()

    def _told_to_move(self, _connection: ClientConnection, command: Command) -> Command | None:
        if command.ext.get("group") != self.group:
            return None
        try:
            self._owner.move(read_offsets(command))
        except RequestError as error:
            return command.reply(error.code, remark=str(error))
        return command.reply(ResponseCode.SUCCESS)

    # --- division -----------------------------------------------------------------------------------

    async def _find_routes(self) -> None:
        # A copy, because subscriptions may come and go while a registry is asked.
        for topic in list(self.subscriptions):
            try:
                await self._client.routes.find(topic)
            except IotmqError as error:
                _log.warning("group %s waits for topic %s: %s", self.group, topic, error)

    async def _announce(self) -> None:
        await self._find_routes()
        await self._client.heartbeat()
        self._due.set()

    async def _divide_forever(self) -> None:
        while True:
            is_complete = await self._divide()
            self._has_balanced.set()
            wait_s = self._settings.rebalance_ms / 1000 if is_complete else _REBALANCE_RETRY_S
            if await happens_within(self._due, wait_s):
                await asyncio.sleep(_REBALANCE_PAUSE_S)
                self._due.clear()

    async def _divide(self) -> bool:
        """Divide every topic's queues; False when one could not be divided and stays as it is."""
        is_complete = True
        for topic in list(self.subscriptions):
            try:
                route = await self._client.routes.find(topic)
                if route is None:
                    continue
                mine = await self._share_of(route)
            except IotmqError as error:
                # A mistake of the application's function is not over by itself.
                level = logging.ERROR if type(error) is ClientError else logging.INFO
                _log.log(level, "group %s cannot divide the queues of %s: %s", self.group, topic, error)
                is_complete = False
                continue
            if mine is None:
                is_complete = False
            else:
                await self._take(topic, mine)
        await self._release([queue for queue in self._owner.held if queue.topic not in self.subscriptions])
        return is_complete

    async def _share_of(self, route: TopicRoute) -> list[MessageQueue] | None:
        """Compute this member's queues of the topic; None while the brokers do not know the member."""
        if self._settings.model == "broadcasting":
            return list(route.readable)
        members = await self._members(route)
        if self._client.client_id not in members:
            await self._client.heartbeat()
            members = await self._members(route)
            if self._client.client_id not in members:
                return None
        try:
            mine = self._allocate(route.readable, members, self._client.client_id)
            foreign = set(mine) - set(route.readable)
        except Exception as error:
            raise ClientError(f"allocate failed: {type(error).__name__}: {error}") from error
        if foreign:
            raise ClientError(f"allocate returned what is no queue of the topic: {next(iter(foreign))!r}")
        return mine

    async def _members(self, route: TopicRoute) -> list[str]:
        names = [name for name, by_id in route.addresses.items() if by_id]
        if not names:
            return []
        address = route.reader(random.choice(names))
        assert address is not None
        command = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group})
        response = await self._client.request(address, command)
        if response.code != 0:
            # The broker knows no member yet, not even us.
            return []
        try:
            return msgspec.json.decode(response.body_bytes(), type=_MemberList).consumerIdList
        except msgspec.DecodeError as error:
            raise ClientError(f"the broker's member list of {self.group} cannot be read: {error}") from error

    async def _take(self, topic: str, mine: list[MessageQueue]) -> None:
        wanted = set(mine)
        held = list(self._owner.held)
        await self._release([queue for queue in held if queue.topic == topic and queue not in wanted])
        opened = []
        for queue in mine:
            # The subscription may have been given up meanwhile.
            subscription = self.subscriptions.get(topic)
            if subscription is None:
                break
            if queue not in self._owner.held and self._owner.open(queue, subscription):
                opened.append(queue)
        opened = self._of_application(opened)
        if opened and self._listener is not None:
            await self._tell(self._listener.assigned, opened)

    async def _release(self, queues: list[MessageQueue]) -> None:
        await self._tell_revoked(self._of_application(queues))
        for queue in queues:
            # The broker may have moved it while the listener was told.
            if queue in self._owner.held:
                await self._owner.release(queue)

    async def _tell_revoked(self, queues: list[MessageQueue]) -> None:
        if queues and self._listener is not None:
            await self._tell(self._listener.revoked, queues)

    async def _tell(
        self, function: Callable[[list[MessageQueue]], Awaitable[None] | None], queues: list[MessageQueue]
    ) -> None:
        try:
            await call_application(function, queues)
        except Exception:
            _log.exception("the rebalance listener of group %s failed for %s", self.group, queues)

    def _of_application(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        retry_topic = RETRY_PREFIX + self.group
        # A copy, because others than the loop's thread may ask while queues come and go.
        return sorted(queue for queue in tuple(queues) if queue.topic != retry_topic)
