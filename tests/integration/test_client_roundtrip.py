"""The native client over a real registry and broker: what was acknowledged arrives, whatever happens."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from eventually import until
from local_cluster import LocalCluster

from iotmq.client import (
    Admin,
    ClientSettings,
    IotmqClient,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    SendStatus,
    SyncClient,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
)
from iotmq.errors import BrokerError, IotmqError, OffsetMovedError, RouteNotFoundError
from iotmq.message.records.record import encode_batch
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings

ROOT = Path(__file__).resolve().parents[2]
SEGMENT_BYTES = 4 * 1024 * 1024
DELAY_LEVELS = "1s 1s 1s 1s 1s"


class Cluster(LocalCluster):
    @asynccontextmanager
    async def client(self) -> AsyncIterator[IotmqClient]:
        async with IotmqClient(self.client_settings) as client:
            # Sends need the template's route, which the first registration brings.
            await until_async(lambda: client.routes.refresh("TBW102"))
            yield client


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


# On a busy machine a broker takes seconds to start, and one message may meet every restart of a test.
PATIENT = ProducerSettings(send_timeout_ms=60_000, tries_max=20)


async def until_async(ask, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await ask():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


class Collector:
    """A listener that counts bodies."""

    def __init__(self) -> None:
        self.bodies: Counter[bytes] = Counter()

    def __call__(self, batch) -> None:
        self.bodies.update(message.body for message in batch)

    def has(self, bodies) -> bool:
        return set(bodies) <= self.bodies.keys()


def push_settings(**settings) -> PushConsumerSettings:
    return PushConsumerSettings(
        **{
            "consume_from": "first",
            "commit_ms": 50,
            "rebalance_ms": 500,
            "stop_timeout_ms": 1_000,
            "local_retry_ms": 20,
            **settings,
        }
    )


@asynccontextmanager
async def pushing(client: IotmqClient, listener, *, group: str = "cg", topic: str = "T", **settings):
    consumer = PushConsumer(client, group, listener, settings=push_settings(**settings))
    await consumer.subscribe(topic)
    async with consumer:
        yield consumer


async def read_all(client: IotmqClient, topic: str) -> list[bytes]:
    """All bodies of a topic, read by a pull consumer up to the end offsets."""
    ends = {queue: offsets.end for queue, offsets in (await Admin(client).offsets(topic)).items()}
    bodies: list[bytes] = []
    async with PullConsumer(client) as consumer:
        await consumer.assign(ends)
        await consumer.assign(dict.fromkeys(ends, 0))
        async with asyncio.timeout(30):
            while any(consumer.position(queue) < end for queue, end in ends.items()):
                bodies += [message.body for message in await consumer.getmany(timeout_ms=100)]
    return bodies


async def test_every_way_of_sending_arrives_in_every_way_of_reading(cluster: Cluster) -> None:
    collector = Collector()
    async with cluster.client() as client, Producer(client) as producer, pushing(client, collector):
        sent = {b"send", b"nowait", b"oneway", b"encoded"}
        result = await producer.send(
            Message("T", b"send", key="k", tags="t", properties={"own": "ü"}, flag=3)
        )
        assert result.status is SendStatus.SEND_OK
        assert (await producer.send_nowait(Message("T", b"nowait"))).queue_offset >= 0
        await producer.send_oneway(Message("T", b"oneway"))
        batch = [Message("T", b"batch %d" % number, key=f"k{number}") for number in range(100)]
        results = await producer.send_batch(batch)
        assert sum(result.count for result in results) == 100
        assert all(len(result.offset_message_ids) == result.count for result in results)
        sent.update(message.body for message in batch)
        encoded = await producer.send_encoded_batch("T", None, encode_batch([(b"encoded", b"", 0)]), 1)
        assert encoded.count == 1
        large = b"compressible " * 1000
        await producer.send(Message("T", large))
        sent.add(large)

        await until(lambda: collector.has(sent))
        await until_async(lambda: has_count(client, "T", len(sent)))
        assert sorted(await read_all(client, "T")) == sorted(sent)
        assert set(collector.bodies) == sent

        async with PullConsumer(client) as consumer:
            await consumer.assign({result.queue: result.queue_offset})
            (message,) = await consumer.getmany(records_max=1)
    assert (message.body, message.topic, message.flag, message.tags) == (b"send", "T", 3, "t")
    assert message.properties["own"] == "ü"
    assert message.keys == ["k"]
    assert message.message_id == result.message_id
    assert message.offset_message_id == result.offset_message_ids[0]


async def has_count(client: IotmqClient, topic: str, count: int) -> bool:
    return (
        sum(offsets.end - offsets.begin for offsets in (await Admin(client).offsets(topic)).values()) == count
    )


async def test_order_is_kept_per_key(cluster: Cluster) -> None:
    got: dict[str, list[int]] = {}

    def listen(batch) -> None:
        for message in batch:
            got.setdefault(message.keys[0], []).append(int(message.body))

    async with cluster.client() as client, Producer(client) as producer, pushing(client, listen):
        futures = []
        for number in range(500):
            await producer.room()
            futures.append(producer.send_nowait(Message("T", b"%d" % number, key=f"k{number % 10}")))
        await asyncio.gather(*futures)
        await until(lambda: sum(map(len, got.values())) == 500)
    assert len(got) == 10
    assert all(numbers == sorted(numbers) for numbers in got.values())


async def test_members_that_join_and_leave_lose_nothing(cluster: Cluster) -> None:
    collector = Collector()
    sent: list[bytes] = []
    async with cluster.client() as client, Producer(client) as producer:
        await Admin(client).create_topic("T", queues=8)
        stopped = asyncio.Event()

        async def send_all() -> None:
            number = 0
            while not stopped.is_set():
                bodies = [b"%d" % (number + index) for index in range(20)]
                number += 20
                await producer.send_batch([Message("T", body, key=body.decode()) for body in bodies])
                sent.extend(bodies)
                await asyncio.sleep(0.002)

        sending = asyncio.ensure_future(send_all())
        async with cluster.client() as first, pushing(first, collector) as one:
            await until(lambda: len(one.assigned) == 8)
            async with cluster.client() as second, pushing(second, collector) as two:
                await until(lambda: len(one.assigned) == len(two.assigned) == 4)
                async with cluster.client() as third, pushing(third, collector) as three:
                    await until(lambda: sorted(map(count, (one, two, three))) == [2, 3, 3])
                    assert not set(one.assigned) & set(two.assigned) & set(three.assigned)
                await until(lambda: count(one) + count(two) == 8)
            await until(lambda: count(one) == 8)
            stopped.set()
            await sending
            await until(lambda: collector.has(sent))
    assert len(sent) > 100


def count(consumer: PushConsumer) -> int:
    return len(consumer.assigned)


async def test_a_restarted_consumer_goes_on_where_it_committed(cluster: Cluster) -> None:
    first, second = Collector(), Collector()
    async with cluster.client() as client, Producer(client) as producer:
        bodies = [b"%d" % number for number in range(200)]
        await producer.send_batch([Message("T", body, key=body.decode()) for body in bodies])
        async with pushing(client, first):
            await until(lambda: first.has(bodies))
        stored = await Admin(client).group_offsets("cg", "T")
        assert sum(offset or 0 for offset in stored.values()) == 200
        more = [b"more %d" % number for number in range(50)]
        await producer.send_batch([Message("T", body, key=body.decode()) for body in more])
        async with cluster.client() as other, pushing(other, second, consume_from="last"):
            await until(lambda: second.has(more))
    assert first.bodies == Counter(bodies)
    assert second.bodies == Counter(more)


async def test_a_broker_restart_loses_nothing_acknowledged(cluster: Cluster) -> None:
    collector = Collector()
    acknowledged: list[bytes] = []
    async with (
        cluster.client() as client,
        Producer(client, settings=PATIENT) as producer,
        cluster.client() as consuming,
        pushing(consuming, collector) as consumer,
    ):
        stopped = asyncio.Event()

        async def send_some(name: int) -> None:
            number = 0
            while not stopped.is_set():
                body = b"%d-%d" % (name, number)
                number += 1
                await producer.send(Message("T", body, key=str(name) if name % 2 else ""))
                acknowledged.append(body)

        senders = [asyncio.ensure_future(send_some(name)) for name in range(8)]
        await until(lambda: len(collector.bodies) > 200)
        for _ in range(2):
            await cluster.stop_broker()
            await cluster.start_broker()
            before = len(acknowledged)
            await until(lambda before=before: len(acknowledged) > before + 200)
            newest = acknowledged[-1]
            await until(lambda newest=newest: collector.bodies[newest] > 0)
        stopped.set()
        await asyncio.gather(*senders)
        await until(lambda: collector.has(acknowledged))
        assert len(consumer.assigned) == 4
        assert set(acknowledged) <= set(await read_all(client, "T"))


BROKER_PROCESS = """
import asyncio, sys
from pathlib import Path
from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

