"""The push consumer against fake brokers: division, order, failures, commits, flow control."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from eventually import STOP_S, until
from fake_broker import CLOSE, SILENT, FakeBroker, FakeRegistry

from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue, TopicRoute
from iotmq.client.transport.settings import ClientSettings, PushConsumerSettings
from iotmq.errors import (
    ClientError,
    ListenerError,
    ListenerResultError,
    ListenerTimeoutError,
    SubscriptionError,
)
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.message.records.columns import Columns
from iotmq.remoting.codes import RequestCode
from iotmq.supervised import FAILURES

PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
BACK = RequestCode.CONSUMER_SEND_MESSAGE_BACK


class Cluster:
    """Brokers, a registry, and clients of them."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = brokers
        self.registry = FakeRegistry(*brokers)
        self.stack = AsyncExitStack()

    async def client(self, name: str = "") -> ClientTransport:
        settings = ClientSettings(
            registries=(self.registry.address,),
            client_id=name,
            reconnect_ms_min=5,
            reconnect_ms_max=20,
            missing_route_refresh_ms=50,
            request_timeout_ms=1_000,
        )
        return await self.stack.enter_async_context(ClientTransport(settings))

    async def consumer(self, listener=None, *, topic: str = "T", tags: str = "*", name: str = "", **settings):
        options = {"consume_from": "first", "commit_ms": 20, "local_retry_ms": 5, "stop_timeout_ms": 500}
        columns_listener = settings.pop("columns_listener", None)
        consumer = PushConsumer(
            await self.client(name),
            "cg",
            listener,
            columns_listener=columns_listener,
            settings=PushConsumerSettings(**{**options, **settings}),
        )
        await consumer.subscribe(topic, tags)
        return await self.stack.enter_async_context(consumer)


@asynccontextmanager
async def running(*brokers: FakeBroker):
    cluster = Cluster(*brokers)
    for role in (*brokers, cluster.registry):
        await role.start()
    try:
        async with cluster.stack:
            yield cluster
    finally:
        for role in (*brokers, cluster.registry):
            await role.stop()


def broker_with(count: int, queues: int = 1, name: str = "broker-a") -> FakeBroker:
    broker = FakeBroker(name)
    broker.add_topic("T", queues)
    for number in range(count):
        broker.store("T", number % queues, b"%d" % number)
    return broker


async def test_a_group_that_begins_at_a_time_needs_the_time() -> None:
    client = ClientTransport()
    for at_ms in (1, 0):
        settings = PushConsumerSettings(consume_from="timestamp", consume_from_timestamp_ms=at_ms)
        if at_ms:
            PushConsumer(client, "cg", lambda batch: None, settings=settings)
        else:
            with pytest.raises(ClientError, match="consume_from_timestamp_ms"):
                PushConsumer(client, "cg", lambda batch: None, settings=settings)


async def test_everything_stored_arrives_in_order_and_is_committed() -> None:
    broker = broker_with(100)
    got: list[bytes] = []
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(message.body for message in batch), batch_max=7)
        await until(lambda: len(got) == 100)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 100)
        broker.store("T", 0, b"later")
        await until(lambda: len(got) == 101)
    assert got == [b"%d" % number for number in range(100)] + [b"later"]
    # The last commit is made while stopping.
    assert broker.offsets["cg", "T", 0] == 101
    assert broker.seen(RequestCode.UNREGISTER_CLIENT)[0].ext["consumerGroup"] == "cg"


async def test_a_listener_may_be_a_coroutine() -> None:
    broker = broker_with(10)
    got: list[bytes] = []

    async def listen(batch) -> None:
        await asyncio.sleep(0)
        got.extend(message.body for message in batch)

    async with running(broker) as cluster:
        await cluster.consumer(listen)
        await until(lambda: len(got) == 10)


async def test_a_restarted_group_goes_on_at_its_offset() -> None:
    broker = broker_with(10)
    broker.offsets["cg", "T", 0] = 8
    got: list[int] = []
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(message.queue_offset for message in batch))
        await until(lambda: len(got) == 2)
    assert got == [8, 9]


