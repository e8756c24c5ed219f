"""Ephemeral groups, pauses, skips and samples with the native client and a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import until
from local_cluster import LocalCluster

from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.client import (
    IotmqClient,
    Message,
    PopConsumerSettings,
    PoppedMessage,
    PullConsumerSettings,
    PushConsumerSettings,
)
from iotmq.client.transport.message import ReceivedMessage
from iotmq.errors import BrokerError, ClientError, ReceiptExpiredError, RouteNotFoundError
from iotmq.remoting.codes import ResponseCode

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


async def test_a_sample_is_the_same_for_every_kind_of_consumer(cluster: LocalCluster) -> None:
    sample, others = "SAMPLE(25)", "NOT SAMPLE(25)"
    bodies = [b"%d" % number for number in range(400)]
    async with IotmqClient(cluster.client_settings) as client:
        producer = await client.producer()
        await producer.send_batch([Message("T", body) for body in bodies])

        async def pulled(sql: str) -> list[bytes]:
            consumer = await client.pull_consumer()
            await consumer.assign(await consumer.queues("T"), sql=sql)
            found: list[bytes] = []
            ends = {queue: await consumer.end_offset(queue) for queue in await consumer.queues("T")}
            async with asyncio.timeout(30):
                while consumer.positions() != ends:
                    found += [message.body for message in await consumer.getmany(timeout_ms=50)]
            return sorted(found)

        first, second = await pulled(sample), await pulled(others)
        assert 50 <= len(first) <= 150
        assert sorted(first + second) == sorted(bodies)

        pushed: list[bytes] = []

        async def listen(messages: list[ReceivedMessage]) -> None:
            pushed.extend(message.body for message in messages)

        push = client.push_consumer("pushed", listen, settings=PushConsumerSettings(consume_from="first"))
        await push.subscribe("T", sql=sample)
        popped: list[bytes] = []
        pop = client.pop_consumer("popped", PopConsumerSettings(consume_from="first", hold_ms=100))
        await pop.subscribe("T", sql=sample)
        async with push, pop, asyncio.timeout(30):
            while len(popped) < len(first):
                messages = await pop.getmany(timeout_ms=50)
                await pop.ack(messages)
                popped += [message.body for message in messages]
            await until(lambda: len(pushed) >= len(first))
        assert sorted(pushed) == sorted(popped) == first


async def test_a_group_skips_to_now_and_what_it_skips_is_told_before(cluster: LocalCluster) -> None:
    got: list[bytes] = []

    async def listen(messages: list[ReceivedMessage]) -> list[ReceivedMessage] | None:
        got.extend(message.body for message in messages)
        await asyncio.Event().wait()
        return None

    async with IotmqClient(cluster.client_settings) as client:
        producer = await client.producer()
        await producer.send_batch([Message("T", b"%d" % number, key="k") for number in range(10)])
        changes = client.admin.changes
        assert await changes.skip_to_now("nobody") == []
        with pytest.raises(ClientError, match="group nobody has no offsets in topic T"):
            await changes.skip_to_now("nobody", ["T"])
        consumer = client.push_consumer(
            "g", listen, settings=PushConsumerSettings(consume_from="first", batch_max=1, stop_timeout_ms=1)
        )
        await consumer.subscribe("T")
        async with consumer:
            await until(lambda: got == [b"0"])
            (looked,) = await changes.skip_to_now("g", only_look=True)
            assert (looked.queue.topic, looked.begin, looked.end, looked.in_flight) == ("T", 0, 10, 0)
            assert await changes.skip_to_now("g", ["T"]) == [looked]
            await until(lambda: cluster.broker.offsets.find("g", "T", looked.queue.queue_id) == 10)
            await producer.send(Message("T", b"now", key="k"))
            await until(lambda: got == [b"0", b"now"])
        # Nobody consumes now, and the broker has the offset at once.
        await producer.send(Message("T", b"more", key="k"))
        (skipped,) = await changes.skip_to_now("g")
        assert (skipped.begin, skipped.end) == (10, 12)
        assert cluster.broker.offsets.find("g", "T", skipped.queue.queue_id) == 12
        assert await changes.skip_to_now("g", only_look=True) == []


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_group_of_pop_consumers_skips_what_they_hold(cluster: LocalCluster, is_live: bool) -> None:
    settings = PopConsumerSettings(consume_from="first", hold_ms=100, held_max=3)
    async with IotmqClient(cluster.client_settings) as client:
        producer = await client.producer()
        changes = client.admin.changes
        await producer.send_batch([Message("T", b"%d" % number, key="k") for number in range(10)])
        consumer = client.pop_consumer("g", settings)
        await consumer.subscribe("T")
        await consumer.start()
        held: list[PoppedMessage] = []
        while len(held) < 3:
            held += await consumer.getmany()
        await held[1].ack()
        await until(lambda: consumer.held_count == 3)
        if not is_live:
            await consumer.stop()
        (looked,) = await changes.skip_to_now("g", only_look=True)
        # What was fetched ahead and given back is to come again.
        assert (looked.begin, looked.end, looked.in_flight) == (0, 10, 3)
        assert await changes.skip_to_now("g") == [looked]
        await held[0].ack()
        with pytest.raises(ReceiptExpiredError, match=r"T queue \d of broker broker-a"):
            await held[2].nak()
        assert await changes.skip_to_now("g", only_look=True) == []
        await producer.send(Message("T", b"now", key="k"))
        if not is_live:
            consumer = client.pop_consumer("g", settings)
            await consumer.subscribe("T")
            await consumer.start()
        bodies: list[bytes] = []
        async with asyncio.timeout(30):
            while b"now" not in bodies:
                messages = await consumer.getmany()
                bodies += [message.body for message in messages]
        assert set(bodies) <= {b"3", b"now"}
        await consumer.stop()


@pytest.mark.parametrize("what", ["group", "topic"])
async def test_pauses_last_over_restarts_and_hold_up_no_producer(cluster: LocalCluster, what: str) -> None:
    async with IotmqClient(cluster.client_settings) as client:
        changes = client.admin.changes
        producer = await client.producer()
        await producer.send(Message("T", b"before"))
        queues = await producer.queues("T")
        name = "g" if what == "group" else "T"
        pause, resume = (
            (changes.pause_group, changes.resume_group)
            if what == "group"
            else (changes.pause_topic, changes.resume_topic)
        )
        cluster.broker.subscription_groups.put(
            SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
        )
        assert await pause(name) == ["broker-a"]
        await cluster.stop_broker()
        await cluster.start_broker()
        await producer.send(Message("T", b"while paused"))

        pushed: list[bytes] = []

        async def listen(messages: list[ReceivedMessage]) -> None:
            pushed.extend(message.body for message in messages)

        push = client.push_consumer(
            "g", listen, settings=PushConsumerSettings(consume_from="first", hold_ms=100, rebalance_ms=50)
        )
        await push.subscribe("T")
        async with push:
            pull = await client.pull_consumer("g")
            await pull.assign(dict.fromkeys(queues, 0))
            with pytest.raises(BrokerError, match=r"broker-a refuses .* T queue \d") as caught:
                await pull.getmany()
            assert caught.value.code == ResponseCode.NO_PERMISSION
            assert pushed == []
            assert await resume(name) == ["broker-a"]
            await until(lambda: len(pushed) == 2)
        config = cluster.broker.subscription_groups.find("g")
        assert config is not None
        # Nothing else of the group was changed.
        assert not config.notify_consumer_ids_changed_enable
        with pytest.raises(RouteNotFoundError, match="no broker has topic nothing"):
            await changes.pause_topic("nothing")


async def test_a_paused_group_pops_nothing(cluster: LocalCluster) -> None:
    async with IotmqClient(cluster.client_settings) as client:
        producer = await client.producer()
        await producer.send(Message("T", b"x"))
        await client.admin.changes.pause_group("g")
        consumer = client.pop_consumer("g", PopConsumerSettings(consume_from="first", hold_ms=100))
        await consumer.subscribe("T")
        async with consumer:
            assert await consumer.getmany(timeout_ms=100) == []
            await client.admin.changes.resume_group("g")
            async with asyncio.timeout(30):
                while not (messages := await consumer.getmany()):
                    pass
            assert [message.body for message in messages] == [b"x"]


async def test_a_push_consumer_says_how_far_it_is_and_goes_back_in_time(cluster: LocalCluster) -> None:
    got: list[bytes] = []

    async def listen(messages: list[ReceivedMessage]) -> None:
        got.extend(message.body for message in messages)

    async with IotmqClient(cluster.client_settings) as client:
        producer = await client.producer()
        consumer = client.push_consumer(
            "readers", listen, settings=PushConsumerSettings(consume_from="first", hold_ms=100)
        )
        await consumer.subscribe("T")
        async with consumer:
            await producer.send_batch([Message("T", b"%d" % number) for number in range(10)])
            await until(lambda: sum(consumer.positions().values()) == 10)
            assert sum((await consumer.lag()).values()) == 0
            consumer.pause()
            result = await producer.send(Message("T", b"10"))
            assert (await consumer.lag())[result.queue] == 1
            assert consumer.positions()[result.queue] == result.queue_offset
            consumer.resume()
            await until(lambda: sum(consumer.positions().values()) == 11)
            await consumer.seek_to_time(0)
            await until(lambda: len(got) == 22 and sum(consumer.positions().values()) == 11)
            await consumer.seek(result.queue, result.queue_offset)
            await until(lambda: len(got) == 23)
            assert got[-1] == b"10"
