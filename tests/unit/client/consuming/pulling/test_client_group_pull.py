"""The pull consumer as a member of its group, against fake brokers: division, commits, pauses, iteration."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from eventually import until
from fake_broker import CLOSE, FakeBroker, FakeRegistry

from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings, PullConsumerSettings
from iotmq.errors import ClientError, SubscriptionError
from iotmq.remoting.codes import RequestCode


def broker_with(count: int, queues: int = 1) -> FakeBroker:
    broker = FakeBroker()
    broker.add_topic("T", queues)
    for number in range(count):
        broker.store("T", number % queues, b"%d" % number)
    return broker


def queue(number: int = 0) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


class Cluster:
    """A broker, its registry, and members of the group `pg`, each with a client of its own."""

    def __init__(self, broker: FakeBroker, registry: FakeRegistry) -> None:
        self.broker = broker
        self.registry = registry

    @asynccontextmanager
    async def client(self, name: str = ""):
        settings = ClientSettings(
            registries=(self.registry.address,),
            client_id=name,
            reconnect_ms_min=5,
            reconnect_ms_max=20,
            request_timeout_ms=1_000,
        )
        async with ClientTransport(settings) as client:
            yield client

    @asynccontextmanager
    async def member(self, name: str = "", *, listener=None, tags: str = "*", **settings):
        options = {"consume_from": "first", "commit_ms": 600_000, **settings}
        async with self.client(name) as client:
            consumer = PullConsumer(client, "pg", PullConsumerSettings(**options))
            await consumer.subscribe("T", tags)
            if listener is not None:
                consumer.on_rebalance(listener)
            async with consumer:
                yield consumer


@asynccontextmanager
async def cluster_of(broker: FakeBroker):
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    try:
        yield Cluster(broker, registry)
    finally:
        await broker.stop()
        await registry.stop()


class Heard:
    """A rebalance listener that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def assigned(self, queues: list[MessageQueue]) -> None:
        self.calls.append(("assigned", [queue.queue_id for queue in queues]))

    async def revoked(self, queues: list[MessageQueue]) -> None:
        await asyncio.sleep(0)
        self.calls.append(("revoked", [queue.queue_id for queue in queues]))


async def getmany_until(consumer: PullConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.getmany()]
    return bodies


async def test_an_iteration_returns_everything_and_commits_what_was_finished() -> None:
    broker = broker_with(10)
    got: list[bytes] = []
    async with cluster_of(broker) as cluster, cluster.member() as consumer:
        async with asyncio.timeout(30):
            async for message in consumer:
                got.append(message.body)
                assert consumer.position(message.queue) == message.queue_offset + 1
                if len(got) == 10:
                    break
        assert consumer.assigned == [queue()]
    assert got == [b"%d" % number for number in range(10)]
    assert broker.offsets == {("pg", "T", 0): 10}
    assert broker.seen(RequestCode.UNREGISTER_CLIENT)[0].ext["consumerGroup"] == "pg"


async def test_an_error_inside_the_block_leaves_the_last_message_to_the_next_member() -> None:
    broker = broker_with(10)

    async def consume_until_an_error(cluster: Cluster) -> None:
        async with cluster.member() as consumer, asyncio.timeout(30):
            async for message in consumer:
                if message.queue_offset == 4:
                    raise ZeroDivisionError

    async with cluster_of(broker) as cluster:
        with pytest.raises(ZeroDivisionError):
            await consume_until_an_error(cluster)
        assert broker.offsets == {("pg", "T", 0): 4}
        async with cluster.member() as consumer:
            assert (await consumer.getmany(records_max=1))[0].queue_offset == 4


async def test_an_iteration_ends_when_the_consumer_stops() -> None:
    async with cluster_of(broker_with(1)) as cluster, cluster.member() as consumer:
        got: list[bytes] = []

        async def iterate() -> None:
            got.extend([message.body async for message in consumer])

        iteration = asyncio.ensure_future(iterate())
        await until(lambda: consumer.positions() == {queue(): 1})
        await consumer.stop()
        await asyncio.wait_for(iteration, 30)
        assert got == [b"0"]