async def test_a_new_group_starts_at_the_end_unless_told_otherwise() -> None:
    broker = broker_with(10)
    got: list[bytes] = []
    async with running(broker) as cluster:
        await cluster.consumer(
            lambda batch: got.extend(message.body for message in batch), consume_from="last"
        )
        await until(lambda: broker.held)
        broker.store("T", 0, b"new")
        await until(lambda: got)
    assert got == [b"new"]


async def test_members_share_the_queues_and_take_over() -> None:
    brokers = broker_with(0, 4, "a"), broker_with(0, 3, "b")
    got: dict[str, list[bytes]] = {"one": [], "two": []}
    async with running(*brokers) as cluster:
        one = await cluster.consumer(lambda batch: got["one"].extend(m.body for m in batch), name="one")
        await until(lambda: len(one.assigned) == 7)
        two = await cluster.consumer(lambda batch: got["two"].extend(m.body for m in batch), name="two")
        await until(lambda: len(one.assigned) == 4 and len(two.assigned) == 3)
        assert not set(one.assigned) & set(two.assigned)
        for broker in brokers:
            for number in range(len(broker.topics["T"])):
                broker.store("T", number, b"%s%d" % (broker.name.encode(), number))
        await until(lambda: len(got["one"]) + len(got["two"]) == 7)
        assert len(got["one"]) == 4
        await two.stop()
        await until(lambda: len(one.assigned) == 7)


async def test_tags_are_compared_as_text_behind_the_brokers_hash() -> None:
    broker = broker_with(0)
    # "Aa" and "BB" have the same hash.
    for tag in ("Aa", "BB", "Aa"):
        broker.store("T", 0, tag.encode(), encode_properties({"TAGS": tag}))
    got: list[bytes] = []
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(message.body for message in batch), tags="Aa")
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 3)
    assert got == [b"Aa", b"Aa"]
    assert broker.seen(PULL)[0].ext["subscription"] in ("Aa", "*")


async def test_failed_messages_go_back_to_the_broker_and_the_rest_goes_on() -> None:
    broker = broker_with(10)
    got: list[bytes] = []

    def listen(batch):
        got.extend(message.body for message in batch)
        return [message for message in batch if message.body == b"3"]

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, batch_max=4, redeliveries_max=5)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 10)
        numbers = {metric.name: metric.value for metric in consumer.metrics()}
    (request,) = broker.seen(BACK)
    assert (request.ext["group"], request.ext["originTopic"], request.ext["maxReconsumeTimes"]) == (
        "cg",
        "T",
        "5",
    )
    assert len(got) == 10
    assert numbers["iotmq_client_consumed_total"] == 9
    assert numbers["iotmq_client_given_back_total"] == 1


async def test_a_raising_listener_fails_its_whole_batch() -> None:
    broker = broker_with(6)

    def listen(batch):
        if batch[0].body == b"0":
            raise RuntimeError("no")

    async with running(broker) as cluster:
        await cluster.consumer(listen, batch_max=3)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 6)
    assert len(broker.seen(BACK)) == 3


async def test_a_listener_that_something_cancelled_fails_its_batch_and_its_queue_goes_on() -> None:
    broker = broker_with(6)

    async def listen(batch):
        if batch[0].body == b"0":
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, batch_max=3)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 6)
        numbers = {metric.name: metric.value for metric in consumer.metrics()}
    assert sorted(broker.given_back.values()) == [1, 1, 1]
    assert (numbers["iotmq_client_consume_failed_total"], numbers["iotmq_client_consumed_total"]) == (3, 3)


async def test_columns_whose_listener_something_cancelled_are_handed_over_again() -> None:
    broker = broker_with(5)
    calls = 0

    def listen(_queue, _columns) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncio.CancelledError

    async with running(broker) as cluster:
        await cluster.consumer(columns_listener=listen)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 5)
    assert calls == 2


async def test_a_listener_that_returns_no_messages_stops_no_queue() -> None:
    broker = broker_with(6)
    got: list[bytes] = []

    def listen(batch):
        got.extend(message.body for message in batch)
        return ["nonsense"] if len(got) == 3 else None

    async with running(broker) as cluster:
        await cluster.consumer(listen, batch_max=3)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 6)
    # Its batch has failed, as that of a listener that raises.
    assert got == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert sum(broker.given_back.values()) == 3


