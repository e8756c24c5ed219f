"""Push messages to a listener; the members of a group share the queues of a topic."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable, Mapping
from typing import Final

import msgspec

from iotmq.client.consuming.consumer_answers import ConsumerAnswers, Status
from iotmq.client.consuming.consumption import Consumption
from iotmq.client.consuming.filter_check import check_filter
from iotmq.client.consuming.listener_calls import ColumnsListener, Listener, ListenerCalls
from iotmq.client.consuming.offset_reset import read_offsets
from iotmq.client.consuming.offsets import (
    commit_offset,
    max_offset,
    min_offset,
    offset_at_time,
    stored_offset,
)
from iotmq.client.consuming.pulls import PollBackoff, QueuePulls
from iotmq.client.consuming.queue_reader import CacheRoom, QueueReader
from iotmq.client.consuming.rebalance import Allocation, allocate_averagely
from iotmq.client.transport.client import IotmqClient
from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.message import RETRY_PREFIX, check_group, check_topic
from iotmq.client.transport.routes import MessageQueue, TopicRoute
from iotmq.client.transport.settings import PushConsumerSettings
from iotmq.client.transport.subscriptions import ConsumerData, Subscription, consumer_data, parse_subscription
from iotmq.errors import ClientError, IotmqError, RequestError, SubscriptionError
from iotmq.event_loop import happens_within
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

# Members come and go in bursts (a deployment, a broker that restarts): one look for all of them.
_REBALANCE_PAUSE_S: Final = 0.05
_REBALANCE_RETRY_S: Final = 1.0
# A broker that answers "nothing new" at once, instead of holding the pull, is asked with pauses.
_POLL_BACKOFF_S_MIN: Final = 0.02
_POLL_BACKOFF_S_MAX: Final = 1.0


class _MemberList(msgspec.Struct):
    consumerIdList: list[str] = []  # noqa: N815 - the wire's spelling


class PushConsumer(Lifetime):
    """A member of a consumer group that calls a listener; `async with` starts and stops it.

    Every message is handed over at least once; after a crash, and when queues move between members,
    some come twice. Within one queue batches come in order, one at a time (`parallel_batches`). A
    message that failed is given back to the broker and comes again later through the group's retry
    topic, 10 s at first, up to 16 times, then it goes to `%DLQ%group`.

    A listener may be a coroutine function. A plain function runs on the event loop and must not block
    (use `SyncPushConsumer` for one that does).
    """

    def __init__(
        self,
        client: IotmqClient,
        group: str,
        listener: Listener | None = None,
        *,
        columns_listener: ColumnsListener | None = None,
        settings: PushConsumerSettings | None = None,
        allocate: Allocation = allocate_averagely,
    ) -> None:
        check_group(group)
        if (listener is None) == (columns_listener is None):
            raise ClientError("give either a listener or a columns_listener")
        self._client = client
        self.group = group
        """The consumer group's name."""
        self.settings = settings or PushConsumerSettings()
        if self.settings.pull_timeout_ms <= self.settings.hold_ms:
            raise ClientError("pull_timeout_ms must be longer than hold_ms, or every empty pull times out")
        if self.settings.consume_from == "timestamp" and not self.settings.consume_from_timestamp_ms:
            raise ClientError(
                'consume_from="timestamp" needs consume_from_timestamp_ms; "first" begins at the beginning'
            )
        self._allocate = allocate
        self._is_clustering = self.settings.model == "clustering"
        self._subscriptions: dict[str, Subscription] = {}
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._closing: dict[MessageQueue, asyncio.Task[None]] = {}
        """Queues we lost whose listener calls are still running."""
        self._local_offsets: dict[MessageQueue, int] = {}
        """Broadcasting: how far each queue is consumed, while this consumer lives."""
        self._room = CacheRoom(self.settings.cached_bytes_max)
        self._rebalance_due = asyncio.Event()
        self._has_balanced = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_running = False
        consumption = Consumption(client.clock)
        self._calls = ListenerCalls(
            client,
            group,
            consumption,
            listener=listener,
            columns_listener=columns_listener,
            settings=self.settings,
        )
        self._wants_columns = columns_listener is not None
        self._answers = ConsumerAnswers(
            client,
            consumption,
            status=self._status,
            consume=None if listener is None else self._calls.consume_one,
        )

    async def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic`: all of it, the tags of an expression such as `TagA || TagB`, or the messages whose
        properties an SQL92 expression such as `a > 5 AND b IN ('x', 'y')` is true for.

        All members of a group must subscribe to the same. May be called before `start` and after it.
        SubscriptionError, here or from `start`, when a broker of the topic does not understand `sql`.
        """
        check_topic(topic)
        before = self._subscriptions.get(topic)
        version_ms = max(self._client.clock.now_ms(), before.version_ms + 1 if before else 0)
        subscription = parse_subscription(topic, tags, version_ms, sql=sql)
        if self._is_running:
            await check_filter(self._client, self.group, subscription)
        self._subscriptions[topic] = subscription
        for queue, reader in self._readers.items():
            if queue.topic == topic:
                reader.subscribe(subscription)
        if self._is_running:
            if before is None:
                self._client.routes.want(topic)
            await self._announce()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming `topic`; its queues go to other members."""
        if self._subscriptions.pop(topic, None) is None:
            raise SubscriptionError(f"group {self.group} has no subscription to {topic} here")
        if self._is_running:
            self._client.routes.unwant(topic)
            await self._announce()

    async def start(self) -> None:
        """Join the group and begin consuming; returns when the first division of queues is done.

        Topics that do not exist yet are waited for in the background.
        """
        if self._is_running:
            return
        if not self._subscriptions:
            raise SubscriptionError(
                f"consumer group {self.group} has no subscription: call subscribe() first"
            )
        if self._is_clustering:
            retry_topic = RETRY_PREFIX + self.group
            self._subscriptions[retry_topic] = parse_subscription(
                retry_topic, "*", self._client.clock.now_ms()
            )
        self._client.add_consumer(self)
        self._is_running = True
        self._has_balanced.clear()
        self._answers.start()
        self._client.add_request_handler(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._told_to_move)
        for topic in self._subscriptions:
            self._client.routes.want(topic)
        try:
            await self._join()
        except BaseException:
            # A member that stays, in heartbeats, is given queues that nobody reads.
            await self.stop()
            raise

    async def _join(self) -> None:
        await self._find_routes()
        for subscription in list(self._subscriptions.values()):
            await check_filter(self._client, self.group, subscription)
        await self._announce()
        self._tasks = [
            supervise("division of queues", self._rebalance_forever),
            supervise("commit of offsets", self._commit_forever),
        ]
        await self._has_balanced.wait()

    async def stop(self) -> None:
        """Let running listener calls end (`stop_timeout_ms`), commit, and leave the group."""
        if not self._is_running:
            return
        self._is_running = False
        await self._answers.stop()
        await end(self._tasks)
        await asyncio.gather(*(reader.close() for reader in self._readers.values()), *self._closing.values())
        # Not of queues that the broker has moved meanwhile: their offsets are set by what closes them.
        await self._commit(list(self._readers.values()))
        self._readers.clear()
        await asyncio.gather(*self._closing.values())
        for topic in self._subscriptions:
            self._client.routes.unwant(topic)
        self._client.remove_request_handler(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._told_to_move)
        await self._client.remove_consumer(self)

    @property
    def assigned(self) -> list[MessageQueue]:
        """Return the queues assigned to this member now, sorted; without those of the retry topic."""
        retry_topic = RETRY_PREFIX + self.group
        # A copy, because others than the loop's thread may ask while queues come and go.
        return sorted(queue for queue in tuple(self._readers) if queue.topic != retry_topic)

    def heartbeat(self) -> ConsumerData:
        """Return this consumer's part of the heartbeat."""
        return consumer_data(
            self.group,
            self._subscriptions.values(),
            is_push=True,
            model=self.settings.model,
            consume_from=self.settings.consume_from,
        )

    def members_changed(self) -> None:
        """Look at the members again, soon."""
        self._rebalance_due.set()

    def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in this member's queues; fetched messages of them are dropped."""
        for queue, offset in offsets.items():
            if queue in self._readers:
                self._give_up(queue, self._move_reader(self._readers.pop(queue), offset))

    def route_changed(self, topic: str) -> None:
        """Look at the queues again, soon."""
        if topic in self._subscriptions:
            self._rebalance_due.set()

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this consumer."""
        labels = (("group", self.group),)
        cached = sum(reader.cached_records for reader in self._readers.values())
        yield from samples(
            ("iotmq_client_consumed_total", "Messages consumed", self._calls.consumed_total),
            ("iotmq_client_consume_failed_total", "Messages a listener failed", self._calls.failed_total),
            ("iotmq_client_given_back_total", "Failed messages given back", self._calls.given_back_total),
            ("iotmq_client_dropped_total", "Failed broadcasts given up", self._calls.dropped_total),
            ("iotmq_client_cached_records", "Messages fetched, not consumed", cached),
            ("iotmq_client_cached_bytes", "Bytes fetched, not consumed", self._room.bytes),
            ("iotmq_client_queues", "Queues of this member", len(self._readers)),
            labels=labels,
        )

    # --- membership ---------------------------------------------------------------------------------

    async def _find_routes(self) -> None:
        # A copy, because subscriptions may come and go while a registry is asked.
        for topic in list(self._subscriptions):
            try:
                await self._client.routes.find(topic)
            except IotmqError as error:
                _log.warning("group %s waits for topic %s: %s", self.group, topic, error)

    async def _announce(self) -> None:
        await self._find_routes()
        await self._client.heartbeat()
        self._rebalance_due.set()

    async def _rebalance_forever(self) -> None:
        while True:
            is_complete = await self._rebalance()
            self._has_balanced.set()
            wait_s = self.settings.rebalance_ms / 1000 if is_complete else _REBALANCE_RETRY_S
            if await happens_within(self._rebalance_due, wait_s):
                await asyncio.sleep(_REBALANCE_PAUSE_S)
                self._rebalance_due.clear()

    async def _rebalance(self) -> bool:
        """Divide every topic's queues; False when one could not be divided and keeps its readers."""
        is_complete = True
        for topic in list(self._subscriptions):
            try:
                route = await self._client.routes.find(topic)
                if route is None:
                    continue
                mine = await self._share_of(route)
            except IotmqError as error:
                _log.info("group %s cannot divide the queues of %s now: %s", self.group, topic, error)
                is_complete = False
                continue
            if mine is None:
                is_complete = False
            elif topic in self._subscriptions:
                # It may have been given up meanwhile.
                self._assign(topic, mine)
        for queue in list(self._readers):
            if queue.topic not in self._subscriptions:
                self._release(queue)
        return is_complete

    async def _share_of(self, route: TopicRoute) -> list[MessageQueue] | None:
        """Compute this member's queues of the topic; None while the brokers do not know the member."""
        if not self._is_clustering:
            return list(route.readable)
        members = await self._members(route)
        if self._client.client_id not in members:
            await self._client.heartbeat()
            members = await self._members(route)
            if self._client.client_id not in members:
                return None
        return self._allocate(route.readable, members, self._client.client_id)

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

    def _assign(self, topic: str, mine: list[MessageQueue]) -> None:
        wanted = set(mine)
        for queue in [queue for queue in self._readers if queue.topic == topic and queue not in wanted]:
            self._release(queue)
        for queue in mine:
            # A queue that comes back while its last calls still run is opened when they have ended.
            if queue not in self._readers and queue not in self._closing:
                pulls = QueuePulls(
                    self._client,
                    self.group,
                    queue,
                    self._subscriptions[topic],
                    self.settings,
                    PollBackoff(shortest_s=_POLL_BACKOFF_S_MIN, longest_s=_POLL_BACKOFF_S_MAX),
                )
                self._readers[queue] = QueueReader(
                    pulls,
                    self.settings,
                    self._room,
                    as_columns=self._wants_columns,
                    start_offset=self._start_offset,
                    handle=self._calls.handle,
                )

    def _release(self, queue: MessageQueue) -> None:
        self._give_up(queue, self._close_reader(self._readers.pop(queue)))

    def _give_up(self, queue: MessageQueue, closing: Coroutine[None, None, None]) -> None:
        """Free the queue for a new reader, here or elsewhere, when `closing` has ended."""
        task = asyncio.ensure_future(closing)
        self._closing[queue] = task

        def closed(_: asyncio.Task[None]) -> None:
            self._closing.pop(queue, None)
            self._rebalance_due.set()

        task.add_done_callback(closed)

    async def _close_reader(self, reader: QueueReader) -> None:
        # At once, because the new owner asks for the offset now.
        await self._commit([reader])
        await reader.close()
        if reader.committable == reader.committed or not self._is_clustering:
            await self._commit([reader])
            return
        # What the last calls finished counts only if no new owner has committed meanwhile.
        try:
            if await stored_offset(self._client, self.group, reader.queue) == reader.committed:
                await self._commit([reader])
        except IotmqError as error:
            _log.info("the last offset of %s is not committed: %s", reader.queue, error)

    async def _move_reader(self, reader: QueueReader, offset: int) -> None:
        await reader.close()
        if not self._is_clustering:
            self._local_offsets[reader.queue] = offset
            return
        try:
            await commit_offset(self._client, self.group, reader.queue, offset)
            _log.info("group %s goes on at offset %d of %s", self.group, offset, reader.queue)
        except IotmqError as error:
            _log.warning("group %s is not moved to %d of %s: %s", self.group, offset, reader.queue, error)

    def _told_to_move(self, _connection: ClientConnection, command: Command) -> Command | None:
        if command.ext.get("group") != self.group:
            return None
        try:
            self.move(read_offsets(command))
        except RequestError as error:
            return command.reply(error.code, remark=str(error))
        return command.reply(ResponseCode.SUCCESS)

    async def _start_offset(self, queue: MessageQueue) -> int:
        if not self._is_clustering:
            local = self._local_offsets.get(queue)
            if local is not None:
                return local
        else:
            stored = await stored_offset(self._client, self.group, queue)
            if stored is not None:
                return stored
        return await self._first_offset(queue)

    async def _first_offset(self, queue: MessageQueue) -> int:
        settings = self.settings
        if queue.topic.startswith(RETRY_PREFIX) or settings.consume_from == "first":
            return await min_offset(self._client, queue)
        if settings.consume_from == "timestamp":
            return await offset_at_time(self._client, queue, settings.consume_from_timestamp_ms)
        return await max_offset(self._client, queue)

    def _status(self) -> Status:
        return Status(
            group=self.group,
            consume_type="CONSUME_PASSIVELY",
            parallel=self.settings.parallel_batches,
            registries=self._client.settings.registries,
            subscriptions=self._subscriptions.values(),
            queues={queue: reader.state for queue, reader in self._readers.items()},
        )

    # --- commits ------------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_ms / 1000)
            await self._commit(list(self._readers.values()))

    async def _commit(self, readers: list[QueueReader]) -> None:
        async def one(reader: QueueReader, offset: int) -> None:
            try:
                if self._is_clustering:
                    await commit_offset(self._client, self.group, reader.queue, offset)
                else:
                    self._local_offsets[reader.queue] = offset
                reader.committed = offset
            except IotmqError as error:
                _log.info("offset %d of %s is not committed now: %s", offset, reader.queue, error)

        await asyncio.gather(
            *(
                one(reader, reader.committable)
                for reader in readers
                if reader.committable is not None and reader.committable != reader.committed
            )
        )
