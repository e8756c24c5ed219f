"""A broker that followed another one is started in its place: it serves what was replicated."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from mqtt_site import Front, SessionDevice
from replicated_brokers import Member, ReplicatedBrokers
from session_bench import FrontEnd

from iotmq.broker.tables.topics import CopiedTopic
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.client import (
    Admin,
    IotmqClient,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from iotmq.errors import StoreError, TableCopyError
from iotmq.message.records.record import iter_records
from iotmq.mqtt.codec import packets
from iotmq.ports.sessions import Will
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.replicated.member_log import EPOCH_TOPIC

pytestmark = pytest.mark.uvloop

NEVER_S = 3_600.0


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[ReplicatedBrokers]:
    brokers = ReplicatedBrokers(tmp_path, transaction_timeout_s=0.0, transaction_check_interval_s=0.1)
    await brokers.start(master={"transaction_check_interval_s": NEVER_S})
    yield brokers
    await brokers.stop()


def bodies(member: Member, topic: str) -> list[bytes]:
    """Return what the queues of a topic have."""
    found = []
    for queue in member.store.queues():
        if queue.topic == topic and queue.max_offset > queue.min_offset:
            read = member.store.read(queue, queue.min_offset, records_max=10_000, bytes_max=1 << 24)
            found += [record.body for view in read.views for record in iter_records(view)]
    return found


async def poll(consumer: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [message.body for message in await consumer.getmany(records_max=count - len(found))]
    return found


async def test_a_consumer_goes_on_at_its_offset(brokers: ReplicatedBrokers) -> None:
    sent = [b"%d" % number for number in range(30)]
    async with IotmqClient(brokers.client_settings) as client:
        await Admin(client).create_topic("T", queues=1)
        async with Producer(client) as producer, PullConsumer(client, "g") as consumer:
            for body in sent[:20]:
                await producer.send(Message("T", body))
            await consumer.assign(await consumer.queues("T"))
            assert await poll(consumer, 12) == sent[:12]
            await consumer.commit()
        await brokers.level()
    version = brokers.broker.topics.version
    await brokers.take_over()
    assert brokers.broker.topics.version.counter > version.counter
    async with (
        IotmqClient(brokers.client_settings) as client,
        Producer(client) as producer,
        PullConsumer(client, "g") as consumer,
    ):
        for body in sent[20:]:
            await producer.send(Message("T", body))
        (queue,) = await consumer.queues("T")
        offset = await consumer.committed(queue)
        assert offset == 12
        await consumer.assign({queue: offset})
        assert await poll(consumer, 18) == sent[12:]
    assert bodies(brokers.master, "T") == sent


async def test_delayed_messages_are_delivered_once(brokers: ReplicatedBrokers) -> None:
    async with IotmqClient(brokers.client_settings) as client:
        await Admin(client).create_topic("T", queues=1)
        async with Producer(client) as producer:
            await producer.send(Message("T", b"before", delay_ms=1))
            await producer.send(Message("T", b"level", delay_level=1))
            await soon(lambda: len(bodies(brokers.master, "T")) == 2, "what was due is delivered")
            due_ms = time.time_ns() // 1_000_000 + 2_000
            await producer.send(Message("T", b"after", deliver_at_ms=due_ms))
            await producer.send(Message("T", b"level after", delay_level=2))
        await brokers.level()
    await brokers.take_over()
    timers = brokers.broker.timers
    await soon(lambda: timers.pending_count == 0, "everything is delivered")
    # At least what has five seconds to wait.
    assert timers.delivered_count >= 1
    assert time.time_ns() // 1_000_000 >= due_ms
    assert sorted(bodies(brokers.master, "T")) == [b"after", b"before", b"level", b"level after"]


async def test_an_open_transaction_is_asked_about(brokers: ReplicatedBrokers) -> None:
    asked: list[bytes] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    async with IotmqClient(brokers.client_settings) as client:
        await Admin(client).create_topic("T", queues=1)
        async with TransactionProducer(client, "orders", check) as producer:
            ended = await producer.begin(Message("T", b"ended"))
            await ended.commit()
            await producer.begin(Message("T", b"open"))
            await brokers.level()
    assert asked == []
    await brokers.take_over()
    async with (
        IotmqClient(brokers.client_settings) as client,
        TransactionProducer(client, "orders", check, topics=["T"]),
    ):
        await soon(lambda: b"open" in bodies(brokers.master, "T"), "the transaction is committed")
    assert asked == [b"open"]
    assert bodies(brokers.master, "T") == [b"ended", b"open"]


def site_of(brokers: ReplicatedBrokers) -> Any:
    bench = SimpleNamespace(broker=brokers.broker)
    return SimpleNamespace(registry=None, bench=bench, in_flight_max=16, mqtt_settings={}, clock=None)


async def test_kept_sessions_and_retained_messages_are_there(brokers: ReplicatedBrokers) -> None:
    brokers.broker.topics.ensure("T", queues=1)
    front = Front(site_of(brokers), "one")
    await front.start()
    kept, sender, late = SessionDevice("kept"), SessionDevice("sender"), SessionDevice("late")
    await kept.connect(front)
    await kept.subscribe(("a/#", 1))
    await sender.connect(front, clean_session=True)
    await sender.publish("a/1", b"got before")
    assert await kept.receives(1) == [("a/1", b"got before")]
    await kept.disconnect()
    await sender.publish("a/2", b"waits")
    await sender.publish("r/1", b"retained", is_retained=True)
    await sender.drop()
    await front.mqtt.stop()
    await brokers.level()
    await brokers.take_over()
    front = Front(site_of(brokers), "one")
    await front.start()
    await kept.connect(front)
    assert kept.is_present
    assert await kept.receives(2) == [("a/1", b"got before"), ("a/2", b"waits")]
    await late.connect(front, clean_session=True)
    await late.subscribe(("r/#", 1))
    assert await late.receives(1) == [("r/1", b"retained")]
    for device in (kept, late):
        await device.drop()
    await front.mqtt.stop()


async def test_the_will_of_a_client_that_vanished_with_the_master_is_published(
    brokers: ReplicatedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotmq.broker.sessions.unclaimed.START_GRACE_S", 0.1)
    brokers.broker.topics.ensure("T", queues=1)
    front = FrontEnd(SimpleNamespace(broker=brokers.broker), "one")  # type: ignore[arg-type]
    will = Will("T", 0, encode_element(b"left", b"MQTT_TOPIC\x01w\x02", 0), is_stored=True)
    await front.open("device", expiry_s=30, will=will)
    await brokers.level()
    await brokers.take_over()
    await soon(lambda: bodies(brokers.master, "T") == [b"left"], "the will is published")
    assert brokers.broker.sessions.owners.front_end_of("device") is None


async def test_a_message_of_qos_2_that_is_sent_again_is_stored_once(brokers: ReplicatedBrokers) -> None:
    brokers.broker.topics.ensure("T", queues=1)
    front = Front(site_of(brokers), "one")
    await front.start()
    device = await RawClient.connect(front.mqtt.port, "device", clean_session=False)
    device.send(packets.encode_publish("a", b"once", qos=2, packet_id=7))
    assert (await device.packet())[0] == packets.PUBREC << 4
    device.abort()
    await front.mqtt.stop()
    await brokers.level()
    await brokers.take_over()
    front = Front(site_of(brokers), "one")
    await front.start()
    device = await RawClient.dial(front.mqtt.port)
    device.send(connect_packet("device", clean_session=False))
    await device.packet()
    device.send(packets.encode_publish("a", b"once", qos=2, packet_id=7, dup=True))
    assert (await device.packet())[0] == packets.PUBREC << 4
    device.abort()
    assert bodies(brokers.master, "T") == [b"once"]
    await front.mqtt.stop()


async def lock(member: Member, client_id: str) -> list[int]:
    """Ask for queues 0 and 1; return those that the client has."""
    queues = [
        {"brokerName": member.broker.parts.settings.name, "queueId": queue_id, "topic": "T"}
        for queue_id in (0, 1)
    ]
    body = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues}
    connection = await ClientConnection.connect("127.0.0.1", member.broker.port)
    try:
        request = Command.request(RequestCode.LOCK_BATCH_QUEUES, {}, json.dumps(body).encode())
        response = await connection.request(request, timeout_s=30)
    finally:
        await connection.close()
    assert response.code == 0, response.remark
    return [queue["queueId"] for queue in json.loads(response.body_bytes())["lockOKMQSet"]]


async def test_a_consumer_that_keeps_order_keeps_its_queues(brokers: ReplicatedBrokers) -> None:
    brokers.broker.topics.ensure("T", queues=2)
    assert await lock(brokers.master, "c1") == [0, 1]
    await brokers.level()
    await brokers.take_over()
    assert await lock(brokers.master, "c2") == []
    assert await lock(brokers.master, "c1") == [0, 1]


async def test_a_broker_that_follows_is_passive(brokers: ReplicatedBrokers) -> None:
    follower = brokers.follower
    assert follower is not None
    broker = follower.broker
    front = Front(site_of(brokers), "one")
    await front.start()
    device = SessionDevice("kept")
    await device.connect(front)
    await device.subscribe(("a/#", 1))
    await device.publish("a/1", b"to itself")
    await device.receives(1)
    await device.drop()
    async with IotmqClient(brokers.client_settings) as client, Producer(client) as producer:
        await Admin(client).create_topic("T", queues=1)
        for level in (1, 2):
            await producer.send(Message("T", b"delayed", delay_level=level))
        await soon(lambda: len(bodies(brokers.master, "T")) == 2, "what was due is delivered")
    await front.mqtt.stop()
    await brokers.level()
    await brokers.end_copying()
    # All it has is the master's: of its own it has appended nothing, and it listens nowhere.
    assert follower.log_bytes() == brokers.master.log_bytes()[: follower.log.end]
    assert broker.writer.batches_count == 0
    assert broker.not_ready_reason == "the broker has not started"
    assert broker.timers.delivered_count == 0
    assert broker.topics.encode() == brokers.broker.topics.encode()
    async with IotmqClient(brokers.client_settings) as client:
        assert await Admin(client).brokers() == {"broker-a": {0: brokers.broker.address}}


def test_a_broker_can_be_made_without_a_loop(tmp_path: Path) -> None:
    brokers = ReplicatedBrokers(tmp_path)
    brokers.registry = SimpleNamespace(port=1)  # type: ignore[assignment]
    member = brokers.open(1)
    # It cannot have asked for a time or a task; and it goes where the log goes.
    member.log.append_epoch(1, member.opened.file.identity)
    end = member.log.end
    member.opened.confirm(end)
    member.store.retain()
    assert member.log.end == end
    assert member.broker.sessions.projection.applied_position == end
    member.opened.close()


async def test_a_broker_does_not_start_before_its_log_is_confirmed(tmp_path: Path) -> None:
    brokers = ReplicatedBrokers(tmp_path)
    await brokers.registry.start()
    member = brokers.open(1)
    member.log.append_epoch(1, member.opened.file.identity)
    with pytest.raises(StoreError, match="confirmed up to 0 of "):
        await member.broker.start()
    member.opened.confirm(member.log.end)
    await member.broker.start()
    await member.stop()
    await brokers.registry.stop()


async def test_what_was_changed_at_the_master_holds(brokers: ReplicatedBrokers) -> None:
    master = brokers.broker
    async with IotmqClient(brokers.client_settings) as client, Producer(client) as producer:
        for name in ("kept", "deleted"):
            await Admin(client).create_topic(name, queues=1)
            await producer.send(Message(name, b"one"))
    connection = await ClientConnection.connect("127.0.0.1", master.port)
    for code, fields, body in (
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "deleted"}, b""),
        (RequestCode.UPDATE_BROKER_CONFIG, {}, b"autoCreateSubscriptionGroup=false"),
    ):
        response = await connection.request(Command.request(code, fields, body), timeout_s=30)
        assert response.code == 0, response.remark
    await connection.close()
    await brokers.level()
    await brokers.take_over()
    broker = brokers.broker
    assert broker.topics.find("kept") is not None
    assert broker.topics.find("deleted") is None
    assert not broker.subscription_groups.may_create
    assert broker.parts.store.find_queue("deleted", 0) is not None
    assert bodies(brokers.master, "deleted") == []
    # What replication itself has written is no topic of anybody.
    assert broker.topics.find(EPOCH_TOPIC) is None
    with pytest.raises(TableCopyError, match="is the master"):
        broker.table_copies.apply(next(broker.table_copies.snapshot()))


async def test_what_the_new_master_was_not_told_of_is_made_up_for(brokers: ReplicatedBrokers) -> None:
    """Its log has a topic that its tables have not, and its tables have offsets that its log has not."""
    follower = brokers.follower
    assert follower is not None
    await brokers.level()
    async with IotmqClient(brokers.client_settings) as client, Producer(client) as producer:
        await Admin(client).create_topic("T", queues=1)
        await producer.send(Message("T", b"one"))
    await brokers.level()
    tables = follower.broker
    tables.topics.apply([CopiedTopic("T", None)], None)
    tables.offsets.commit("ahead", "T", 0, 50)
    tables.offsets.commit("ahead", "T", 1, 50)
    await brokers.take_over()
    assert brokers.broker.topics.find("T") is not None
    assert dict(brokers.broker.offsets.of_topic("ahead", "T")) == {0: 1, 1: 0}


async def test_what_was_taken_outlives_the_process(brokers: ReplicatedBrokers) -> None:
    brokers.broker.topics.ensure("T", queues=3)
    brokers.broker.offsets.commit("g", "T", 0, 0)
    await brokers.level()
    follower = brokers.follower
    assert follower is not None
    await soon(lambda: not follower.broker._files.is_behind, "the files follow")
    await brokers.end_copying()
    await follower.stop()
    again = brokers.open(2)
    assert again.broker.topics.encode() == brokers.broker.topics.encode()
    assert again.broker.subscription_groups.version == brokers.broker.subscription_groups.version
    assert again.broker.offsets.find("g", "T", 0) == 0
    brokers.follow(again)
    await brokers.level()
    version = brokers.broker.subscription_groups.version
    await brokers.take_over()
    topic = brokers.broker.topics.find("T")
    assert topic is not None
    assert topic.queue_count == 3
    await soon(lambda: not brokers.broker._files.is_behind, "the files follow")
    file = brokers.broker.parts.config / "subscriptionGroup.json"
    assert json.loads(file.read_text())["dataVersion"]["counter"] > version.counter
