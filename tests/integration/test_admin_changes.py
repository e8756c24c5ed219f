"""The administrator's changes through the native client, over two registries and two brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from small_cluster import SmallCluster

from iotmq.client.admin.admin import Admin
from iotmq.client.admin.changes import END_MS, AdminChanges
from iotmq.client.admin.dead_letters import DeadLetters, exported, topic_of
from iotmq.client.admin.queue_scaling import QueueScaling
from iotmq.client.client import IotmqClient
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message, ReceivedMessage
from iotmq.client.transport.settings import PushConsumerSettings
from iotmq.errors import BrokerError, ClientError, RouteNotFoundError
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import encode_batch, iter_records


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    async with SmallCluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: SmallCluster) -> AsyncIterator[IotmqClient]:
    async with cluster.client() as client:
        yield client


def put(cluster: SmallCluster, topic: str, *bodies: bytes, properties: bytes = b"", broker: int = 0) -> None:
    """Store messages in queue 0 of a topic that is made when it is not there."""
    target = cluster.brokers[broker]
    target.topics.ensure(topic, queues=1)
    elements = encode_batch([(body, properties, 0) for body in bodies])
    target.writer.append(
        topic, 0, elements, born_timestamp_ms=1, born_host=b"\x7f\0\0\1\0\0\0\1", done=lambda result: None
    )


async def routes(cluster: SmallCluster, client: IotmqClient, topic: str, brokers: int) -> None:
    def is_there() -> bool:
        return all(
            len(getattr(registry.routes.route(topic), "queues", ())) == brokers
            for registry in cluster.registries
        )

    await cluster.until(is_there)
    await client.routes.refresh(topic)


async def test_a_topic_is_made_changed_and_deleted_everywhere(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    changes = AdminChanges(client)
    names = await changes.update_topic("T", read_queues=3, write_queues=2, permissions=6, is_ordered=True)
    assert names == ["broker-0", "broker-1"]
    await routes(cluster, client, "T", 2)
    for registry in cluster.registries:
        route = registry.routes.route("T")
        assert route is not None
        assert [queues.read_queue_count for _, queues in route.queues] == [3, 3]
        assert registry.values.get("ORDER_TOPIC_CONFIG", "T") == "broker-0:2;broker-1:2"
    await changes.delete_topic("T")
    for registry in cluster.registries:
        assert registry.routes.route("T") is None
    assert all(broker.topics.find("T") is None for broker in cluster.brokers)


async def test_a_change_at_one_broker_only(cluster: SmallCluster, client: IotmqClient) -> None:
    changes = AdminChanges(client)
    await changes.update_topic("T", read_queues=1, write_queues=1, broker_names=["broker-1"])
    assert [broker.topics.find("T") is not None for broker in cluster.brokers] == [False, True]
    with pytest.raises(RouteNotFoundError, match="broker-9"):
        await changes.update_topic("T", read_queues=1, write_queues=1, broker_names=["broker-9"])


async def test_values_and_permissions_reach_every_registry(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    changes = AdminChanges(client)
    assert await changes.value("N", "k") is None
    assert await changes.values("N") == {}
    await changes.put_value("N", "k", "v")
    assert await changes.value("N", "k") == "v"
    assert [registry.values.get("N", "k") for registry in cluster.registries] == ["v", "v"]
    assert await changes.values("N") == {"k": "v"}
    await changes.delete_value("N", "k")
    assert [registry.values.get("N", "k") for registry in cluster.registries] == [None, None]
    assert await changes.set_writable("broker-0", is_writable=False) > 0
    await changes.set_writable("broker-0", is_writable=True)
    with pytest.raises(RouteNotFoundError, match="nobody"):
        await changes.set_writable("nobody", is_writable=True)


async def test_a_registry_that_is_away_is_named_after_the_others_were_told(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    address = cluster.addresses[0]
    await cluster.registries[0].stop()
    with pytest.raises(ClientError, match=f"1 of 2 registries have it.*{address}"):
        await AdminChanges(client).put_value("N", "k", "v")
    assert cluster.registries[1].values.get("N", "k") == "v"
    await cluster.registries[0].start()


async def test_settings_of_brokers_and_registries(cluster: SmallCluster, client: IotmqClient) -> None:
    changes = AdminChanges(client)
    await changes.change_broker_settings({"broker.held_pulls_max": "9"}, ["broker-1"])
    assert (await changes.broker_settings("broker-1"))["broker.held_pulls_max"] == "9"
    assert (await changes.broker_settings("broker-0"))["broker.held_pulls_max"] != "9"
    with pytest.raises(BrokerError, match="cannot change while the broker runs"):
        await changes.change_broker_settings({"listenPort": "1"})
    await changes.change_registry_settings({"broker_timeout_s": "99"})
    shown = await changes.registry_settings()
    assert [shown[address]["broker_timeout_s"] for address in cluster.addresses] == ["99.0", "99.0"]


async def test_a_group_is_made_and_deleted_with_its_topics(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    changes = AdminChanges(client)
    await changes.update_group("g", {"retryMaxTimes": 3})
    config = cluster.brokers[1].subscription_groups.find("g")
    assert config is not None
    assert config.retry_max_times == 3
    for prefix in ("%RETRY%", "%DLQ%"):
        cluster.brokers[0].topics.ensure(prefix + "g", queues=1)
    cluster.brokers[0].offsets.commit("g", "T", 0, 0)
    await changes.delete_group("g")
    assert all(broker.subscription_groups.find("g") is None for broker in cluster.brokers)
    assert all(broker.topics.find("%RETRY%g") is None for broker in cluster.brokers)
    assert cluster.brokers[0].offsets.find("g", "T", 0) is None


class Consumer:
    """A member of group g that keeps what it got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, batch: list[ReceivedMessage]) -> None:
        self.bodies += [message.body for message in batch]