async def main(directory, registry, port):
    settings = BrokerSettings(listen_port=port, registries=(registry,), registration_interval_s=0.2)
    store = Store.open(
        directory, StoreSettings(segment_bytes=4 << 20), store_host=resolve_store_host(settings)
    )
    broker = Broker(settings, store, directory=directory)
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
"""


class BrokerProcess:
    """A broker in a process that can be killed, on the same port and directory each time."""

    def __init__(self, directory: Path, registry: str) -> None:
        self.directory = directory
        self.registry = registry
        self.port = 0

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            BROKER_PROCESS,
            str(self.directory),
            self.registry,
            str(self.port),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.port = int(await self.process.stdout.readline())

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@pytest.mark.crash
async def test_a_killed_broker_loses_nothing_acknowledged(tmp_path: Path) -> None:
    registry = Registry(RegistrySettings(listen_port=0), directory=tmp_path / "registry")
    await registry.start()
    address = f"127.0.0.1:{registry.port}"
    broker = BrokerProcess(tmp_path / "data", address)
    await broker.start()
    settings = ClientSettings(registries=(address,), reconnect_ms_min=5, reconnect_ms_max=50)
    collector = Collector()
    acknowledged: list[bytes] = []
    try:
        async with (
            IotmqClient(settings) as client,
            Producer(client, settings=PATIENT) as producer,
            IotmqClient(settings) as consuming,
            pushing(consuming, collector),
        ):
            await until_async(lambda: client.routes.refresh("TBW102"))
            stopped = asyncio.Event()

            async def send_some(name: int) -> None:
                number = 0
                while not stopped.is_set():
                    bodies = [b"%d-%d" % (name, number + index) for index in range(10)]
                    number += 10
                    await producer.send_batch([Message("T", body, key=body.decode()) for body in bodies])
                    acknowledged.extend(bodies)

            senders = [asyncio.ensure_future(send_some(name)) for name in range(4)]
            await until(lambda: len(collector.bodies) > 200)
            for _ in range(3):
                await broker.kill()
                await broker.start()
                before = len(acknowledged)
                await until(lambda before=before: len(acknowledged) > before + 200)
            stopped.set()
            await asyncio.gather(*senders)
            await until(lambda: collector.has(acknowledged))
            assert set(acknowledged) <= set(await read_all(client, "T"))
    finally:
        await broker.kill()
        await registry.stop()


async def test_a_pull_consumer_goes_on_after_a_broker_restart(cluster: Cluster) -> None:
    async with (
        cluster.client() as client,
        Producer(client) as producer,
        PullConsumer(client, settings=PullConsumerSettings(hold_ms=500)) as consumer,
    ):
        await Admin(client).create_topic("T", queues=1)
        await consumer.assign(await consumer.queues("T"))
        await producer.send(Message("T", b"before"))
        assert [message.body for message in await consumer.getmany(timeout_ms=5_000)] == [b"before"]
        await cluster.stop_broker()
        await cluster.start_broker()
        await producer.send(Message("T", b"after"))
        assert [message.body for message in await consumer.getmany(timeout_ms=5_000)] == [b"after"]
        (queue,) = consumer.positions()
        assert consumer.position(queue) == 2
        await consumer.seek(queue, 1_000)
        with pytest.raises(OffsetMovedError) as caught:
            await consumer.getmany()
        assert caught.value.next_offset == 2


async def test_failed_messages_come_again_and_end_as_dead_letters(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, delay_levels=DELAY_LEVELS)
    await cluster.start()
    calls: Counter[bytes] = Counter()
    seen: list[tuple[str, int, str]] = []

    def listen(batch):
        calls.update(message.body for message in batch)
        failed = [message for message in batch if message.body != b"good"]
        seen.extend((message.topic, message.redeliveries, message.message_id) for message in failed)
        # "bad" always fails, "weak" only at first.
        return [message for message in failed if message.body == b"bad" or message.redeliveries == 0]

    async with (
        cluster.client() as client,
        Producer(client) as producer,
        pushing(client, listen, redeliveries_max=2),
    ):
        await producer.send_batch([Message("T", body) for body in (b"good", b"bad", b"weak")])
        await until(lambda: calls == {b"good": 1, b"bad": 3, b"weak": 2})
        await until_async(lambda: has_count(client, "%DLQ%cg", 1))
        assert await read_all(client, "%DLQ%cg") == [b"bad"]
        assert len({message_id for _, _, message_id in seen}) == 2
        assert {topic for topic, _, _ in seen} == {"T"}
        assert sorted(times for _, times, _ in seen) == [0, 0, 1, 1, 2]
        # Nothing stands in the way of what comes after.
        await producer.send(Message("T", b"good"))
        await until(lambda: calls[b"good"] == 2)
    await cluster.stop()


async def test_delayed_messages_arrive_later(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, delay_levels=DELAY_LEVELS)
    await cluster.start()
    got: list[bytes] = []
    async with (
        cluster.client() as client,
        Producer(client) as producer,
        pushing(client, lambda batch: got.extend(message.body for message in batch)),
    ):
        await Admin(client).create_topic("T", queues=1)
        await producer.send(Message("T", b"late", delay_level=1))
        await producer.send(Message("T", b"now"))
        await until(lambda: len(got) == 2)
    assert got == [b"now", b"late"]
    await cluster.stop()


async def test_columns_of_a_million_bytes_come_in_few_polls(cluster: Cluster) -> None:
    elements = encode_batch([(b"x" * 100, b"KEYS\x01k%d\x02" % number, 0) for number in range(1000)])
    async with cluster.client() as client, Producer(client) as producer, PullConsumer(client) as consumer:
        queue = (await Admin(client).create_topic("T", queues=1)).writable[0]
        for _ in range(10):
            await producer.send_encoded_batch("T", queue, elements, 1000)
        await consumer.assign([queue])
        rows = polls = 0
        while rows < 10_000:
            result = await consumer.getmany_columns(columns=("body", "queue_offset"), keys=("KEYS",))
            assert result is not None
            offsets = result[1].numpy("queue_offset")
            assert offsets.tolist() == list(range(rows, rows + len(offsets)))
            assert result[1].value("property.KEYS", 0) == f"k{rows % 1000}"
            rows += len(offsets)
            polls += 1
    assert polls <= 10


async def test_two_brokers_share_a_topic_and_one_may_fail(tmp_path: Path) -> None:
    one, two = Cluster(tmp_path / "one", name="one"), Cluster(tmp_path / "two", name="two")
    for cluster in (one, two):
        cluster.directory.mkdir()
    await one.start()
    two.registry = one.registry
    await two.start_broker()
    collector = Collector()
    async with one.client() as client, Producer(client) as producer:
        await until_async(lambda: has_brokers(client, 2))
        await Admin(client).create_topic("T", queues=2)
        async with pushing(client, collector) as consumer:
            await until(lambda: len(consumer.assigned) == 4)
            results = [await producer.send(Message("T", b"%d" % number)) for number in range(40)]
            assert {result.queue.broker_name for result in results} == {"one", "two"}
            await two.stop_broker()
            results = [await producer.send(Message("T", b"then %d" % number)) for number in range(40)]
            assert {result.queue.broker_name for result in results} == {"one"}
            await until(lambda: len(collector.bodies) == 80)
    await one.stop()


async def has_brokers(client: IotmqClient, expected: int) -> bool:
    return len(await Admin(client).brokers()) == expected


async def test_a_topic_must_exist_where_brokers_make_none(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, auto_create_topics=False)
    await cluster.start()
    async with cluster.client() as client, Producer(client) as producer:
        with pytest.raises((RouteNotFoundError, BrokerError), match="auto_create_topics"):
            await producer.send(Message("new", b""))
        await Admin(client).create_topic("new", queues=1)
        assert (await producer.send(Message("new", b""))).status is SendStatus.SEND_OK
    await cluster.stop()


async def test_refusals_of_the_broker_reach_the_application(cluster: Cluster) -> None:
    async with cluster.client() as client, Producer(client) as producer:
        with pytest.raises(BrokerError):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b""))
        with pytest.raises(IotmqError):
            await producer.send_encoded_batch("T", None, b"no batch at all", 1)
        assert (await producer.send(Message("T", b"still fine"))).status is SendStatus.SEND_OK


async def test_the_blocking_facade_over_a_real_broker(cluster: Cluster) -> None:
    await asyncio.to_thread(produce_and_consume, cluster.client_settings)


def produce_and_consume(settings: ClientSettings) -> None:
    got: list[bytes] = []
    done = threading.Event()

    def listen(batch) -> None:
        got.extend(message.body for message in batch)
        if len(got) == 10:
            done.set()

    with SyncClient(settings) as client, SyncProducer(client) as producer:
        consumer = SyncPushConsumer(client, "cg", listen, settings=push_settings())
        consumer.subscribe("T")
        with consumer:
            for number in range(5):
                producer.send(Message("T", b"%d" % number))
            producer.send_batch([Message("T", b"%d" % number) for number in range(5, 10)])
            assert done.wait(10)
        with SyncPullConsumer(client) as puller:
            puller.assign(puller.queues("T"))
            pulled: list[bytes] = []
            while len(pulled) < 10:
                pulled += [message.body for message in puller.getmany()]
    assert sorted(got) == sorted(pulled) == [b"%d" % number for number in range(10)]
