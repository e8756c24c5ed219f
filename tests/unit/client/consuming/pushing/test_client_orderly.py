"""Orderly consumption against fake brokers: locks, tries in place, dead letters."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from eventually import STOP_S, until
from fake_broker import FakeBroker, FakeRegistry
from manual_clock import ManualClock

from iotmq.client.consuming.members.held_locks import HeldLocks
from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings, PullConsumerSettings, PushConsumerSettings
from iotmq.errors import ClientError, QueueLockedError
from iotmq.remoting.codes import RequestCode

BACK = RequestCode.CONSUMER_SEND_MESSAGE_BACK
LOCK = RequestCode.LOCK_BATCH_QUEUES
QUEUE = MessageQueue("T", "broker-a", 0)


def broker_with(count: int, queues: int = 1) -> FakeBroker:
    broker = FakeBroker()
    broker.add_topic("T", queues)
    for number in range(count):
        broker.store("T", number % queues, b"%d" % number)
    return broker


class Cluster:
    """A broker, its registry, and orderly members of the group `cg`."""

    def __init__(self, broker: FakeBroker, registry: FakeRegistry, stack: AsyncExitStack) -> None:
        self.broker = broker
        self._registry = registry
        self._stack = stack

    async def client(self, name: str, clock: ManualClock | None = None) -> ClientTransport:
        settings = ClientSettings(
            registries=(self._registry.address,),
            client_id=name,
            reconnect_ms_min=5,
            reconnect_ms_max=20,
            request_timeout_ms=1_000,
        )
        return await self._stack.enter_async_context(ClientTransport(settings, clock=clock))

    async def consumer(self, listener, name: str = "one", clock=None, **settings) -> PushConsumer:
        options = {"consume_from": "first", "commit_ms": 10, "local_retry_ms": 5, "stop_timeout_ms": 500}
        consumer = PushConsumer(
            await self.client(name, clock),
            "cg",
            listener,
            settings=PushConsumerSettings(orderly=True, **options | settings),
        )
        await consumer.subscribe("T")
        return await self._stack.enter_async_context(consumer)

    def is_consumed(self, offset: int, queue_id: int = 0) -> bool:
        return self.broker.offsets.get(("cg", "T", queue_id)) == offset


@asynccontextmanager
async def cluster_of(broker: FakeBroker):
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    try:
        async with AsyncExitStack() as stack:
            yield Cluster(broker, registry, stack)
    finally:
        await broker.stop()
        await registry.stop()


async def test_a_failed_message_is_tried_again_before_the_next_one() -> None:
    got: list[bytes] = []

    def listen(batch: list[ReceivedMessage]) -> None:
        got.append(batch[0].body)
        if got.count(b"1") < 3 and batch[0].body == b"1":
            raise ValueError("not yet")

    async with cluster_of(broker_with(3)) as cluster:
        await cluster.consumer(listen, batch_max=1)
        await until(lambda: cluster.is_consumed(3))
        assert cluster.broker.locks[("cg", "T", 0)] == "one"
    assert got == [b"0", b"1", b"1", b"1", b"2"]
    assert not cluster.broker.given_back
    # Leaving unlocks.
    assert cluster.broker.locks == {}


async def test_tries_are_counted_and_end_in_a_dead_letter() -> None:
    got: list[bytes] = []

    def listen(batch: list[ReceivedMessage]) -> None:
        got.append(batch[0].body)
        if batch[0].body == b"1":
            raise ValueError("never")

    async with cluster_of(broker_with(3)) as cluster:
        cluster.broker.script[BACK].append(1)
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(1)
        await cluster.consumer(listen, batch_max=1, redeliveries_max=2)
        await until(lambda: cluster.is_consumed(3))
    # Nobody took the first dead letter, so it was tried once more.
    assert got == [b"0", b"1", b"1", b"1", b"1", b"2"]
    assert [request.ext["delayLevel"] for request in cluster.broker.seen(BACK)] == ["-1", "-1"]


async def test_single_messages_are_settled_in_their_place() -> None:
    calls: list[list[bytes]] = []

    def listen(batch: list[ReceivedMessage]) -> None:
        calls.append([message.body for message in batch])
        if len(calls) == 1:
            batch[0].ack()
            batch[1].nak(1)
            batch[2].term()

    async with cluster_of(broker_with(4)) as cluster:
        await cluster.consumer(listen)
        await until(lambda: cluster.is_consumed(4))
    assert calls == [[b"0", b"1", b"2", b"3"], [b"1"]]
    assert [request.ext["delayLevel"] for request in cluster.broker.seen(BACK)] == ["-1"]


async def test_a_queue_that_another_member_holds_is_waited_for() -> None:
    got: list[bytes] = []
    broker = broker_with(4, 2)
    broker.locks["cg", "T", 0] = "somebody"
    async with cluster_of(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(message.body for message in batch))
        await until(lambda: cluster.is_consumed(2, 1))
        assert got == [b"1", b"3"]
        del broker.locks["cg", "T", 0]
        await until(lambda: cluster.is_consumed(2, 0))
    assert got == [b"1", b"3", b"0", b"2"]


async def test_queues_go_to_the_next_member_after_their_last_call() -> None:
    broker = broker_with(0, 2)
    got: dict[str, list[bytes]] = {"one": [], "two": []}
    async with cluster_of(broker) as cluster:
        one = await cluster.consumer(lambda batch: got["one"].extend(m.body for m in batch), "one")
        await until(lambda: len(one.assigned) == 2)
        two = await cluster.consumer(lambda batch: got["two"].extend(m.body for m in batch), "two")
        await until(lambda: broker.locks.get(("cg", "T", 1)) == "two")
        assert broker.locks["cg", "T", 0] == "one"
        for number in range(4):
            broker.store("T", number % 2, b"%d" % number)
        await until(lambda: got == {"one": [b"0", b"2"], "two": [b"1", b"3"]})
        await two.stop()
        await until(lambda: broker.locks.get(("cg", "T", 1)) == "one")


async def test_nothing_is_consumed_under_a_lock_that_was_not_renewed() -> None:
    got: list[bytes] = []
    clock = ManualClock()
    broker = broker_with(1)
    async with cluster_of(broker) as cluster:
        consumer = await cluster.consumer(lambda b: got.extend(m.body for m in b), clock=clock)
        await until(lambda: cluster.is_consumed(1))
        clock.advance(31)
        broker.store("T", 0, b"later")
        reader = consumer._queues.readers[QUEUE]
        await until(lambda: reader.cached_records == 1)
        assert got == [b"0"]
        locks = consumer._queues.locks
        assert locks is not None
        await locks.renew()
        await until(lambda: got == [b"0", b"later"])


async def test_a_lost_lock_makes_the_queue_begin_again_at_its_offset() -> None:
    clock = ManualClock()
    broker = broker_with(1)
    lost: list[MessageQueue] = []
    async with cluster_of(broker) as cluster:
        locks = HeldLocks(await cluster.client("one", clock), "cg", lost.append)
        await locks.hold(QUEUE)
        # In time, but the broker has given it away; and too late, so that others may have had it.
        broker.locks["cg", "T", 0] = "two"
        await locks.renew()
        assert lost == [QUEUE]
        with pytest.raises(QueueLockedError, match="T queue 0 of broker broker-a: another member"):
            await locks.hold(QUEUE)
        del broker.locks["cg", "T", 0]
        await locks.hold(QUEUE)
        clock.advance(29)
        assert locks.is_held(QUEUE)
        await locks.renew()
        assert lost == [QUEUE]
        clock.advance(56)
        await locks.renew()
        assert lost == [QUEUE, QUEUE]
        assert not locks.is_held(QUEUE)
        # A broker that does not answer leaves the lock as it is.
        await locks.hold(QUEUE)
        broker.script[LOCK].append(1)
        await locks.renew()
        assert locks.is_held(QUEUE)
        broker.script[RequestCode.UNLOCK_BATCH_QUEUES].append(1)
        await locks.release(QUEUE)
        assert not locks.is_held(QUEUE)


async def test_a_member_that_lost_a_queue_reads_it_again() -> None:
    got: list[bytes] = []
    broker = broker_with(1)
    async with cluster_of(broker) as cluster:
        consumer = await cluster.consumer(lambda batch: got.extend(m.body for m in batch))
        await until(lambda: cluster.is_consumed(1))
        broker.locks["cg", "T", 0] = "two"
        locks = consumer._queues.locks
        assert locks is not None
        await locks.renew()
        broker.store("T", 0, b"later")
        del broker.locks["cg", "T", 0]
        await until(lambda: got == [b"0", b"later"])


async def test_a_pull_consumer_that_gets_a_queue_waits_for_the_one_before() -> None:
    broker = broker_with(4)
    settings = PullConsumerSettings(orderly=True, consume_from="first", auto_commit=False)
    clock = ManualClock()
    async with cluster_of(broker) as cluster:
        consumer = PullConsumer(await cluster.client("one", clock), "cg", settings)
        await consumer.subscribe("T")
        broker.locks["cg", "T", 0] = "two"
        async with consumer:
            assert await consumer.getmany(timeout_ms=30) == []
            # It seeks, and waits all the same.
            await consumer.seek(QUEUE, 1)
            assert await consumer.getmany(timeout_ms=30) == []
            del broker.locks["cg", "T", 0]
            assert [m.queue_offset for m in await consumer.getmany(timeout_ms=30_000, records_max=1)] == [1]
            # Nothing is returned under a lock that may be somebody else's.
            clock.advance(31)
            assert await consumer.getmany(timeout_ms=30) == []
            locks = consumer._queues.locks
            assert locks is not None
            await locks.renew()
            assert [m.queue_offset for m in await consumer.getmany(timeout_ms=30_000, records_max=1)] == [2]
            # A lost queue begins again where the group is.
            broker.offsets["cg", "T", 0] = 3
            broker.locks["cg", "T", 0] = "two"
            await locks.renew()
            del broker.locks["cg", "T", 0]
            assert [m.queue_offset for m in await consumer.getmany(timeout_ms=30_000)] == [3]
            assert broker.locks == {("cg", "T", 0): "one"}
            with pytest.raises(ClientError, match="as a member of its group"):
                await consumer.assign([QUEUE])
        assert broker.locks == {}


async def test_locks_are_renewed_while_a_stop_waits_for_the_last_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iotmq.client.consuming.members.held_locks._RENEWAL_S", 0.005)
    broker = broker_with(1)
    began, gate = asyncio.Event(), asyncio.Event()

    async def listen(batch) -> None:
        began.set()
        await gate.wait()

    async with cluster_of(broker) as cluster:
        consumer = await cluster.consumer(listen, stop_timeout_ms=60_000)
        await asyncio.wait_for(began.wait(), STOP_S)
        stopping = asyncio.ensure_future(consumer.stop())
        await until(lambda: consumer._queues.readers[QUEUE]._is_closing)
        renewed = len(broker.seen(LOCK))
        await until(lambda: len(broker.seen(LOCK)) >= renewed + 3)
        gate.set()
        await asyncio.wait_for(stopping, STOP_S)
        assert cluster.is_consumed(1)
        assert broker.locks == {}


@pytest.mark.parametrize("is_asked", [True, False])
async def test_a_queue_goes_when_the_program_is_done_with_its_last_messages(
    is_asked: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not is_asked:
        monkeypatch.setattr("iotmq.client.consuming.pulling.pull_queues._ASKED_WITHIN_S", 0.05)
    broker = broker_with(4)
    settings = PullConsumerSettings(orderly=True, consume_from="first")
    async with cluster_of(broker) as cluster:
        consumer = PullConsumer(await cluster.client("two"), "cg", settings)
        await consumer.subscribe("T")
        async with consumer:
            assert len(await consumer.getmany(timeout_ms=30_000, records_max=2)) == 2
            # Another member, which is in front of it.
            other = PullConsumer(await cluster.client("one"), "cg", settings)
            await other.subscribe("T")
            async with other:
                if is_asked:
                    # It takes its time, and the other one gets nothing that it is at.
                    assert await other.getmany(timeout_ms=100) == []
                    assert broker.locks == {("cg", "T", 0): "two"}
                    assert await consumer.getmany(timeout_ms=10) == []
                taken = await other.getmany(timeout_ms=30_000)
                assert [message.queue_offset for message in taken] == ([2, 3] if is_asked else [0, 1, 2, 3])
            assert is_asked or "nothing was asked for" in caplog.text


async def test_a_stop_while_a_queue_goes_leaves_nothing_behind() -> None:
    broker = broker_with(4)
    settings = PullConsumerSettings(orderly=True, consume_from="first")
    async with cluster_of(broker) as cluster:
        consumer = PullConsumer(await cluster.client("two"), "cg", settings)
        await consumer.subscribe("T")
        await consumer.start()
        assert len(await consumer.getmany(timeout_ms=30_000, records_max=2)) == 2
        fetch = consumer._queues.fetches[QUEUE]
        other = PullConsumer(await cluster.client("one"), "cg", settings)
        await other.subscribe("T")
        async with other:
            await until(lambda: fetch.is_leaving)
            await asyncio.wait_for(consumer.stop(), STOP_S)
            assert fetch._task.done()
            assert consumer.assigned == []
            await until(lambda: broker.locks == {("cg", "T", 0): "one"})


def test_orders_that_cannot_be_kept_are_refused() -> None:
    client = ClientTransport()
    for settings in ({"parallel_batches": 2}, {"model": "broadcasting"}):
        with pytest.raises(ClientError, match="orderly"):
            PushConsumer(
                client, "g", lambda batch: None, settings=PushConsumerSettings(orderly=True, **settings)
            )
    with pytest.raises(ClientError, match="orderly"):
        PullConsumer(client, "g", PullConsumerSettings(orderly=True, model="broadcasting"))
    with pytest.raises(ClientError, match="not of columns"):
        PushConsumer(
            client,
            "g",
            columns_listener=lambda queue, columns: None,
            settings=PushConsumerSettings(orderly=True),
        )