async def test_a_start_that_is_cancelled_leaves_no_member() -> None:
    broker = broker_with(3)
    members = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    broker.script[members].append(SILENT)
    got: list[bytes] = []
    async with running(broker) as cluster:
        consumer = PushConsumer(
            await cluster.client(),
            "cg",
            lambda batch: got.extend(message.body for message in batch),
            settings=PushConsumerSettings(consume_from="first", commit_ms=20),
        )
        await consumer.subscribe("T")
        starting = asyncio.ensure_future(consumer.start())
        await until(lambda: broker.seen(members))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert broker.seen(RequestCode.UNREGISTER_CLIENT)[0].ext["consumerGroup"] == "cg"
        assert not any(broker.members["cg"].values())
        async with consumer:
            await until(lambda: len(got) == 3)


async def test_queues_may_come_and_go_while_another_thread_asks_for_them() -> None:
    class Meddled(MessageQueue):
        """Stands for a rebalance in the loop's thread between two steps of a caller's thread."""

        @property
        def topic(self) -> str:
            readers[MessageQueue("T", "broker-b", len(readers))] = readers[first]
            return super().topic

    async with running(broker_with(0)) as cluster:
        consumer = await cluster.consumer(lambda batch: None)
        await until(lambda: consumer.assigned)
        first = consumer.assigned[0]
        readers = consumer._queues.readers
        meddled = Meddled("T", "broker-a", 1)
        readers[meddled] = readers[first]
        assert consumer.assigned == [first, meddled]
        assert len(readers) > 3
        for queue in [queue for queue in readers if queue.broker_name == "broker-b"] + [meddled]:
            del readers[queue]


async def test_what_nobody_takes_back_is_tried_again_here() -> None:
    broker = broker_with(3)
    broker.script[BACK].extend([1, 1, 1])
    broker.script[RequestCode.SEND_MESSAGE_V2].extend([1, 1, 1])
    calls: list[list[bytes]] = []

    def listen(batch):
        calls.append([message.body for message in batch])
        return batch[1:] if len(calls) == 1 else None

    async with running(broker) as cluster:
        await cluster.consumer(listen)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 3)
    assert calls == [[b"0", b"1", b"2"], [b"1", b"2"]]
    assert broker.seen(RequestCode.SEND_MESSAGE_V2)


async def test_a_message_its_broker_does_not_take_back_goes_to_the_retry_topic_of_another() -> None:
    broker, other = broker_with(3), FakeBroker("broker-b")
    other.add_topic("%RETRY%cg", 1)
    broker.script[BACK].append(1)
    got: list[tuple[bytes, str]] = []

    def listen(batch):
        got.extend((message.body, message.topic) for message in batch)
        return [message for message in batch if message.body == b"1" and len(got) == 3]

    async with running(broker, other) as cluster:
        consumer = await cluster.consumer(listen, redeliveries_max=5)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 3)
        await until(lambda: len(got) == 4)
        numbers = {metric.name: metric.value for metric in consumer.metrics()}
    (request,) = other.seen(RequestCode.SEND_MESSAGE_V2)
    assert broker.seen(RequestCode.SEND_MESSAGE_V2) == []
    assert (request.ext["b"], request.ext["e"], request.ext["j"], request.ext["l"]) == (
        "%RETRY%cg",
        "-1",
        "1",
        # Not yet the one that makes it a dead letter.
        "2",
    )
    properties = decode_properties(request.ext["i"].encode())
    assert (properties["RETRY_TOPIC"], properties["DELAY"]) == ("T", "3")
    assert len(properties["ORIGIN_MESSAGE_ID"]) == 32
    # Consumed again, it is the same message of the same topic.
    assert got[3] == (b"1", "T")
    assert numbers["iotmq_client_given_back_total"] == 1


