"""Our client with RocketMQ 4.9.7's own name server and broker (Maven), unmodified."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from eventually import soon
from java_process import LIBRARIES, JavaBroker, JavaNameServer, java_marks

import iotmq
from iotmq.client import (
    IotmqClient,
    Message,
    MessageQueue,
    MessageTrace,
    PullConsumerSettings,
    PushConsumerSettings,
    ReceivedMessage,
    SendStatus,
    TransactionState,
)
from iotmq.client.admin.changes import END_MS
from iotmq.client.admin.messages import TrackState
from iotmq.errors import NotSupportedError, RequestTimeoutError, SubscriptionError

pytestmark = [
    *java_marks,
    pytest.mark.skipif(
        not list(LIBRARIES.glob("rocketmq-namesrv-*.jar")),
        reason="rocketmq-namesrv is not installed (tools/setup.sh dev, with Maven)",
    ),
]

FROM_FIRST = PushConsumerSettings(consume_from="first", commit_ms=50)
DELAYS = "1s " * 17 + "1s"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a name server that has one broker; transactions are asked about after half a second."""
    home = tmp_path_factory.mktemp("rocketmq")
    with JavaNameServer(home / "name-server") as name_server:
        address = f"127.0.0.1:{name_server.port}"
        settings = (f"namesrvAddr={address}", f"messageDelayLevel={DELAYS}", "waitTimeMillsInSendQueue=30000")
        asked = (
            "transactionTimeOut=500",
            "transactionCheckInterval=500",
            "osPageCacheBusyTimeOutMills=30000",
        )
        with JavaBroker(home / "data", *settings, *asked, heap="256m") as broker:
            yield address
            # Its end takes ten seconds, and nobody reads what it leaves.
            broker.kill()
        name_server.kill()


@pytest.fixture
async def client(registry: str) -> AsyncIterator[IotmqClient]:
    async with iotmq.connect(f"iotmq://{registry}", missing_route_refresh_ms=100) as client:
        yield client