async def test_a_live_group_is_moved_back_and_consumes_again(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    for broker in (0, 1):
        put(cluster, "T", b"%d" % broker, broker=broker)
    await routes(cluster, client, "T", 2)
    consumer = Consumer()
    settings = PushConsumerSettings(consume_from="first", commit_ms=50)
    push = PushConsumer(client, "g", consumer, settings=settings)
    await push.subscribe("T")
    async with push:
        await cluster.until(lambda: sorted(consumer.bodies) == [b"0", b"1"])
        await cluster.until(lambda: [b.offsets.find("g", "T", 0) for b in cluster.brokers] == [1, 1])
        moved = await AdminChanges(client).reset_offsets("g", "T", 0)
        assert moved.is_live
        assert list(moved.offsets.values()) == [0, 0]
        await cluster.until(lambda: sorted(consumer.bodies) == [b"0", b"0", b"1", b"1"])
        await cluster.until(lambda: [b.offsets.find("g", "T", 0) for b in cluster.brokers] == [1, 1])


async def test_a_group_nobody_is_in_is_moved_by_its_offsets(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    put(cluster, "T", b"a", b"b", b"c")
    await routes(cluster, client, "T", 1)
    changes = AdminChanges(client)
    moved = await changes.reset_offsets("g", "T", END_MS)
    assert not moved.is_live
    assert cluster.brokers[0].offsets.find("g", "T", 0) == 3
    await changes.reset_offsets("g", "T", 0)
    assert cluster.brokers[0].offsets.find("g", "T", 0) == 0
    await changes.reset_offsets("g", "T", END_MS, is_forced=False)
    assert cluster.brokers[0].offsets.find("g", "T", 0) == 0
    await changes.clone_offsets("g", "h")
    assert cluster.brokers[0].offsets.find("h", "T", 0) == 0


async def test_queues_are_scaled_while_a_group_consumes(cluster: SmallCluster, client: IotmqClient) -> None:
    await Admin(client).create_topic("T", queues=2)
    await routes(cluster, client, "T", 2)
    scaling = QueueScaling(client)
    states = await scaling.add("T", 4)
    assert [state.write_queue_nums for state in states.values()] == [4, 4]
    await cluster.until(lambda: _write_counts(cluster) == {4})
    async with Producer(client, "pg") as producer:
        sent = [b"%d" % number for number in range(200)]
        await asyncio.gather(*(producer.send(Message("T", body)) for body in sent))
        consumer = Consumer()
        settings = PushConsumerSettings(consume_from="first", commit_ms=50, rebalance_ms=200)
        push = PushConsumer(client, "g", consumer, settings=settings)
        await push.subscribe("T")
        async with push:
            steps = [step async for step in scaling.scale_in("T", 1, interval_s=0.05)]
            assert steps[-1].is_over
            assert (steps[-1].queues_left, steps[-1].messages_left) == (0, 0)
            states = await scaling.states("T")
            assert [state.read_queue_nums for state in states.values()] == [1, 1]
            await cluster.until(lambda: _write_counts(cluster) == {1})
            # Producers that have not heard of it yet lose nothing either.
            more = [b"more %d" % number for number in range(50)]
            await asyncio.gather(*(producer.send(Message("T", body)) for body in more))
            await cluster.until(lambda: set(consumer.bodies) == {*sent, *more})


async def test_our_producers_pass_over_a_frozen_queue_in_the_middle(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    await Admin(client).create_topic("T", queues=3)
    await routes(cluster, client, "T", 2)
    scaling = QueueScaling(client)
    await scaling.freeze("T", [1])

    def is_known() -> bool:
        return all(
            queues.frozen == (1,)
            for registry in cluster.registries
            for _, queues in getattr(registry.routes.route("T"), "queues", ())
        )

    await cluster.until(is_known)
    route = await client.routes.refresh("T")
    assert route is not None
    assert {queue.queue_id for queue in route.writable} == {0, 2}
    assert {queue.queue_id for queue in route.readable} == {0, 1, 2}
    states = await scaling.thaw("T", [1], ["broker-0"])
    assert list(states) == ["broker-0"]
    with pytest.raises(RouteNotFoundError, match="broker-7"):
        await scaling.states("T", ["broker-7"])
    with pytest.raises(RouteNotFoundError, match="nobody"):
        await scaling.states("nobody")
    with pytest.raises(BrokerError, match="freeze and remove"):
        await scaling.add("T", 1)


def _write_counts(cluster: SmallCluster) -> set[int]:
    return {
        queues.write_queue_count
        for registry in cluster.registries
        for _, queues in getattr(registry.routes.route("T"), "queues", ())
    }


DEAD = b"RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x01first\x02KEYS\x01k1 k2\x02TAGS\x01A\x02colour\x01red\x02"


async def test_dead_letters_are_listed_sent_again_and_exported(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    put(cluster, "T", b"live")
    put(cluster, topic_of("g"), b"one", b"\xff", properties=DEAD + b"UNIQ_KEY\x01u1\x02MAX_OFFSET\x019\x02")
    put(cluster, topic_of("g"), b"two", properties=DEAD + b"UNIQ_KEY\x01u2\x02", broker=1)
    await routes(cluster, client, topic_of("g"), 2)
    await routes(cluster, client, "T", 1)
    dead = DeadLetters(client)
    found = [letter async for letter in dead.of_group("g")]
    assert [letter.message.body for letter in found] == [b"one", b"\xff", b"two"]
    assert {letter.original_topic for letter in found} == {"T"}
    lines = [json.loads(exported(letter)) for letter in found]
    assert [line.get("body") for line in lines] == ["one", None, "two"]
    assert lines[1]["body_base64"] == "/w=="
    assert lines[0]["original_message_id"] == "first"
    async with Producer(client, "pg") as producer:
        resent = await dead.resend("g", ["u2", found[1].message.offset_message_id], producer)
        assert resent.sent_count == 2
        with pytest.raises(ClientError, match="no dead letter nobody"):
            await dead.resend("g", ["u2", "nobody"], producer)
        again = _stored(cluster, "T")[1:]
        assert sorted(body for body, _ in again) == [b"two", b"\xff"]
        for _, properties in again:
            assert properties["KEYS"] == "k1 k2"
            assert properties["TAGS"] == "A"
            assert properties["colour"] == "red"
            assert properties["ORIGIN_MESSAGE_ID"] == "first"
            assert "RETRY_TOPIC" not in properties
            assert "MAX_OFFSET" not in properties


async def test_a_bulk_resend_goes_on_where_the_last_one_ended(
    cluster: SmallCluster, client: IotmqClient
) -> None:
    put(cluster, "T", b"live")
    put(cluster, topic_of("g"), *(b"%d" % number for number in range(600)), properties=DEAD)
    put(cluster, topic_of("g"), b"nowhere", properties=b"colour\x01red\x02")
    await routes(cluster, client, topic_of("g"), 1)
    await routes(cluster, client, "T", 1)
    dead = DeadLetters(client)
    async with Producer(client, "pg") as producer:
        steps = [step async for step in dead.resend_all("g", producer)]
        assert [step.sent_count for step in steps] == [256, 512, 600]
        assert len(steps[-1].left_message_ids) == 1
        assert len(_stored(cluster, "T")) == 601
        put(cluster, topic_of("g"), b"later", properties=DEAD)
        steps = [step async for step in dead.resend_all("g", producer)]
        assert steps[-1].sent_count == 1
        steps = [step async for step in dead.resend_all("g", producer, is_again=True)]
        assert steps[-1].sent_count == 601


async def test_a_group_without_dead_letters_has_no_topic_for_them(client: IotmqClient) -> None:
    with pytest.raises(RouteNotFoundError, match="%DLQ%g"):
        _ = [letter async for letter in DeadLetters(client).of_group("g")]


def _stored(cluster: SmallCluster, topic: str) -> list[tuple[bytes, dict[str, str]]]:
    found = []
    for store in cluster.stores:
        for queue in store.queues():
            if queue.topic == topic:
                read = store.read(queue, 0, records_max=10_000, bytes_max=64 << 20, entries_max=10_000)
                for view in read.views:
                    found += [
                        (record.body, decode_properties(record.properties)) for record in iter_records(view)
                    ]
    return found