async def test_nothing_is_committed_past_a_message_that_is_being_worked_on() -> None:
    broker = broker_with(4)
    gate = asyncio.Event()
    done: list[int] = []

    async def listen(batch) -> None:
        if batch[0].queue_offset == 1:
            await gate.wait()
        done.append(batch[0].queue_offset)

    async with running(broker) as cluster:
        await cluster.consumer(listen, batch_max=1, parallel_batches=3)
        await until(lambda: sorted(done) == [0, 2, 3])
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 1)
        gate.set()
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 4)


async def test_pulling_pauses_at_the_maximum_of_cached_messages() -> None:
    broker = broker_with(50)
    gate = asyncio.Event()
    seen = 0

    async def listen(batch) -> None:
        nonlocal seen
        seen += len(batch)
        await gate.wait()

    async with running(broker) as cluster:
        await cluster.consumer(listen, batch_max=1, pull_records_max=5, cached_records_max=10)
        await until(lambda: seen == 1)
        await until(lambda: len(self_pulls(broker)) == 2)
        await asyncio.sleep(0.05)
        # Two pulls of five fill the cache; there is no third.
        assert len(self_pulls(broker)) == 2
        gate.set()
        await until(lambda: seen == 50)


def self_pulls(broker: FakeBroker):
    return [request for request in broker.seen(PULL) if request.ext["topic"] == "T"]


async def test_pulling_pauses_at_the_maximum_of_cached_bytes_but_no_queue_starves() -> None:
    broker = broker_with(40, 2)
    gate = asyncio.Event()
    seen: set[int] = set()

    async def listen(batch) -> None:
        seen.add(batch[0].queue.queue_id)
        await gate.wait()

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, batch_max=1, pull_records_max=5, cached_bytes_max=1)
        await until(lambda: seen == {0, 1})
        await asyncio.sleep(0.05)
        assert len(self_pulls(broker)) == 2
        assert {m.name: m.value for m in consumer.metrics()}["iotmq_client_cached_records"] == 10
        gate.set()
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == broker.offsets.get(("cg", "T", 1)) == 20)
        assert {m.name: m.value for m in consumer.metrics()}["iotmq_client_cached_bytes"] == 0


async def test_columns_arrive_without_an_object_per_message() -> None:
    broker = broker_with(100)
    got: list[bytes] = []

    def listen(queue: MessageQueue, columns: Columns) -> None:
        assert queue == MessageQueue("T", "broker-a", 0)
        got.extend(columns.value("body", index) for index in range(len(columns)))

    async with running(broker) as cluster:
        await cluster.consumer(columns_listener=listen, pull_records_max=40)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 100)
    assert got == [b"%d" % number for number in range(100)]


async def test_columns_that_keep_failing_are_given_back_singly() -> None:
    broker = broker_with(5)
    broker.script[BACK].append(1)
    calls = 0

    def listen(_queue, _columns) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("no")

    async with running(broker) as cluster:
        await cluster.consumer(columns_listener=listen, columns_tries_max=2)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 5)
    assert calls == 2
    # One of them was refused at first and given again.
    assert len(broker.seen(BACK)) == 6
    assert sorted(broker.given_back.values()) == [1] * 5


async def test_broadcasting_reads_all_queues_and_commits_nothing() -> None:
    broker = broker_with(8, 4)
    got: list[list[bytes]] = [[], []]
    async with running(broker) as cluster:
        for bodies in got:
            await cluster.consumer(
                lambda batch, bodies=bodies: bodies.extend(m.body for m in batch), model="broadcasting"
            )
        await until(lambda: [len(bodies) for bodies in got] == [8, 8])
    assert not broker.offsets
    assert not broker.seen(BACK)


async def test_a_broadcast_that_keeps_failing_is_given_up() -> None:
    broker = broker_with(2)
    calls: list[bytes] = []

    def listen(batch):
        calls.append(batch[0].body)
        return batch if batch[0].body == b"0" else None

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, model="broadcasting", batch_max=1, local_retry_ms=1)
        await until(lambda: b"1" in calls)
        assert {m.name: m.value for m in consumer.metrics()}["iotmq_client_dropped_total"] == 1
    assert calls == [b"0"] * 16 + [b"1"]


