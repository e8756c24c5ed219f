"""The pull consumer and the admin calls against fake brokers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from fake_broker import CLOSE, FakeBroker, FakeRegistry

from iotmq.client.admin.admin import Admin, QueueOffsets
from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings, PullConsumerSettings
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    OffsetMovedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.limits import QUEUES_PER_TOPIC_MAX
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import encode_properties
from iotmq.remoting.codes import RequestCode

PULL = RequestCode.PULL_MESSAGE


def broker_with(count: int, queues: int = 1) -> FakeBroker:
    broker = FakeBroker()
    broker.add_topic("T", queues)
    for number in range(count):
        broker.store("T", number % queues, b"%d" % number)
    return broker


def queue(number: int = 0) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


@asynccontextmanager
async def client_of(*brokers: FakeBroker):
    registry = FakeRegistry(*brokers)
    for role in (*brokers, registry):
        await role.start()
    settings = ClientSettings(
        registries=(registry.address,), reconnect_ms_min=5, reconnect_ms_max=20, request_timeout_ms=1_000
    )
    try:
        async with ClientTransport(settings) as client:
            yield client
    finally:
        for role in (*brokers, registry):
            await role.stop()


@asynccontextmanager
async def consumer_of(*brokers: FakeBroker, **settings):
    async with (
        client_of(*brokers) as client,
        PullConsumer(client, "pg", PullConsumerSettings(**settings)) as consumer,
    ):
        yield consumer


async def bodies_until(consumer: PullConsumer, count: int, **options) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.getmany(**options)]
    return bodies


async def test_reads_all_queues_from_their_beginning() -> None:
    broker = broker_with(30, 3)
    async with consumer_of(broker) as consumer:
        queues = await consumer.queues("T")
        await consumer.assign(queues)
        bodies = await bodies_until(consumer, 30)
        assert sorted(bodies, key=int) == [b"%d" % number for number in range(30)]
        assert consumer.positions() == dict.fromkeys(queues, 10)
        assert await consumer.getmany(timeout_ms=5) == []
        broker.store("T", 1, b"new")
        assert await bodies_until(consumer, 1) == [b"new"]
        assert consumer.position(queue(1)) == 11


async def test_positions_count_only_what_was_returned() -> None:
    broker = broker_with(10)
    async with consumer_of(broker, pull_records_max=6) as consumer:
        await consumer.assign({queue(): 2})
        assert [m.queue_offset for m in await consumer.getmany(records_max=3)] == [2, 3, 4]
        assert consumer.position(queue()) == 5
        assert [m.queue_offset for m in await consumer.getmany(records_max=100)] == [5, 6, 7]
        assert [m.queue_offset for m in await consumer.getmany(records_max=100)] == [8, 9]
        assert consumer.position(queue()) == 10


async def test_queues_may_come_and_go_while_another_thread_asks_for_positions() -> None:
    class Meddled:
        """Stands for an `assign` in the loop's thread between two steps of a caller's thread."""

        @property
        def position(self) -> int:
            fetches.pop(queue(7), None)
            return 3

    async with consumer_of(broker_with(0, 2)) as consumer:
        fetches = consumer._queues.fetches
        fetches[queue(6)] = Meddled()
        fetches[queue(7)] = Meddled()
        assert consumer.positions() == {queue(6): 3, queue(7): 3}
        del fetches[queue(6)]


async def test_seek_drops_what_was_fetched() -> None:
    broker = broker_with(10)
    async with consumer_of(broker, pull_records_max=4) as consumer:
        await consumer.assign([queue()])
        assert len(await consumer.getmany(records_max=1)) == 1
        await consumer.seek(queue(), 9)
        assert consumer.position(queue()) == 9
        assert await bodies_until(consumer, 1) == [b"9"]
        await consumer.seek(queue(), 0)
        assert (await bodies_until(consumer, 10))[0] == b"0"


async def test_assigning_again_keeps_and_drops() -> None:
    broker = broker_with(4, 2)
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue(0), queue(1)])
        await bodies_until(consumer, 4)
        await consumer.assign({queue(1): 2})
        assert consumer.positions() == {queue(1): 2}
        with pytest.raises(ClientError, match="call assign"):
            consumer.position(queue(0))
        broker.store("T", 0, b"unread")
        broker.store("T", 1, b"read")
        assert await bodies_until(consumer, 1) == [b"read"]


async def test_columns_and_messages_may_be_mixed() -> None:
    broker = broker_with(10)
    async with consumer_of(broker, pull_records_max=5) as consumer:
        await consumer.assign([queue()])
        await consumer.getmany(records_max=2)
        result = await consumer.getmany_columns(columns=("body", "queue_offset"))
        assert result is not None
        read, columns = result
        assert (read, columns.numpy("queue_offset").tolist()) == (queue(), [2, 3, 4])
        assert consumer.position(queue()) == 5
        assert await bodies_until(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]
        assert await consumer.getmany_columns(timeout_ms=1) is None


async def test_no_queue_keeps_the_others_waiting() -> None:
    broker = broker_with(0, 2)
    for number in range(100):
        broker.store("T", 0, b"%d" % number)
    broker.store("T", 1, b"rare")
    async with consumer_of(broker, pull_records_max=10) as consumer:
        await consumer.assign([queue(0), queue(1)])
        first = [
            message.queue.queue_id for _ in range(4) for message in await consumer.getmany(records_max=5)
        ]
    assert 1 in first


async def test_tags_filter_by_text() -> None:
    broker = broker_with(0)
    for tag in ("Aa", "BB", "Aa"):
        broker.store("T", 0, tag.encode(), encode_properties({"TAGS": tag}))
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue()], tags="Aa")
        assert await bodies_until(consumer, 2) == [b"Aa", b"Aa"]
        assert consumer.position(queue()) == 3


async def test_an_offset_outside_is_raised_once_and_seek_goes_on() -> None:
    broker = broker_with(3)
    async with consumer_of(broker) as consumer:
        await consumer.assign({queue(): 50})
        with pytest.raises(OffsetMovedError, match=r"seek\(\) to 3") as caught:
            await consumer.getmany()
        await consumer.seek(queue(), caught.value.next_offset)
        broker.store("T", 0, b"on")
        assert await bodies_until(consumer, 1) == [b"on"]


async def test_a_refusal_is_raised_and_then_tried_again() -> None:
    broker = broker_with(1)
    broker.script[PULL].append(16)
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue()])
        with pytest.raises(BrokerError, match="refuses to give messages"):
            await consumer.getmany()
        assert await bodies_until(consumer, 1) == [b"0"]


async def test_a_broker_that_is_not_master_any_more_is_waited_for() -> None:
    broker = broker_with(1)
    broker.script[PULL].append(14)
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue()])
        assert await bodies_until(consumer, 1) == [b"0"]
    assert not broker.script[PULL]


async def test_brokers_that_come_back_are_waited_for() -> None:
    broker = broker_with(2)
    broker.script[PULL].append(CLOSE)
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue()])
        assert await bodies_until(consumer, 2) == [b"0", b"1"]
        await broker.restart()
        broker.store("T", 0, b"2")
        assert await bodies_until(consumer, 1) == [b"2"]


async def test_messages_before_a_broken_record_are_returned_first() -> None:
    broker = broker_with(3)
    broker.topics["T"][0][2] = b"\x00\x00\x00\x50garbage" * 10
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue()])
        assert [message.body for message in await consumer.getmany()] == [b"0", b"1"]
        assert consumer.position(queue()) == 2
        for _ in range(2):
            with pytest.raises(MessageFormatError):
                await consumer.getmany()
        await consumer.seek(queue(), 1)
        assert [message.body for message in await consumer.getmany()] == [b"1"]


async def test_an_answer_that_leads_back_is_an_error_and_not_read_forever() -> None:
    class Circling(FakeBroker):
        def _pull(self, connection, request):
            answer = super()._pull(connection, request)
            answer.ext["nextBeginOffset"] = request.ext["queueOffset"]
            return answer

    broker = Circling()
    broker.add_topic("T", 1)
    broker.store("T", 0, b"0")
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue()])
        for _ in range(2):
            with pytest.raises(BrokerError, match="answer at offset 0 leads to offset 0"):
                await consumer.getmany(timeout_ms=30_000)


async def test_at_least_one_message_is_asked_for() -> None:
    async with consumer_of(broker_with(1)) as consumer:
        await consumer.assign([queue()])
        for count in (0, -1):
            with pytest.raises(ClientError, match="records_max must be at least 1"):
                await consumer.getmany(records_max=count)


async def test_cached_bytes_are_bounded() -> None:
    broker = broker_with(100)
    async with consumer_of(broker, pull_records_max=10, cached_bytes_max=1) as consumer:
        await consumer.assign([queue()])
        await consumer.getmany(records_max=1)
        await asyncio.sleep(0.03)
        assert len(broker.seen(PULL)) == 1
        assert len(await bodies_until(consumer, 99)) == 99


async def test_offsets_are_stored_only_when_asked_for() -> None:
    broker = broker_with(5)
    async with consumer_of(broker) as consumer:
        await consumer.assign([queue()])
        await bodies_until(consumer, 5)
        assert await consumer.committed(queue()) is None
        await consumer.commit()
        assert await consumer.committed(queue()) == 5
        await consumer.commit({queue(): 3})
        assert broker.offsets == {("pg", "T", 0): 3}
        assert (await consumer.begin_offset(queue()), await consumer.end_offset(queue())) == (0, 5)
        assert await consumer.offset_at_time(queue(), 0) == 0


async def test_mistakes_are_named() -> None:
    async with consumer_of(broker_with(0)) as consumer:
        with pytest.raises(RouteNotFoundError, match="no route for topic nowhere"):
            await consumer.queues("nowhere", timeout_ms=60)
        with pytest.raises(RouteNotFoundError, match="no route to broker"):
            await consumer.begin_offset(MessageQueue("T", "other", 0))
        await consumer.stop()
        with pytest.raises(ClientClosedError, match=r"client\.pull_consumer"):
            await consumer.assign([])
    with pytest.raises(ClientError, match="longer than hold_ms"):
        PullConsumer(ClientTransport(), "g", PullConsumerSettings(hold_ms=200, pull_timeout_ms=200))


async def test_a_topic_made_a_moment_ago_is_waited_for() -> None:
    broker = FakeBroker()
    async with consumer_of(broker) as consumer:
        asyncio.get_running_loop().call_later(0.07, broker.add_topic, "T", 3)
        assert len(await consumer.queues("T")) == 3


async def test_admin_makes_topics_and_shows_offsets() -> None:
    broker = broker_with(6, 2)
    async with client_of(broker) as client:
        admin = Admin(client)
        assert await admin.brokers() == {"broker-a": {0: broker.address}}
        route = await admin.create_topic("made", queues=3)
        assert len(route.writable) == 3
        assert await admin.topics() == ["T", "TBW102", "made"]
        assert await admin.offsets("T") == {queue(0): QueueOffsets(0, 3), queue(1): QueueOffsets(0, 3)}
        await admin.set_group_offset("g", queue(1), 2)
        assert await admin.group_offsets("g", "T") == {queue(0): None, queue(1): 2}


async def test_admin_mistakes_are_named() -> None:
    broker = broker_with(0)
    async with client_of(broker) as client:
        admin = Admin(client)
        await admin.create_topic("most", queues=QUEUES_PER_TOPIC_MAX)
        for queues in (0, QUEUES_PER_TOPIC_MAX + 1):
            with pytest.raises(ClientError, match="on each broker"):
                await admin.create_topic("made", queues=queues)
        with pytest.raises(RouteNotFoundError, match="no broker named x: registered are broker-a"):
            await admin.create_topic("made", broker_names=["x"])
        with pytest.raises(RouteNotFoundError, match="no route for topic nowhere"):
            await admin.queues("nowhere", timeout_s=0.06)
        broker.script[RequestCode.UPDATE_AND_CREATE_TOPIC].append(1)
        with pytest.raises(BrokerError, match="creating topic made at broker broker-a"):
            await admin.create_topic("made")
        broker.script[RequestCode.UPDATE_AND_CREATE_TOPIC].append(0)
        with pytest.raises(RequestTimeoutError, match="do the brokers register there"):
            await admin.create_topic("made", timeout_s=0.1)
    async with client_of() as client:
        with pytest.raises(RouteNotFoundError, match="no broker is registered"):
            await Admin(client).create_topic("made")