async def test_commits_count_what_was_returned_before_the_latest_call() -> None:
    broker = broker_with(10)
    async with cluster_of(broker) as cluster, cluster.member(commit_ms=10) as consumer:
        assert len(await consumer.getmany(records_max=3)) == 3
        await until(lambda: broker.offsets == {("pg", "T", 0): 0})
        assert len(await consumer.getmany(records_max=3)) == 3
        await until(lambda: broker.offsets == {("pg", "T", 0): 3})
        assert await consumer.lag() == {queue(): 4}
        assert await consumer.committed(queue()) == 3
    assert broker.offsets == {("pg", "T", 0): 6}


async def test_without_automatic_commits_only_commit_stores() -> None:
    broker = broker_with(4)
    async with cluster_of(broker) as cluster:
        async with cluster.member(auto_commit=False, commit_ms=10) as consumer:
            await getmany_until(consumer, 4)
        assert broker.offsets == {}
        async with cluster.member(auto_commit=False) as consumer:
            await getmany_until(consumer, 4)
            await consumer.commit()
        assert broker.offsets == {("pg", "T", 0): 4}


async def test_members_share_the_queues_and_hear_of_it() -> None:
    broker, one_heard, two_heard = broker_with(0, 4), Heard(), Heard()
    async with cluster_of(broker) as cluster, cluster.member("one", listener=one_heard) as one:
        await until(lambda: len(one.assigned) == 4)
        async with cluster.member("two", listener=two_heard) as two:
            await until(lambda: one.assigned == [queue(0), queue(1)])
            await until(lambda: two.assigned == [queue(2), queue(3)])
            for number in range(4):
                broker.store("T", number, b"%d" % number)
            assert sorted(await getmany_until(one, 2)) == [b"0", b"1"]
            assert sorted(await getmany_until(two, 2)) == [b"2", b"3"]
        await until(lambda: len(one.assigned) == 4)
    assert one_heard.calls == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [2, 3]),
        ("assigned", [2, 3]),
        ("revoked", [0, 1, 2, 3]),
    ]
    assert two_heard.calls == [("assigned", [2, 3]), ("revoked", [2, 3])]
    assert broker.offsets == {("pg", "T", number): 1 for number in range(4)}


async def test_a_commit_while_queues_are_revoked_reaches_the_next_member() -> None:
    broker = broker_with(8, 2)

    class Committing(Heard):
        async def revoked(self, queues: list[MessageQueue]) -> None:
            await consumer.commit({queue: consumer.position(queue) for queue in queues})
            raise ValueError("is logged, and changes nothing")

    async with cluster_of(broker) as cluster:
        async with cluster.member("one", listener=Committing(), auto_commit=False) as consumer:
            await getmany_until(consumer, 8)
            async with cluster.member("two", auto_commit=False) as two:
                await until(lambda: two.assigned == [queue(1)])
                await until(lambda: consumer.assigned == [queue(0)])
                await until(lambda: broker.offsets.get(("pg", "T", 1)) == 4)
        assert broker.offsets == {("pg", "T", 0): 4, ("pg", "T", 1): 4}


async def test_paused_queues_wait_and_keep_what_they_have() -> None:
    broker = broker_with(20, 2)
    async with cluster_of(broker) as cluster, cluster.member(pull_records_max=4) as consumer:
        await until(lambda: len(consumer.assigned) == 2)
        consumer.pause(queue(0))
        assert sorted(await getmany_until(consumer, 10), key=int) == [b"%d" % n for n in range(1, 20, 2)]
        consumer.pause()
        assert await consumer.getmany(timeout_ms=5) == []
        consumer.resume()
        assert sorted(await getmany_until(consumer, 10), key=int) == [b"%d" % n for n in range(0, 20, 2)]
        with pytest.raises(ClientError, match="is not assigned"):
            consumer.pause(queue(7))


async def test_a_pause_inside_an_iteration_keeps_the_rest() -> None:
    broker = broker_with(6)
    async with cluster_of(broker) as cluster, cluster.member() as consumer, asyncio.timeout(30):
        got: list[int] = []

        async def iterate() -> None:
            async for message in consumer:
                got.append(message.queue_offset)
                if got == [0, 1]:
                    consumer.pause()

        iteration = asyncio.ensure_future(iterate())
        await until(lambda: got == [0, 1])
        assert consumer.position(queue()) == 2
        assert await consumer.getmany(timeout_ms=5) == []
        consumer.resume()
        await until(lambda: got == [0, 1, 2, 3, 4, 5])
        iteration.cancel()
        await asyncio.gather(iteration, return_exceptions=True)