async def test_a_lost_connection_is_made_again_and_the_group_is_whole() -> None:
    broker = broker_with(3)
    broker.script[PULL].append(CLOSE)
    got: list[bytes] = []
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(message.body for message in batch))
        await until(lambda: len(got) == 3)
        await broker.restart()
        await until(lambda: len(broker.members["cg"]) == 1)
        broker.store("T", 0, b"after")
        await until(lambda: got[-1] == b"after")
    assert got == [b"0", b"1", b"2", b"after"]


async def test_an_offset_past_the_end_goes_back_to_what_is_there() -> None:
    broker = broker_with(3)
    broker.offsets["cg", "T", 0] = 77
    got: list[bytes] = []
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(message.body for message in batch))
        await until(lambda: broker.held)
        broker.store("T", 0, b"next")
        await until(lambda: got)
        await until(lambda: broker.offsets["cg", "T", 0] == 4)
    assert got == [b"next"]


async def test_a_topic_that_comes_later_is_found() -> None:
    broker = FakeBroker()
    got: list[bytes] = []
    async with running(broker) as cluster:
        consumer = await cluster.consumer(lambda batch: got.extend(message.body for message in batch))
        assert consumer.assigned == []
        broker.add_topic("T", 1)
        broker.store("T", 0, b"first")
        await until(lambda: got == [b"first"])


async def test_subscriptions_may_change_while_running() -> None:
    broker = broker_with(2)
    broker.add_topic("U", 1)
    broker.store("U", 0, b"u")
    got: list[bytes] = []
    async with running(broker) as cluster:
        consumer = await cluster.consumer(lambda batch: got.extend(message.body for message in batch))
        await until(lambda: len(got) == 2)
        await consumer.subscribe("U")
        await until(lambda: got[-1] == b"u")
        await consumer.unsubscribe("T")
        await until(lambda: [queue.topic for queue in consumer.assigned] == ["U"])
        with pytest.raises(SubscriptionError, match="no subscription to T"):
            await consumer.unsubscribe("T")


async def test_subscriptions_may_change_at_the_same_time() -> None:
    broker = broker_with(1)
    async with running(broker) as cluster:
        consumer = await cluster.consumer(lambda batch: None)
        # Nobody has these topics, so the registry is asked for each.
        await asyncio.gather(*(consumer.subscribe(topic) for topic in ("U", "V", "W")))
        await asyncio.gather(consumer.unsubscribe("V"), consumer.subscribe("X"))
        subscribed = {subscription.topic for subscription in consumer._member.subscriptions.values()}
        assert subscribed == {"T", "%RETRY%cg", "U", "W", "X"}


async def test_a_topic_may_be_given_up_while_its_queues_are_divided() -> None:
    broker = broker_with(1)
    broker.add_topic("U", 1)
    before = FAILURES.count("division of queues")
    async with running(broker) as cluster:
        consumer = await cluster.consumer(lambda batch: None)
        share_of, given_up = consumer._member._share_of, asyncio.Event()

        async def share_late(route: TopicRoute) -> list[MessageQueue] | None:
            if route.topic == "U" and not given_up.is_set():
                given_up.set()
                await consumer.unsubscribe("U")
            return await share_of(route)

        consumer._member._share_of = share_late
        await consumer.subscribe("U")
        await asyncio.wait_for(given_up.wait(), 30)
        # The division goes on, and finds what comes later.
        broker.add_topic("V", 1)
        await consumer.subscribe("V")
        await until(lambda: [queue.topic for queue in consumer.assigned] == ["T", "V"])
    assert FAILURES.count("division of queues") == before


async def test_a_refused_pull_is_asked_again() -> None:
    broker = broker_with(1)
    broker.script[PULL].extend([16, 1])
    got: list[bytes] = []
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(message.body for message in batch))
        await until(lambda: got == [b"0"])


