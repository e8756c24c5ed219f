"""Read messages when the application asks for them: as a member of a group, or at its own offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final

from iotmq.client.consuming.consumer_answers import ConsumerAnswers, Status
from iotmq.client.consuming.consumption import Consumption
from iotmq.client.consuming.filter_check import check_filter
from iotmq.client.consuming.members.membership import Member, RebalanceListener
from iotmq.client.consuming.members.rebalance import Allocation, allocate_averagely
from iotmq.client.consuming.offsets.group_offsets import GroupOffsets
from iotmq.client.consuming.offsets.seeking import SeekingConsumer
from iotmq.client.consuming.pulling.pull_queues import PullQueues
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import Ending
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PullConsumerSettings, check_settings
from iotmq.client.transport.subscriptions import parse_subscription
from iotmq.errors import ClientClosedError, ClientError
from iotmq.message.records.columns import COLUMNS, Columns
from iotmq.metrics import Metric, samples
from iotmq.supervised import end, supervise

DEFAULT_GROUP: Final = "DEFAULT_PULL_CONSUMER"

# Messages that an iteration decodes at a time.
_ITERATED_MAX: Final = 1_024


class PullConsumer(SeekingConsumer):
    """A consumer that is asked for messages, by `getmany` or `async for`; `async with` starts and stops it.

    With `subscribe` it is a member of its group: the members share the queues, and offsets are committed
    (`auto_commit`). Every message is returned at least once. With `assign` it reads the queues it is told, at
    offsets that the application keeps, and only `commit` stores any.

    One answer per queue is fetched ahead. Brokers that are away for a while are waited for; other trouble is
    raised by the next call. Automatic commits take for granted that one task asks at a time.
    """

    def __init__(
        self,
        client: ClientTransport,
        group: str = DEFAULT_GROUP,
        settings: PullConsumerSettings | None = None,
        *,
        allocate: Allocation = allocate_averagely,
    ) -> None:
        self._client = client
        self.group = group
        check_settings(settings, PullConsumerSettings)
        self.settings = settings or PullConsumerSettings()
        if self.settings.orderly and self.settings.model != "clustering":
            raise ClientError("an orderly consumer is clustering: in broadcasting nobody shares its queues")
        self._offsets = GroupOffsets(client, group, self.settings)
        self._queues = PullQueues(client, group, self._offsets, self.settings)
        self._member = Member(client, group, self.settings, self._queues, allocate)
        self._consumption = Consumption(client.clock)
        self._answers = ConsumerAnswers(client, self._consumption, status=self._status, consume=None)
        self._commits: list[asyncio.Task[None]] = []
        self._is_running = False
        self._ending = Ending()
        self._is_member = False
        self._returned_total = 0

    async def start(self) -> None:
        """Join the group when topics are subscribed; the client must be started.

        Returns when the first division of queues is done. Topics that do not exist yet are waited for.
        """
        self._client.check_running()
        await self._ending.over()
        if self._is_running:
            return
        self._queues.reopen()
        if self._member.subscriptions:
            await self._join()
        self._is_running = True

    async def stop(self) -> None:
        """Commit what is consumed, leave the group, and drop the messages fetched.

        Messages that the last call returned come again, unless `async with` ends without an error or
        `commit` was called: what was done with them is not known.
        """
        work = None
        if self._is_running:
            self._is_running = False
            work = self._leave() if self._is_member else self._queues.close()
        await self._ending.reached(work)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._queues.finish_returned()
        self._queues.calls.finish(error)
        await self.stop()

    # --- as a member of the group -------------------------------------------------------------------

    async def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Take part in consuming `topic`: all of it, the tags of an expression such as `TagA || TagB`, or the
        messages whose properties the SQL92 expression `sql` is true for.

        All members of a group must subscribe to the same. May be called before `start` and after it.
        SubscriptionError, here or from `start`, when a broker of the topic does not understand `sql`.
        """
        if not self._is_member and self._queues.fetches:
            raise ClientError("queues are assigned by hand: assign([]) before subscribe()")
        await self._member.subscribe(topic, tags, sql)
        if self._is_running and not self._is_member:
            await self._join()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming `topic`; its queues go to other members."""
        await self._member.unsubscribe(topic)

    def on_rebalance(self, listener: RebalanceListener) -> None:
        """Have `listener` told about queues that come, and about queues before they go."""
        self._member.on_rebalance(listener)

    @property
    def assigned(self) -> list[MessageQueue]:
        """Return the queues that are read now, sorted."""
        return self._member.assigned

    async def _join(self) -> None:
        self._offsets.open()
        try:
            self._member.enter(with_retries=False)
        except BaseException:
            self._offsets.close()
            raise
        self._is_member = True
        self._answers.start()
        if self.settings.auto_commit:
            self._commits = [supervise("commit of offsets", self._queues.commit_forever)]
        if self._queues.locks is not None:
            self._commits.append(supervise("locks of queues", self._queues.locks.renew_forever))
        try:
            await self._member.join()
        except BaseException:
            # A member that stays, in heartbeats, is given queues that nobody reads.
            await self._leave()
            raise

    async def _leave(self) -> None:
        await self._answers.stop()
        await self._member.end_division()
        await end(self._commits)
        self._commits = []
        if self.settings.auto_commit:
            await self._queues.commit_consumed()
        await self._queues.close()
        self._offsets.close()
        self._is_member = False
        await self._member.leave()

    # --- queues of the application's choice ---------------------------------------------------------

    async def queues(self, topic: str, *, timeout_ms: int = 1_000) -> tuple[MessageQueue, ...]:
        """List the queues of `topic`, sorted; RouteNotFoundError when there are none in `timeout_ms`."""
        return (await self._client.routes.find_for_reading(topic, timeout_s=timeout_ms / 1000)).readable

    async def assign(
        self,
        positions: Mapping[MessageQueue, int] | Iterable[MessageQueue],
        *,
        tags: str = "*",
        sql: str | None = None,
    ) -> None:
        """Assign these queues, and no others, from these offsets on (without offsets: from their beginning).

        With `tags` or `sql` only the messages that have them, or that the SQL92 expression is true for;
        SubscriptionError when a broker does not understand it. Queues that are read already keep what was
        fetched unless their offset differs. ClientError when topics are subscribed.
        """
        self._check_running()
        if self.settings.orderly:
            raise ClientError("an orderly consumer locks queues as a member of its group: use subscribe()")
        if self._member.subscriptions:
            raise ClientError(
                "the group divides the queues of subscribed topics: unsubscribe() before assign()"
            )
        if not isinstance(positions, Mapping):
            queues = list(positions)
            begins = await asyncio.gather(*(self.begin_offset(queue) for queue in queues))
            positions = dict(zip(queues, begins, strict=True))
        now_ms = self._client.clock.now_ms()
        wanted = {
            topic: parse_subscription(topic, tags, now_ms, sql=sql)
            for topic in {queue.topic for queue in positions}
        }
        for subscription in wanted.values():
            await check_filter(self._client, self.group, subscription)
        fetches = self._queues.fetches
        for queue in [queue for queue in fetches if queue not in positions]:
            await fetches.pop(queue).stop()
        for queue, offset in positions.items():
            subscription = wanted[queue.topic]
            fetch = fetches.get(queue)
            if fetch is not None:
                before = fetch.pulls.subscription
                if (fetch.position, before.expression, before.is_sql) == (
                    offset,
                    subscription.expression,
                    subscription.is_sql,
                ):
                    continue
                await fetch.stop()
            self._queues.read(queue, subscription, offset)

    # --- reading ------------------------------------------------------------------------------------

    async def getmany(self, *, timeout_ms: int = 1_000, records_max: int = 1_024) -> list[ReceivedMessage]:
        """Return the next messages of one queue, in order; empty when none came in `timeout_ms`.

        OffsetMovedError when an assigned offset is outside of its queue (`seek` to get on; subscribed queues
        go on at the nearest offset by themselves), BrokerError when a broker refuses, MessageFormatError for
        bytes that are no records.
        """
        self._check_running()
        if records_max < 1:
            raise ClientError(f"records_max must be at least 1, not {records_max}")
        while True:
            fetch = await self._queues.next_ready(timeout_ms)
            if fetch is None:
                return []
            try:
                messages = fetch.take(records_max)
            finally:
                self._queues.still_ready(fetch)
            if messages:
                self._count(fetch.queue, len(messages))
                self._queues.returned(fetch)
                self._queues.calls.returned(fetch.queue, messages)
                return messages

    async def getmany_columns(
        self, *, timeout_ms: int = 1_000, columns: Sequence[str] = COLUMNS, keys: Sequence[str] = ()
    ) -> tuple[MessageQueue, Columns] | None:
        """Return messages of one queue as columns, without an object per message; None after `timeout_ms`.

        `columns` and `keys` (properties by name) name what to decode. A body
        that cannot be inflated is null. Tags are filtered by the broker, which compares their hashes.
        Raises what `getmany` raises.
        """
        self._check_running()
        fetch = await self._queues.next_ready(timeout_ms)
        if fetch is None:
            return None
        try:
            result = fetch.take_columns(columns, keys)
        finally:
            self._queues.still_ready(fetch)
        self._count(fetch.queue, len(result))
        self._queues.returned(fetch)
        self._queues.calls.returned_columns(fetch.queue, result)
        return fetch.queue, result

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over the messages of all queues until the consumer stops; raises what `getmany` raises.

        A message counts as consumed when the next one is asked for.
        """
        self._check_running()
        queues = self._queues
        while (fetch := await queues.next_ready(None)) is not None:
            try:
                fetch.decode(_ITERATED_MAX)
            finally:
                queues.still_ready(fetch)
            self._count(fetch.queue, len(fetch.decoded))
            while fetch.decoded and queues.may_return(fetch):
                message = fetch.pop()
                queues.returned(fetch)
                queues.calls.returned(fetch.queue, (message,))
                yield message
                queues.finish_returned()

    def pause(self, *queues: MessageQueue) -> None:
        """Return nothing of these queues (of all, when none is named) until `resume`; they stay assigned.

        What was fetched is kept. A queue that goes and comes back is not paused.
        """
        self._queues.pause(queues or tuple(self._queues.fetches))

    def resume(self, *queues: MessageQueue) -> None:
        """Return messages of these queues again, of all when none is named."""
        self._queues.resume(queues or tuple(self._queues.fetches))

    # --- offsets ------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue reading `queue` at `offset`; fetched messages of it are dropped."""
        await self._queues.seek(queue, offset)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset behind the last message that was returned, to be kept and assigned again.

        ClientError while the group's offset of a subscribed queue is still being asked for.
        """
        position = self._queues.fetch_of(queue).position
        if position is None:
            raise ClientError(f"the group's offset of {queue} is not known yet: its broker has not answered")
        return position

    def positions(self) -> dict[MessageQueue, int]:
        """Return `position` of all queues whose position is known."""
        # A copy, because others than the loop's thread may ask while queues come and go.
        positions = {queue: fetch.position for queue, fetch in tuple(self._queues.fetches.items())}
        return {queue: position for queue, position in positions.items() if position is not None}

    async def commit(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets of the group: the given ones, else all of `positions()`."""
        chosen = self.positions() if positions is None else positions
        await asyncio.gather(*(self._offsets.commit(queue, offset) for queue, offset in chosen.items()))
        await self._offsets.save()

    async def committed(self, queue: MessageQueue) -> int | None:
        """Ask for the offset that the group committed; None when it never did."""
        return await self._offsets.stored(queue)

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this consumer."""
        yield from samples(
            ("iotmq_client_consumed_total", "Messages consumed", self._returned_total),
            ("iotmq_client_cached_bytes", "Bytes fetched, not consumed", self._queues.room.bytes),
            ("iotmq_client_queues", "Queues of this member", len(self._queues.fetches)),
            labels=(("group", self.group),),
        )

    # ------------------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._is_running:
            raise ClientClosedError(
                "the consumer is not started, or was stopped: use `async with client.pull_consumer(...)`"
            )

    def _count(self, queue: MessageQueue, count: int) -> None:
        self._returned_total += count
        self._consumption.count(queue.topic, consumed=count, failed=0, seconds=0.0)

    def _status(self) -> Status:
        return Status(
            group=self.group,
            consume_type="CONSUME_ACTIVELY",
            parallel=1,
            is_orderly=self.settings.orderly,
            registries=self._client.settings.registries,
            subscriptions=self._member.subscriptions.values(),
            queues={queue: fetch.state for queue, fetch in self._queues.fetches.items()},
        )
