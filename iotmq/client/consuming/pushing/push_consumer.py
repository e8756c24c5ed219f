"""Push messages to a listener; the members of a group share the queues of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from iotmq.client.consuming.consumer_answers import ConsumerAnswers, Status
from iotmq.client.consuming.consumption import Consumption
from iotmq.client.consuming.members.membership import Member, RebalanceListener
from iotmq.client.consuming.members.rebalance import Allocation, allocate_averagely
from iotmq.client.consuming.offsets.group_offsets import GroupOffsets
from iotmq.client.consuming.offsets.seeking import SeekingConsumer
from iotmq.client.consuming.pushing.listener_calls import ColumnsListener, Listener, ListenerCalls
from iotmq.client.consuming.pushing.push_queues import PushQueues
from iotmq.client.transport.application_calls import STOPPED_INSIDE
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import Ending
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PushConsumerSettings, check_settings
from iotmq.errors import ClientError, ListenerError
from iotmq.metrics import Metric, samples
from iotmq.supervised import end, supervise


class PushConsumer(SeekingConsumer):
    """A member of a consumer group that calls a listener; `async with` starts and stops it.

    Every message is handed over at least once; after a crash, and when queues move between members,
    some come twice. Within one queue batches come in order, one at a time (`parallel_batches`). A
    message that failed is given back to the broker and comes again later through the group's retry
    topic, 10 s at first, up to 16 times, then it goes to `%DLQ%group`. With `orderly` it is tried again in
    its place, and its queue waits.

    A listener may be a coroutine function. A plain function runs on the event loop and must not block
    (use `SyncPushConsumer` for one that does).
    """

    def __init__(
        self,
        client: ClientTransport,
        group: str,
        listener: Listener | None = None,
        *,
        columns_listener: ColumnsListener | None = None,
        settings: PushConsumerSettings | None = None,
        allocate: Allocation = allocate_averagely,
    ) -> None:
        if (listener is None) == (columns_listener is None):
            raise ClientError("give either a listener or a columns_listener")
        if not callable(listener or columns_listener):
            raise ClientError(f"a listener is a function, not {type(listener or columns_listener).__name__}")
        self._client = client
        check_settings(settings, PushConsumerSettings)
        self.settings = settings or PushConsumerSettings()
        if self.settings.orderly and (
            self.settings.parallel_batches > 1 or self.settings.model != "clustering"
        ):
            raise ClientError("an orderly consumer is clustering, and has parallel_batches = 1")
        if self.settings.orderly and columns_listener is not None:
            raise ClientError("an orderly consumer takes a listener of messages, not of columns")
        self._offsets = GroupOffsets(client, group, self.settings)
        self._commits: list[asyncio.Task[None]] = []
        self._is_running = False
        self._ending = Ending()
        consumption = Consumption(client.clock)
        self._calls = ListenerCalls(
            client,
            group,
            consumption,
            listener=listener,
            columns_listener=columns_listener,
            settings=self.settings,
        )
        self._queues = PushQueues(
            client, self._calls, self._offsets, self.settings, lambda: self._member.divide_soon()
        )
        self._member = Member(client, group, self.settings, self._queues, allocate)
        self._answers = ConsumerAnswers(
            client,
            consumption,
            status=self._status,
            consume=None if listener is None else self._calls.consume_one,
        )

    @property
    def group(self) -> str:
        """Return the consumer group's name."""
        return self._member.group

    async def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic`: all of it, the tags of an expression such as `TagA || TagB`, or the messages whose
        properties an SQL92 expression such as `a > 5 AND b IN ('x', 'y')` is true for.

        All members of a group must subscribe to the same. May be called before `start` and after it.
        SubscriptionError, here or from `start`, when a broker of the topic does not understand `sql`.
        """
        await self._member.subscribe(topic, tags, sql)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming `topic`; its queues go to other members."""
        await self._member.unsubscribe(topic)

    def on_rebalance(self, listener: RebalanceListener) -> None:
        """Have `listener` told about queues that come, and about queues before they go."""
        self._member.on_rebalance(listener)

    def on_failure(self, call: Callable[[ListenerError], Awaitable[None] | None]) -> None:
        """Have `call` told about each failed call of the listener; its class says why. What `call`
        raises is logged."""
        self._calls.on_failure = call

    def pause(self, *queues: MessageQueue) -> None:
        """Hand over nothing of these queues (of all, when none is named) until `resume`; they stay assigned.

        Calls that run end. A queue that goes and comes back is not paused.
        """
        self._queues.pause(queues or tuple(self._queues.readers), is_paused=True)

    def resume(self, *queues: MessageQueue) -> None:
        """Hand over messages of these queues again, of all when none is named."""
        self._queues.pause(queues or tuple(self._queues.readers), is_paused=False)

    async def start(self) -> None:
        """Join the group and begin consuming; returns when the first division of queues is done.

        Topics that do not exist yet are waited for in the background.
        """
        await self._ending.over()
        if self._is_running:
            return
        self._offsets.open()
        try:
            self._member.enter(with_retries=self._offsets.are_shared)
        except BaseException:
            self._offsets.close()
            raise
        self._is_running = True
        self._answers.start()
        try:
            await self._member.join()
        except BaseException:
            # A member that stays, in heartbeats, is given queues that nobody reads.
            await self.stop()
            raise
        self._commits = [supervise("commit of offsets", self._queues.commit_forever)]
        if self._queues.locks is not None:
            self._commits.append(supervise("locks of queues", self._queues.locks.renew_forever))

    async def stop(self) -> None:
        """Let running listener calls end (`stop_timeout_ms`), commit, and leave the group.

        Calls that take longer are cancelled, and those that go on are left behind after the same time again.
        """
        if self._queues.are_worked_by(asyncio.current_task()):
            raise ClientError(STOPPED_INSIDE)
        work = None
        if self._is_running:
            self._is_running = False
            work = self._end()
        await self._ending.reached(work)

    async def _end(self) -> None:
        await self._answers.stop()
        await self._member.end_division()
        await self._queues.close()
        # Now only: locks are renewed until the last call has ended.
        await end(self._commits)
        self._offsets.close()
        await self._member.leave()

    @property
    def assigned(self) -> list[MessageQueue]:
        """Return the queues assigned to this member now, sorted; without those of the retry topic."""
        return self._member.assigned

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of each queue below which everything is consumed, where it is known."""
        readers = self._queues.readers
        known = {queue: readers[queue].committable for queue in self.assigned if queue in readers}
        return {queue: position for queue, position in known.items() if position is not None}

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `queue` at `offset`, while this member has it; fetched messages of it are dropped."""
        self.move({queue: offset})

    def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in this member's queues; fetched messages of them are dropped."""
        self._queues.move(offsets)

    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this consumer."""
        # A copy, because queues come and go while another thread asks.
        cached = sum(reader.cached_records for reader in tuple(self._queues.readers.values()))
        yield from samples(
            ("iotmq_client_consumed_total", "Messages consumed", self._calls.consumed_total),
            ("iotmq_client_consume_failed_total", "Messages a listener failed", self._calls.failed_total),
            ("iotmq_client_given_back_total", "Failed messages given back", self._calls.given_back_total),
            ("iotmq_client_dropped_total", "Failed broadcasts given up", self._calls.dropped_total),
            ("iotmq_client_left_calls_total", "Cancelled calls that went on", self._calls.left_total),
            ("iotmq_client_cached_records", "Messages fetched, not consumed", cached),
            ("iotmq_client_cached_bytes", "Bytes fetched, not consumed", self._queues.room.bytes),
            ("iotmq_client_queues", "Queues of this member", len(self._queues.readers)),
            labels=(("group", self.group),),
        )

    def _status(self) -> Status:
        return Status(
            group=self.group,
            consume_type="CONSUME_PASSIVELY",
            parallel=self.settings.parallel_batches,
            is_orderly=self.settings.orderly,
            registries=self._client.settings.registries,
            subscriptions=self._member.subscriptions.values(),
            queues={queue: reader.state for queue, reader in self._queues.readers.items()},
        )