@pytest.mark.slow
async def test_a_broken_answer_neither_ends_the_reader_nor_holds_its_offset_back() -> None:
    broker = broker_with(6)
    queue = broker.topics["T"][0]
    wrong, right = queue[0], queue[4]
    queue[4] = wrong
    got: list[int] = []
    async with running(broker) as cluster:
        await cluster.consumer(
            lambda batch: got.extend(message.queue_offset for message in batch),
            batch_max=1,
            pull_records_max=3,
        )
        await until(lambda: len(self_pulls(broker)) >= 4)
        queue[4] = right
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 6)
    assert got == [0, 1, 2, 3, 4, 5]


async def test_an_owner_that_leaves_does_not_set_back_what_the_next_one_committed() -> None:
    broker = broker_with(1)
    began, gate = asyncio.Event(), asyncio.Event()

    async def listen(batch) -> None:
        began.set()
        await gate.wait()

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen)
        await began.wait()
        await consumer.subscribe("U")
        await consumer.unsubscribe("T")
        await until(lambda: not consumer.assigned)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 0)
        # The next owner has consumed it meanwhile.
        broker.offsets["cg", "T", 0] = 5
        gate.set()
        await until(lambda: len(broker.seen(RequestCode.QUERY_CONSUMER_OFFSET)) >= 3)
        await consumer.stop()
    assert broker.offsets["cg", "T", 0] == 5


async def test_empty_pulls_that_are_not_held_are_not_hurried() -> None:
    broker = broker_with(0)
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: None, hold_ms=0)
        await until(lambda: len(self_pulls(broker)) >= 3)
        await asyncio.sleep(0.2)
        assert len(self_pulls(broker)) < 15


async def test_stopping_waits_for_the_running_call_and_drops_what_waits() -> None:
    broker = broker_with(10)
    began = asyncio.Event()
    done: list[int] = []

    async def listen(batch) -> None:
        began.set()
        await asyncio.sleep(0.05)
        done.append(batch[0].queue_offset)

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, batch_max=1)
        await began.wait()
        await consumer.stop()
    assert done == [0]
    assert broker.offsets["cg", "T", 0] == 1


async def test_an_offset_that_an_operator_sets_during_the_stop_stays() -> None:
    broker = broker_with(3)
    queue = MessageQueue("T", "broker-a", 0)
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def listener(batch) -> None:
        entered.set()
        await may_end.wait()

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listener, stop_timeout_ms=30_000)
        await asyncio.wait_for(entered.wait(), 30)
        stopping = asyncio.ensure_future(consumer.stop())
        await until(lambda: consumer._queues.readers[queue]._is_closing)
        consumer.move({queue: 1})
        may_end.set()
        await asyncio.wait_for(stopping, 30)
        assert broker.offsets["cg", "T", 0] == 1


async def test_stopping_does_not_wait_forever() -> None:
    broker = broker_with(2)
    began = asyncio.Event()

    async def listen(batch) -> None:
        began.set()
        await asyncio.Event().wait()

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, stop_timeout_ms=20)
        await began.wait()
        await asyncio.wait_for(consumer.stop(), STOP_S)
    assert broker.offsets.get(("cg", "T", 0), 0) == 0


@pytest.mark.parametrize("outcome", ["consumed", "failed", "raised"])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_listener_that_swallows_its_cancellation_is_left_behind(
    outcome: str, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_with(2)
    began, may_end, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def listen(batch):
        began.set()
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()
        has_ended.set()
        if outcome == "raised":
            raise ValueError("boom")
        return batch if outcome == "failed" else None

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, stop_timeout_ms=20, orderly=orderly)
        await began.wait()
        (worker,) = consumer._queues.readers[MessageQueue("T", "broker-a", 0)].workers
        await asyncio.wait_for(consumer.stop(), STOP_S)
        assert "the listener of group cg for MessageQueue(topic='T', broker_name='broker-a', queue_id=0)" in (
            caplog.text
        )
        assert {m.name: m.value for m in consumer.metrics()}["iotmq_client_left_calls_total"] == 1
        may_end.set()
        await has_ended.wait()
        await asyncio.wait([worker])
        # Neither is the batch handed over again, nor is anything done with it.
        assert worker.cancelled()
    assert broker.offsets.get(("cg", "T", 0), 0) == 0
    assert not broker.given_back


