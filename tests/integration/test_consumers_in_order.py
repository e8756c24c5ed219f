"""Members of a group that come and go at a real broker: strict order, and pulls with automatic commits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from eventually import until
from local_cluster import LocalCluster

from iotmq.client import (
    Admin,
    IotmqClient,
    Message,
    Producer,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)

KEYS = 8
PER_KEY = 60


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path, topics=("T",))
    await cluster.start()
    yield cluster
    await cluster.stop()


async def send(client: IotmqClient) -> None:
    async with Producer(client) as producer:
        for number in range(PER_KEY):
            batch = [Message("T", b"%d %d" % (key, number), key=str(key)) for key in range(KEYS)]
            await producer.send_batch(batch)


async def test_order_is_kept_while_messages_fail_and_members_come_and_go(cluster: LocalCluster) -> None:
    done: dict[int, list[int]] = {key: [] for key in range(KEYS)}
    tries: Counter[bytes] = Counter()

    def listen(batch: list[ReceivedMessage]) -> list[ReceivedMessage]:
        for at, message in enumerate(batch):
            tries[message.body] += 1
            key, number = map(int, message.body.split())
            if number % 7 == 3 and tries[message.body] < 3:
                return batch[at:]
            if number not in done[key]:
                done[key].append(number)
        return []

    settings = PushConsumerSettings(
        orderly=True, consume_from="first", batch_max=4, local_retry_ms=1, commit_ms=20, rebalance_ms=200
    )
    async with AsyncExitStack() as stack:

        async def member() -> PushConsumer:
            client = await stack.enter_async_context(IotmqClient(cluster.client_settings))
            consumer = PushConsumer(client, "valves", listen, settings=settings)
            await consumer.subscribe("T")
            return await stack.enter_async_context(consumer)

        client = await stack.enter_async_context(IotmqClient(cluster.client_settings))
        first = await member()
        sending = asyncio.ensure_future(send(client))
        await until(lambda: len(first.assigned) == 2)
        second = await member()
        await until(lambda: len(first.assigned) == len(second.assigned) == 1)
        await until(lambda: sum(map(len, done.values())) > KEYS)
        await first.stop()
        await sending
        await until(lambda: all(len(numbers) == PER_KEY for numbers in done.values()))
        assert len(second.assigned) == 2
        assert cluster.broker.native.locks.count > 0
    assert all(numbers == list(range(PER_KEY)) for numbers in done.values())
    # Everything was tried in its place: nothing went to the retry topic.
    retries = cluster.store.find_queue("%RETRY%valves", 0)
    assert retries is None or retries.max_offset == 0


async def test_pull_consumers_share_queues_and_lose_nothing(cluster: LocalCluster) -> None:
    seen: Counter[bytes] = Counter()
    settings = PullConsumerSettings(consume_from="first", commit_ms=20, rebalance_ms=200)

    async def take_until(consumer: PullConsumer, count: int) -> None:
        async for message in consumer:
            seen[message.body] += 1
            if len(seen) >= count:
                return

    async with IotmqClient(cluster.client_settings) as one, IotmqClient(cluster.client_settings) as two:
        await send(one)
        first = PullConsumer(one, "billing", settings)
        await first.subscribe("T")
        async with first:
            await take_until(first, 100)
        second = PullConsumer(two, "billing", settings)
        await second.subscribe("T")
        async with second, asyncio.timeout(30):
            await take_until(second, KEYS * PER_KEY)
            assert sum((await second.lag()).values()) == 0
        # Both left without an error, so each message was taken once, and the group is at the end.
        assert set(seen.values()) == {1}
        offsets = await Admin(one).group_offsets("billing", "T")
        assert sum(offset or 0 for offset in offsets.values()) == KEYS * PER_KEY
