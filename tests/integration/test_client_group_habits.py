"""Ephemeral groups, pauses, skips and samples with the native client and a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import until
from local_cluster import LocalCluster

from iotmq.client import (
    IotmqClient,
    Message,
    PopConsumerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from iotmq.client.transport.message import ReceivedMessage

GROUP = "dashboard%ephemeral"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path, topics=("T",))
    await cluster.start()
    yield cluster
    await cluster.stop()


async def consume_two(client: IotmqClient, kind: str) -> list[bytes]:
    """Two messages by a consumer of a kind, from the beginning."""
    got: list[bytes] = []
    if kind == "push":

        async def listen(messages: list[ReceivedMessage]) -> None:
            got.extend(message.body for message in messages)

        push = client.push_consumer(
            GROUP, listen, settings=PushConsumerSettings(consume_from="first", hold_ms=100)
        )
        await push.subscribe("T")
        async with push:
            await until(lambda: len(got) >= 2)
    elif kind == "pull":
        pull = client.pull_consumer(GROUP, PullConsumerSettings(consume_from="first", hold_ms=100))
        await pull.subscribe("T")
        async with pull, asyncio.timeout(30):
            while len(got) < 2:
                got += [message.body for message in await pull.getmany()]
    else:
        pop = client.pop_consumer(GROUP, PopConsumerSettings(consume_from="first", hold_ms=100))
        await pop.subscribe("T")
        async with pop, asyncio.timeout(30):
            while len(got) < 2:
                messages = await pop.getmany()
                await pop.ack(messages)
                got += [message.body for message in messages]
    return sorted(got)


@pytest.mark.parametrize("kind", ["push", "pull", "pop"])
async def test_an_ephemeral_group_goes_with_each_kind_of_consumer(cluster: LocalCluster, kind: str) -> None:
    broker = cluster.broker
    async with IotmqClient(cluster.client_settings) as client:
        producer = await client.producer()
        await producer.send_batch([Message("T", b"one"), Message("T", b"two")])
        for _ in range(2):
            # The second member begins anew, not behind what the first one has consumed.
            assert await consume_two(client, kind) == [b"one", b"two"]
            await until(lambda: broker.subscription_groups.find(GROUP) is None)
            assert broker.offsets.topics_of(GROUP) == []
            assert broker.topics.find(f"%RETRY%{GROUP}") is None