async def test_one_client_is_one_member_of_a_group() -> None:
    broker = broker_with(0)
    async with running(broker) as cluster:
        client = await cluster.client()
        for attempt in range(2):
            consumer = PushConsumer(client, "cg", lambda batch: None)
            await consumer.subscribe("T")
            if attempt:
                with pytest.raises(ClientError, match="use another IotmqClient"):
                    await consumer.start()
            else:
                await cluster.stack.enter_async_context(consumer)


async def test_mistakes_are_named() -> None:
    client = ClientTransport()
    with pytest.raises(ClientError, match="either a listener"):
        PushConsumer(client, "cg")
    with pytest.raises(ClientError, match="either a listener"):
        PushConsumer(client, "cg", lambda batch: None, columns_listener=lambda queue, columns: None)
    with pytest.raises(ClientError, match="longer than hold_ms"):
        PushConsumer(
            client, "cg", lambda b: None, settings=PushConsumerSettings(hold_ms=500, pull_timeout_ms=500)
        )
    with pytest.raises(SubscriptionError, match="call subscribe"):
        await PushConsumer(client, "cg", lambda batch: None).start()


async def test_a_group_that_begins_stores_where_before_anything_comes() -> None:
    broker = broker_with(3)
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: None, consume_from="last", commit_ms=600_000)
        # A member that is killed now leaves to the next one what comes from here on.
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 3)


async def test_a_stop_that_nobody_waits_for_any_more_goes_on() -> None:
    broker = broker_with(2)
    began, gate = asyncio.Event(), asyncio.Event()

    async def listen(batch) -> None:
        began.set()
        await gate.wait()

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, batch_max=1, stop_timeout_ms=60_000)
        await began.wait()
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        again = [asyncio.ensure_future(step) for step in (consumer.stop(), consumer.start())]
        await asyncio.sleep(0.01)
        assert not any(step.done() for step in again)
        gate.set()
        await asyncio.wait_for(asyncio.gather(*again), STOP_S)
        # It is a member again, which goes on behind what was finished.
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 2)
        await consumer.stop()
        assert broker.members["cg"] == {}


async def test_a_stop_inside_the_listener_is_refused_instead_of_hanging() -> None:
    broker = broker_with(1)
    refused = asyncio.Event()

    async def listen(batch) -> None:
        with pytest.raises(ClientError, match="would wait for itself"):
            await consumer.stop()
        refused.set()

    async with running(broker) as cluster:
        consumer = await cluster.consumer(listen, batch_max=1)
        await asyncio.wait_for(refused.wait(), STOP_S)
        await until(lambda: broker.offsets.get(("cg", "T", 0)) == 1)


@pytest.mark.parametrize("outcome", ["hangs", "nonsense"])
async def test_a_columns_listener_that_hangs_or_returns_nonsense_has_failed(outcome: str) -> None:
    broker = broker_with(2)
    errors: list[Exception] = []

    async def failed(error) -> None:
        await asyncio.sleep(0)
        errors.append(error)
        raise ValueError("this is logged")

    async def listen(queue, columns):
        if errors:
            return None
        return 5 if outcome == "nonsense" else await asyncio.Event().wait()

    async with running(broker) as cluster:
        client = await cluster.client()
        settings = PushConsumerSettings(
            consume_from="first", commit_ms=20, local_retry_ms=5, listener_timeout_ms=20
        )
        consumer = PushConsumer(client, "cg", columns_listener=listen, settings=settings)
        consumer.on_failure(failed)
        await consumer.subscribe("T")
        async with consumer:
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 2)
    kind = ListenerResultError if outcome == "nonsense" else ListenerTimeoutError
    assert [type(error) for error in errors] == [kind]
    assert broker.seen(BACK) == []


