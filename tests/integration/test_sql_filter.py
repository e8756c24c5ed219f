"""Subscriptions by SQL92 from the native client to the log: push, pull, refusals, records out of memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from local_cluster import LocalCluster

from iotmq.client import (
    IotmqClient,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)
from iotmq.errors import SubscriptionError
from iotmq.store.queues.residency import Window

WAIT_S = 20.0
COLOURS = ("red", "green", "blue")


class Site(LocalCluster):
    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, store={"hot_bytes": 1 << 20}, topics=("T",), **settings)

    async def start(self) -> None:
        await super().start()
        self.client = IotmqClient(self.client_settings)
        await self.client.start()

    async def stop(self) -> None:
        await self.client.stop()
        await super().stop()

    async def send(self, count: int, *, pad: bytes = b"") -> None:
        """Numbers from 0 on, each with its number, a colour and sometimes a temperature as properties."""
        async with Producer(self.client) as producer:
            for number in range(count):
                properties = {"n": str(number), "colour": COLOURS[number % 3]}
                if number % 2:
                    properties["temperature"] = f"{number / 10}"
                await producer.send(Message("T", b"%d" % number + pad, properties=properties))

    def log_out(self) -> None:
        """Have the older part of the log on the disk only."""
        (segment, *_) = self.store._log.segment_list()
        with Path(segment.path).open("rb") as file:
            os.fdatasync(file.fileno())
        window = Window(segment, 0, 2 << 20)
        window.drop()
        assert window.absent_pages() > 500


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    yield site
    await site.stop()


def push_settings() -> PushConsumerSettings:
    return PushConsumerSettings(consume_from="first", rebalance_ms=500)


async def test_a_push_consumer_gets_what_the_expression_is_true_for(site: Site) -> None:
    got: list[int] = []

    def listener(batch: list[ReceivedMessage]) -> None:
        got.extend(int(message.body) for message in batch)

    consumer = PushConsumer(site.client, "g", listener, settings=push_settings())
    await consumer.subscribe("T", sql="n >= 90 OR colour = 'red' AND temperature < 2")
    async with consumer:
        await site.send(100)
        wanted = [n for n in range(100) if n >= 90 or (n % 3 == 0 and n % 2 and n / 10 < 2)]
        await soon(lambda: len(got) >= len(wanted), "all that pass have come", within_s=WAIT_S)
        assert sorted(got) == wanted
        # A changed subscription holds from the next pull on; those parked now have the former one.
        await consumer.subscribe("T", sql="n = 7")
        await site.send(10)
        await soon(lambda: 7 in got, "the one that passes now", within_s=WAIT_S)


async def test_a_pull_consumer_gets_what_the_expression_is_true_for(site: Site) -> None:
    await site.send(100)
    async with PullConsumer(site.client, "g") as consumer:
        queues = await consumer.queues("T")
        await consumer.assign(queues, sql="n BETWEEN 10 AND 19 AND colour IN ('green', 'blue')")
        wanted = [n for n in range(10, 20) if n % 3]
        got: list[int] = []
        async with asyncio.timeout(WAIT_S):
            while len(got) < len(wanted):
                got += [int(message.body) for message in await consumer.getmany(timeout_ms=1_000)]
        assert sorted(got) == wanted


async def test_a_wrong_expression_is_said_where_it_is_written(site: Site) -> None:
    consumer = PushConsumer(site.client, "g", lambda batch: None, settings=push_settings())
    await consumer.subscribe("T", sql="a >")
    with pytest.raises(SubscriptionError, match="ends too early"):
        await consumer.start()
    async with PullConsumer(site.client, "g") as puller:
        queues = await puller.queues("T")
        with pytest.raises(SubscriptionError, match="'!' at character 3"):
            await puller.assign(queues, sql="a ! 5")
        with pytest.raises(SubscriptionError, match="tags and sql"):
            await puller.assign(queues, tags="red", sql="a > 5")
        with pytest.raises(SubscriptionError, match="is empty"):
            await puller.assign(queues, sql=" ")


async def test_a_broker_that_does_not_filter_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path, property_filter_enabled=False)
    await site.start()
    async with PullConsumer(site.client, "g") as puller:
        with pytest.raises(SubscriptionError, match="property_filter_enabled"):
            await puller.assign(await puller.queues("T"), sql="a > 5")
    await site.stop()


async def test_records_that_are_not_in_memory_are_fetched_before_they_are_looked_at(site: Site) -> None:
    # Text that does not get small when it is compressed.
    await site.send(400, pad=b" " + os.urandom(5_000).hex().encode())
    site.log_out()
    async with PullConsumer(site.client, "g") as consumer:
        await consumer.assign(await consumer.queues("T"), sql="n = 3 OR n = 150 OR n = 399")
        got: list[int] = []
        async with asyncio.timeout(WAIT_S):
            while len(got) < 3:
                got += [int(message.body.split()[0]) for message in await consumer.getmany(timeout_ms=1_000)]
    assert sorted(got) == [3, 150, 399]
    metrics = {metric.name: metric.value for metric in site.broker.metrics() if not metric.labels}
    assert metrics["iotmq_broker_cold_reads_total"] > 0