async def test_messages_columns_and_iterations_may_be_mixed() -> None:
    broker = broker_with(10)
    async with cluster_of(broker) as cluster, cluster.member() as consumer, asyncio.timeout(30):
        async for message in consumer:
            if message.queue_offset == 2:
                break
        result = await consumer.getmany_columns(columns=("queue_offset",))
        assert result is not None
        assert result[1].numpy("queue_offset").tolist() == [3, 4, 5, 6, 7, 8, 9]
        await consumer.seek_to_begin()
        async for message in consumer:
            assert message.queue_offset == 0
            break
        assert [message.queue_offset for message in await consumer.getmany(records_max=2)] == [1, 2]
        assert consumer.position(queue()) == 3
        assert len(await consumer.getmany()) == 7


async def test_seeks_by_time_and_to_both_ends() -> None:
    broker = broker_with(5)
    async with cluster_of(broker) as cluster, cluster.member() as consumer:
        await getmany_until(consumer, 5)
        await consumer.seek_to_begin()
        assert await getmany_until(consumer, 5) == [b"%d" % number for number in range(5)]
        await consumer.seek_to_time(0)
        assert consumer.position(queue()) == 0
        await consumer.seek_to_end(queue())
        broker.store("T", 0, b"now")
        assert await getmany_until(consumer, 1) == [b"now"]


async def test_an_offset_that_is_gone_is_passed_over() -> None:
    broker = broker_with(3)
    broker.offsets["pg", "T", 0] = 50
    async with cluster_of(broker) as cluster, cluster.member() as consumer:
        await until(lambda: consumer.positions() == {queue(): 3})
        broker.store("T", 0, b"on")
        assert await getmany_until(consumer, 1) == [b"on"]


async def test_a_member_waits_for_a_broker_that_does_not_tell_the_offset() -> None:
    broker = broker_with(1)
    broker.script[RequestCode.QUERY_CONSUMER_OFFSET].extend([CLOSE, CLOSE])
    async with cluster_of(broker) as cluster, cluster.member() as consumer:
        assert await getmany_until(consumer, 1) == [b"0"]


async def test_everybody_gets_everything_in_broadcasting() -> None:
    broker = broker_with(4, 2)
    async with (
        cluster_of(broker) as cluster,
        cluster.member("one", model="broadcasting") as one,
        cluster.member("two", model="broadcasting") as two,
    ):
        assert len(await getmany_until(one, 4)) == len(await getmany_until(two, 4)) == 4
        assert await one.committed(queue(0)) == 0
    assert broker.offsets == {}


async def test_topics_may_come_and_go_while_it_runs() -> None:
    broker = broker_with(2)
    broker.add_topic("U", 1)
    broker.store("U", 0, b"u")
    async with cluster_of(broker) as cluster, cluster.client() as client:
        settings = PullConsumerSettings(consume_from="first")
        async with PullConsumer(client, "pg", settings) as consumer:
            await consumer.subscribe("T")
            assert await getmany_until(consumer, 2) == [b"0", b"1"]
            await consumer.subscribe("U")
            assert await getmany_until(consumer, 1) == [b"u"]
            await consumer.unsubscribe("T")
            await until(lambda: [queue.topic for queue in consumer.assigned] == ["U"])
            assert {metric.name: metric.value for metric in consumer.metrics()} == {
                "iotmq_client_consumed_total": 3,
                "iotmq_client_cached_bytes": 0,
                "iotmq_client_queues": 1,
            }


async def test_subscribing_and_assigning_exclude_each_other() -> None:
    async with (
        cluster_of(broker_with(1)) as cluster,
        cluster.client() as client,
        PullConsumer(client, "pg") as consumer,
    ):
        await consumer.assign([queue()])
        with pytest.raises(ClientError, match=r"assign\(\[\]\) before"):
            await consumer.subscribe("T")
        await consumer.assign([])
        await consumer.subscribe("T")
        with pytest.raises(ClientError, match=r"unsubscribe\(\) before"):
            await consumer.assign([queue()])


async def test_a_member_that_cannot_join_is_gone() -> None:
    broker = broker_with(1)
    async with cluster_of(broker) as cluster, cluster.client() as client, PullConsumer(client, "pg") as one:
        await one.subscribe("T")
        other = PullConsumer(client, "pg")
        await other.subscribe("T")
        with pytest.raises(ClientError, match="already"):
            await other.start()
        with pytest.raises(SubscriptionError, match="no subscription to V"):
            await one.unsubscribe("V")
        assert one.assigned == [queue()]