async def go_wrong(how: str) -> object:
    """What a listener does that goes wrong."""
    if how == "raises":
        raise ValueError("boom")
    if how == "waits for what is cancelled":
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
    if how == "returns nonsense":
        return "nonsense"
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if how == "hangs":
            raise
    # It says that all is well, but too late.
    return None


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("raises", ListenerError),
        ("waits for what is cancelled", ListenerError),
        ("returns nonsense", ListenerResultError),
        ("hangs", ListenerTimeoutError),
        ("hangs and swallows its cancellation", ListenerTimeoutError),
    ],
)
@pytest.mark.parametrize("mode", ["concurrent", "parallel", "orderly", "broadcasting", "columns"])
async def test_a_listener_that_goes_wrong_has_one_outcome_in_each_kind_of_consumer(
    mode: str, how: str, kind: type[ListenerError]
) -> None:
    broker = broker_with(2)
    errors: list[ListenerError] = []
    calls = 0

    async def listen(*_):
        nonlocal calls
        calls += 1
        return await go_wrong(how) if calls == 1 else None

    settings = PushConsumerSettings(
        consume_from="first",
        commit_ms=20,
        local_retry_ms=5,
        listener_timeout_ms=20,
        orderly=mode == "orderly",
        parallel_batches=4 if mode == "parallel" else 1,
        model="broadcasting" if mode == "broadcasting" else "clustering",
    )
    async with running(broker) as cluster:
        consumer = PushConsumer(
            await cluster.client(),
            "cg",
            None if mode == "columns" else listen,
            columns_listener=listen if mode == "columns" else None,
            settings=settings,
        )
        consumer.on_failure(errors.append)
        await consumer.subscribe("T")
        async with consumer:
            if mode == "broadcasting":
                await until(lambda: calls == 2)
            else:
                await until(lambda: broker.offsets.get(("cg", "T", 0)) == 2)
    (error,) = errors
    assert type(error) is kind
    assert (error.topic, error.broker_name, error.queue_id) == ("T", "broker-a", 0)
    # Given back, or tried again in its place.
    is_given_back = mode in ("concurrent", "parallel")
    assert (calls, [*broker.given_back.values()]) == ((1, [1, 1]) if is_given_back else (2, []))


async def test_a_division_by_a_wrong_function_leaves_the_queues_where_they_are(caplog) -> None:
    broker = broker_with(2)
    answers = [lambda queues: list(queues)]

    async with running(broker) as cluster:
        consumer = PushConsumer(
            await cluster.client(),
            "cg",
            lambda batch: None,
            settings=PushConsumerSettings(consume_from="first", rebalance_ms=50),
            allocate=lambda queues, members, own: answers[0](queues),
        )
        await consumer.subscribe("T")
        async with consumer:
            for answer, text in (
                (lambda queues: 1 / 0, "allocate failed: ZeroDivisionError"),
                (lambda queues: None, "allocate failed: TypeError"),
                (lambda queues: ["T"], "returned what is no queue of the topic: 'T'"),
            ):
                answers[0] = answer
                caplog.clear()
                broker.notify("cg")
                await until(lambda: text in caplog.text)  # noqa: B023 - ends in its turn
                assert consumer.assigned == [MessageQueue("T", "broker-a", 0)]
        # One that begins with it begins without queues, and does not hang.
        async with asyncio.timeout(STOP_S):
            await consumer.start()
            assert consumer.assigned == []
            await consumer.stop()


def test_a_rebalance_listener_without_one_of_its_functions_is_refused() -> None:
    class Half:
        def revoked(self, queues) -> None: ...

    consumer = PushConsumer(ClientTransport(), "cg", lambda batch: None)
    with pytest.raises(ClientError, match=r"there is no assigned\(\)"):
        consumer.on_rebalance(Half())


async def test_an_answer_that_leads_back_is_asked_for_again_and_nothing_comes_twice(caplog) -> None:
    broker = broker_with(3)
    got: list[int] = []
    whole = broker.topics["T"][0]
    async with running(broker) as cluster:
        await cluster.consumer(lambda batch: got.extend(m.queue_offset for m in batch), pull_records_max=2)
        await until(lambda: got == [0, 1, 2])
        # The queue has at its end what stands at its beginning.
        broker.topics["T"][0] = [*whole, whole[0]]
        broker.wake()
        await until(lambda: "has messages 0 to 1 behind 3" in caplog.text)
        broker.topics["T"][0] = whole
        broker.store("T", 0, b"3")
        await until(lambda: got == [0, 1, 2, 3])