class Seen:
    """A listener that keeps what it gets, and fails what `fails` says."""

    def __init__(self, fails: Callable[[ReceivedMessage], bool] = lambda _: False) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fails = fails

    def __call__(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        self.messages += messages
        return [message for message in messages if self._fails(message)]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def until(self, count: int) -> list[bytes]:
        await soon(lambda: len(self.messages) >= count, f"{count} messages")
        return self.bodies


async def until_said(question: Callable[[], Awaitable[bool]]) -> None:
    """Ask a server until it says yes: it tells nobody by itself."""
    async with asyncio.timeout(20):
        while not await question():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_every_form_of_send_arrives(client: IotmqClient) -> None:
    topic = "Forms"
    await client.admin.create_topic(topic, queues=2)
    producer = await client.producer("forms")
    full = Message(topic, b"full", key="k1", keys=("k2",), tags="red", properties={"buyer": "b"}, flag=7)
    result = await producer.send(full)
    assert (result.status, result.queue.topic) == (SendStatus.SEND_OK, topic)
    large = b"large " * 2_000
    await producer.send(Message(topic, large))
    nowait = await producer.send_nowait(Message(topic, b"nowait"))
    assert nowait.queue_offset >= 0
    batched = [Message(topic, b"batch %d" % number, key=f"k{number % 5}") for number in range(20)]
    assert sum(stored.count for stored in await producer.send_batch(batched)) == 20
    await producer.send_oneway(Message(topic, b"oneway"))
    begun_s = time.monotonic()
    await producer.send(Message(topic, b"later", delay_level=1))
    delayed_s: list[float] = []

    def note(message: ReceivedMessage) -> bool:
        if message.body == b"later":
            delayed_s.append(time.monotonic() - begun_s)
        return False

    seen = Seen(note)
    consumer = client.push_consumer("form-readers", seen, settings=FROM_FIRST)
    await consumer.subscribe(topic)
    async with consumer:
        bodies = await seen.until(25)
    wanted = {b"full", large, b"nowait", b"oneway", b"later", *(message.body for message in batched)}
    assert (len(bodies), set(bodies)) == (25, wanted)
    assert delayed_s[0] >= 0.9
    (got,) = [message for message in seen.messages if message.body == b"full"]
    assert (got.keys, got.tags, got.properties["buyer"], got.flag) == (["k1", "k2"], "red", "b", 7)
    assert (got.message_id, got.queue, got.queue_offset) == (
        result.message_id,
        result.queue,
        result.queue_offset,
    )


async def test_a_topic_is_made_by_sending_to_it(client: IotmqClient) -> None:
    producer = await client.producer()
    await producer.send(Message("MadeBySending", b"first"))
    await producer.send(Message("MadeBySending", b"second"))
    assert len(await client.admin.queues("MadeBySending")) == 4


async def test_messages_of_one_queue_are_consumed_in_order_and_in_place(client: IotmqClient) -> None:
    topic = "Ordered"
    await client.admin.create_topic(topic, queues=2)
    producer = await client.producer()
    queues = await producer.queues(topic)
    for number in range(20):
        await producer.send(Message(topic, b"%02d" % number), queue=queues[number % 2])
    failed: set[bytes] = set()

    def fails_once(message: ReceivedMessage) -> bool:
        is_first = message.body == b"04" and not failed
        failed.update([message.body] if is_first else [])
        return is_first

    seen = Seen(fails_once)
    settings = PushConsumerSettings(consume_from="first", orderly=True, batch_max=1, local_retry_ms=10)
    consumer = client.push_consumer("orderly", seen, settings=settings)
    await consumer.subscribe(topic)
    async with consumer:
        await seen.until(21)
    for parity in (0, 1):
        ours = [body for body in seen.bodies if int(body) % 2 == parity]
        assert sorted(ours) == ours
    assert seen.bodies.count(b"04") == 2


async def test_tags_are_filtered_and_offsets_go_on_in_a_second_life(client: IotmqClient) -> None:
    topic = "Tags"
    await client.admin.create_topic(topic, queues=1)
    producer = await client.producer()
    for tag in ("red", "blue", "green"):
        await producer.send(Message(topic, tag.encode(), tags=tag))
    first, second = Seen(), Seen()
    for seen, count in ((first, 2), (second, 1)):
        consumer = client.push_consumer("tagged", seen, settings=FROM_FIRST)
        await consumer.subscribe(topic, "red || green")
        async with consumer:
            if seen is second:
                await producer.send(Message(topic, b"again", tags="red"))
            await seen.until(count)
    assert (first.bodies, second.bodies) == ([b"red", b"green"], [b"again"])


async def test_two_members_share_the_queues(registry: str, client: IotmqClient) -> None:
    topic = "Shared"
    await client.admin.create_topic(topic, queues=4)
    producer = await client.producer()
    async with iotmq.connect(f"iotmq://{registry}") as other:
        seen = [Seen(), Seen()]
        consumers = [
            member.push_consumer("sharing", own, settings=FROM_FIRST)
            for member, own in zip((client, other), seen, strict=True)
        ]
        for consumer in consumers:
            await consumer.subscribe(topic)
            await consumer.start()
        await soon(lambda: [len(each.assigned) for each in consumers] == [2, 2], "each has its half")
        for queue in await producer.queues(topic):
            await producer.send(Message(topic, b"%d" % queue.queue_id), queue=queue)
        await soon(lambda: sum(len(own.messages) for own in seen) == 4, "all is consumed")
        assert [len(own.messages) for own in seen] == [2, 2]
        await consumers[1].stop()
        await soon(lambda: len(consumers[0].assigned) == 4, "the rest goes to the one that stays")


async def test_every_member_of_a_broadcast_gets_everything(registry: str, client: IotmqClient) -> None:
    topic = "Broadcast"
    await client.admin.create_topic(topic, queues=2)
    producer = await client.producer()
    settings = PushConsumerSettings(consume_from="first", model="broadcasting")
    async with iotmq.connect(f"iotmq://{registry}") as other:
        seen = [Seen(), Seen()]
        for member, own in zip((client, other), seen, strict=True):
            consumer = member.push_consumer("listeners", own, settings=settings)
            await consumer.subscribe(topic)
            await consumer.start()
        await producer.send_batch([Message(topic, b"%d" % number) for number in range(10)])
        for own in seen:
            assert len(await own.until(10)) == 10


async def test_a_pull_consumer_reads_as_a_member_and_from_queues_of_its_choice(client: IotmqClient) -> None:
    topic = "Pulled"
    await client.admin.create_topic(topic, queues=2)
    producer = await client.producer()
    begun_ms = client.clock.now_ms()
    await producer.send_batch([Message(topic, b"%03d" % number) for number in range(100)])
    settings = PullConsumerSettings(consume_from="first", hold_ms=500)
    consumer = client.pull_consumer("pullers", settings)
    await consumer.subscribe(topic)
    got: list[bytes] = []
    async with consumer:
        while len(got) < 100:
            got += [message.body for message in await consumer.getmany()]
        await consumer.commit()
    assert sorted(got) == [b"%03d" % number for number in range(100)]
    committed = await client.admin.group_offsets("pullers", topic)
    assert sum(offset or 0 for offset in committed.values()) == 100

    async with client.pull_consumer("choosers", settings) as chooser:
        (queue,) = [each for each, offset in committed.items() if offset]
        await chooser.assign({queue: 90})
        assert [message.queue_offset for message in await chooser.getmany()] == list(range(90, 100))
        assert await chooser.lag() == {queue: 0}
        await chooser.seek_to_time(begun_ms, queue)
        read = await chooser.getmany_columns()
        assert read is not None
        assert read[1].numpy("queue_offset")[0] == 0
        await chooser.seek_to_end(queue)
        assert await chooser.getmany(timeout_ms=50) == []


async def test_what_failed_comes_again_and_then_goes_to_the_dead_letters(client: IotmqClient) -> None:
    topic, group = "Failing", "failing"
    await client.admin.create_topic(topic, queues=1)
    producer = await client.producer()
    seen = Seen(lambda message: message.body != b"good")
    settings = PushConsumerSettings(consume_from="first", redeliveries_max=1, commit_ms=50)
    consumer = client.push_consumer(group, seen, settings=settings)
    await consumer.subscribe(topic)
    async with consumer:
        for body in (b"good", b"bad"):
            await producer.send(Message(topic, body, key=body.decode()))
        await seen.until(3)
        assert [(each.body, each.redeliveries, each.topic) for each in seen.messages] == [
            (b"good", 0, topic),
            (b"bad", 0, topic),
            (b"bad", 1, topic),
        ]

        async def dead() -> list[bytes]:
            queue = MessageQueue("%DLQ%" + group, "broker-a", 0)
            async with client.pull_consumer("undertakers") as reader:
                await reader.assign({queue: 0})
                return [message.body for message in await reader.getmany(timeout_ms=200)]

        async def has_topic() -> bool:
            return "%DLQ%" + group in await client.admin.topics()

        async def is_buried() -> bool:
            return await dead() == [b"bad"]

        await until_said(has_topic)
        await until_said(is_buried)


async def test_transactions_are_committed_rolled_back_and_asked_about(client: IotmqClient) -> None:
    topic = "Transactions"
    await client.admin.create_topic(topic, queues=1)
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT if message.body == b"open" else TransactionState.ROLLBACK

    seen = Seen()
    consumer = client.push_consumer("bookers", seen, settings=FROM_FIRST)
    await consumer.subscribe(topic)
    async with client.transaction_producer("orders", check, topics=[topic]) as producer, consumer:
        await (await producer.begin(Message(topic, b"committed", tags="a"))).commit()
        await (await producer.begin(Message(topic, b"rolled back"))).rollback()
        assert await seen.until(1) == [b"committed"]
        opened = await producer.begin(Message(topic, b"open"))
        await producer.send_in_transaction(Message(topic, b"given up"), lambda _: TransactionState.UNKNOWN)
        await soon(lambda: {b"open", b"given up"} <= set(asked), "both are asked about")
        assert await seen.until(2) == [b"committed", b"open"]
    assert seen.messages[1].message_id == opened.message_id
    assert set(asked) == {b"open", b"given up"}


async def test_a_request_gets_its_reply(client: IotmqClient) -> None:
    topic = "Questions"
    await client.admin.create_topic(topic, queues=1)
    replier = client.replier()

    async def answer(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            if message.body != b"silence":
                await replier.reply(message, b"re: " + message.body, tags="t")

    consumer = client.push_consumer("service", answer, settings=FROM_FIRST)
    await consumer.subscribe(topic)
    requester = await client.requester()
    async with consumer:
        reply = await requester.request(Message(topic, b"hello"), timeout_ms=20_000)
        assert (reply.body, reply.tags) == (b"re: hello", "t")
        with pytest.raises(RequestTimeoutError):
            await requester.request(Message(topic, b"silence"), timeout_ms=300)


async def test_operators_find_messages_and_see_and_move_groups(client: IotmqClient) -> None:
    topic, group, admin = "Managed", "managed", client.admin
    await admin.create_topic(topic, queues=2)
    assert topic in await admin.topics()
    assert list((await admin.brokers())["broker-a"]) == [0]
    producer = await client.producer("managers")
    sent = [await producer.send(Message(topic, b"%d" % number, keys=("all",))) for number in range(4)]
    seen = Seen()
    consumer = client.push_consumer(group, seen, settings=FROM_FIRST)
    await consumer.subscribe(topic)
    async with consumer:
        await seen.until(4)
        (by_id,) = [await admin.messages.by_id(each) for each in sent[2].offset_message_ids]
        assert by_id.body == b"2"

        async def is_indexed() -> bool:
            return len(await admin.messages.by_key(topic, "all")) == 4

        # Its index is made behind the answer.
        await until_said(is_indexed)
        (by_unique_key,) = await admin.messages.by_unique_key(topic, sent[2].message_id)
        assert by_unique_key.queue_offset == sent[2].queue_offset

        async def is_done() -> bool:
            return (await admin.groups.progress(group, topic)).behind == 0

        await until_said(is_done)
        assert (group, TrackState.CONSUMED) in await admin.messages.track(by_id)
        connections = await admin.groups.connections(group)
        assert connections is not None
        assert [each.client_id for each in connections.connection_set] == [client.client_id]
        running = await admin.groups.running_info(group, client.client_id)
        assert running.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        direct = await admin.groups.consume_directly(
            group, client.client_id, sent[1].offset_message_ids[0], broker_name="broker-a"
        )
        assert (direct.consume_result, seen.bodies[4:]) == ("CR_SUCCESS", [b"1"])
        moved = await admin.changes.reset_offsets(group, topic, 0)
        assert (moved.is_live, set(moved.offsets.values())) == (True, {0})
        await seen.until(9)
    skipped = await admin.changes.reset_offsets(group, topic, END_MS)
    assert not skipped.is_live
    assert sum(skipped.offsets.values()) == 4
    assert await admin.groups.of_topic(topic) == [group]
    (producing,) = await admin.groups.producers("managers")
    assert producing.client_id == client.client_id
    offsets = await admin.offsets(topic)
    assert sum(each.end for each in offsets.values()) == 4
    await admin.changes.delete_topic(topic)
    assert topic not in await admin.topics()


async def test_traces_are_found_by_the_ids_of_their_messages(registry: str) -> None:
    topic = "Traced"
    seen = Seen()
    async with iotmq.connect(f"iotmq://{registry}", interceptors=[MessageTrace(linger_ms=1)]) as client:
        await client.admin.create_topic(topic, queues=1)
        consumer = client.push_consumer("traced", seen, settings=FROM_FIRST)
        await consumer.subscribe(topic)
        producer = await client.producer()
        async with consumer:
            sent = await producer.send(Message(topic, b"x"))
            await seen.until(1)

        async def kinds() -> set[bytes]:
            traces = await client.admin.messages.by_key("RMQ_SYS_TRACE_TOPIC", sent.message_id)
            entries = b"".join(trace.body for trace in traces).split(b"\x02")
            return {entry.split(b"\x01")[0] for entry in entries if sent.message_id.encode() in entry}

        async def is_whole() -> bool:
            return await kinds() == {b"Pub", b"SubBefore", b"SubAfter"}

        await until_said(is_whole)


async def test_what_rocketmq_does_not_know_is_an_error_that_says_so(client: IotmqClient) -> None:
    topic = "Unknown"
    await client.admin.create_topic(topic, queues=1)
    producer = await client.producer()
    for message in (
        Message(topic, b"early", delay_ms=60_000),
        Message(topic, b"early", deliver_at_ms=client.clock.now_ms() + 60_000),
    ):
        with pytest.raises(NotSupportedError, match=r"broker-a is one of RocketMQ 4 .* use delay_level"):
            await producer.send(message)
        with pytest.raises(NotSupportedError, match="not sent"):
            await producer.send_oneway(message)
    (offsets,) = (await client.admin.offsets(topic)).values()
    assert offsets.end == 0, "nothing is delivered at once"
    with pytest.raises(
        NotSupportedError, match=f"queues of topic {topic} at broker broker-a: not supported there"
    ):
        await client.admin.scaling.states(topic)
    with pytest.raises(NotSupportedError, match="cancelling K at broker broker-a"):
        await client.waiting_messages.cancel(topic, "K")
    with pytest.raises(NotSupportedError, match="listing waiting messages"):
        await anext(client.waiting_messages.list(topic))
    with pytest.raises(NotSupportedError, match="clients of broker broker-a"):
        await anext(client.admin.groups.clients("broker-a"))
    consumer = client.push_consumer("sql", Seen(), settings=FROM_FIRST)
    await consumer.subscribe(topic, sql="a > 1")
    with pytest.raises(SubscriptionError, match="SQL92"):
        await consumer.start()
