"""Consuming message by message: a gateway in this process, and consumers that share a group."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from eventually import until

import iotmq
from iotmq.client import (
    Consuming,
    Interceptor,
    IotmqClient,
    Message,
    PopConsumer,
    PopConsumerSettings,
    PoppedMessage,
)
from iotmq.client.consuming.pop.pop_fetch import PopFetch
from iotmq.errors import (
    ClientClosedError,
    ClientError,
    ConnectionClosedError,
    ReceiptExpiredError,
    SubscriptionError,
)
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.testing import Gateway, gateway

_numbers = itertools.count()
# Longer than any test, and so short that nobody waits for it in vain.
LONG_MS = 120_000


@pytest.fixture(scope="module")
def server() -> Iterator[Gateway]:
    with gateway() as server:
        yield server


@pytest.fixture
async def client(server: Gateway) -> AsyncIterator[IotmqClient]:
    async with server.connect() as client:
        yield client


@pytest.fixture
async def topic(client: IotmqClient) -> str:
    name = f"T{next(_numbers)}"
    await client.admin.create_topic(name, queues=2)
    return name


async def send(client: IotmqClient, topic: str, count: int, *, key: str = "", tags: str = "") -> None:
    async with client.producer() as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, key=key, tags=tags))


async def consumer_of(
    client: IotmqClient, topic: str, group: str = "", *, tags: str = "*", **settings: object
) -> PopConsumer:
    options = {"consume_from": "first", "invisible_ms": LONG_MS, "hold_ms": 1_000, "pop_timeout_ms": 5_000}
    consumer = client.pop_consumer(group or f"G-{topic}", PopConsumerSettings(**options | settings))  # type: ignore[arg-type]
    await consumer.subscribe(topic, tags)
    await consumer.start()
    return consumer


async def got(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    """Wait for so many messages."""
    messages: list[PoppedMessage] = []
    async with asyncio.timeout(30):
        while len(messages) < count:
            messages += await consumer.getmany(timeout_ms=1_000, records_max=count - len(messages))
    return messages


async def test_consumers_of_one_group_share_the_messages_of_a_topic(client: IotmqClient, topic: str) -> None:
    consumers = [await consumer_of(client, topic, held_max=10) for _ in range(5)]
    await send(client, topic, 100)
    bodies: list[bytes] = []

    async def consume(consumer: PopConsumer) -> None:
        async for message in consumer:
            assert message.attempt == 1
            await message.ack()
            bodies.append(message.body)

    tasks = [asyncio.create_task(consume(consumer)) for consumer in consumers]
    await until(lambda: len(bodies) == 100)
    for consumer in consumers:
        await consumer.stop()
    await asyncio.gather(*tasks)
    assert sorted(bodies) == sorted(b"%d" % number for number in range(100))
    progress = await client.admin.group_offsets(f"G-{topic}", topic)
    assert sum(progress.values()) == 100


async def test_what_is_given_back_comes_again_with_one_more_attempt(client: IotmqClient, topic: str) -> None:
    await send(client, topic, 1)
    consumer = await consumer_of(client, topic)
    [message] = await got(consumer, 1)
    assert (message.attempt, message.topic, consumer.held_count) == (1, topic, 1)
    await message.nak()
    [again] = await got(consumer, 1)
    assert (again.attempt, again.redeliveries, again.body) == (2, 1, message.body)
    with pytest.raises(ReceiptExpiredError, match=topic) as refused:
        await message.ack()
    assert refused.value.queue_id == message.queue.queue_id
    await again.ack()
    await again.ack()
    assert consumer.held_count == 0


async def test_many_are_acknowledged_in_one_call_and_one_that_is_lost_keeps_no_other(
    client: IotmqClient, topic: str
) -> None:
    await send(client, topic, 5)
    consumer = await consumer_of(client, topic, held_max=5)
    messages = await got(consumer, 5)
    await messages[2].nak()
    [again] = await got(consumer, 1)
    with pytest.raises(ReceiptExpiredError, match=f"offset {messages[2].queue_offset}"):
        await consumer.ack(messages)
    assert consumer.held_count == 1
    await consumer.ack([again])
    await consumer.ack([])
    progress = await client.admin.group_offsets(f"G-{topic}", topic)
    assert sum(progress.values()) == 5


async def test_a_message_that_is_extended_has_another_receipt_and_stays_where_it_is(
    client: IotmqClient, topic: str
) -> None:
    await send(client, topic, 1)
    consumer = await consumer_of(client, topic)
    [message] = await got(consumer, 1)
    before, due_s = message.receipt, message.due_s
    await message.in_progress()
    assert message.receipt.popped_ms > before.popped_ms
    assert message.due_s >= due_s
    await message.ack()
    assert await consumer.getmany(timeout_ms=0) == []


async def test_a_message_whose_time_is_over_is_another_consumers(client: IotmqClient, topic: str) -> None:
    await send(client, topic, 1)
    first = await consumer_of(client, topic, invisible_ms=200, held_max=1)
    [message] = await got(first, 1)
    await until(lambda: first.held_count == 0)
    await first.stop()
    second = await consumer_of(client, topic)
    [again] = await got(second, 1)
    assert (again.body, again.attempt > 1) == (message.body, True)
    with pytest.raises(ReceiptExpiredError):
        await message.in_progress()
    await again.ack()


async def test_a_message_that_nobody_asked_for_in_time_is_fetched_when_somebody_asks_and_no_sooner(
    client: IotmqClient, topic: str
) -> None:
    await send(client, topic, 1)
    consumer = await consumer_of(client, topic, invisible_ms=100, hold_ms=20_000, pop_timeout_ms=30_000)
    held = consumer._fetches.held

    def is_resting() -> bool:
        # It may come once more, by a pop that waits at the broker already.
        return held.expired_total > 0 and not (held.free or consumer.held_count)

    await until(is_resting)
    assert (consumer._fetches.arrived_count, held.bytes) == (0, 0)
    [message] = await got(consumer, 1)
    assert message.attempt > 1


async def test_a_message_is_a_dead_letter_when_its_consumer_says_so(client: IotmqClient, topic: str) -> None:
    dead_letters = f"%DLQ%G-{topic}"
    await client.admin.create_topic(dead_letters, queues=1)
    await send(client, topic, 2)
    consumer = await consumer_of(client, topic)
    bad, good = await got(consumer, 2)
    await bad.term()
    await good.ack()

    [dead] = await got(await consumer_of(client, dead_letters, "undertakers"), 1)
    assert dead.body == bad.body
    assert consumer.held_count == 0


async def test_no_more_is_fetched_than_the_credit_allows(client: IotmqClient, topic: str) -> None:
    await send(client, topic, 40)
    consumer = await consumer_of(client, topic, held_max=3)
    messages = await got(consumer, 3)
    other = await consumer_of(client, topic)
    rest = await got(other, 37)
    assert await consumer.getmany(timeout_ms=0) == []
    await asyncio.gather(*(message.ack() for message in [*messages, *rest]))
    assert (consumer.held_count, other.held_count) == (0, 0)


async def test_the_bytes_of_what_is_held_are_bounded_too(client: IotmqClient, topic: str) -> None:
    await send(client, topic, 3, key="one queue")
    consumer = await consumer_of(client, topic, held_bytes_max=1, hold_ms=0)
    messages = await got(consumer, 3)
    # They came with the first answer; past it nothing more does.
    await send(client, topic, 1)
    assert await consumer.getmany(timeout_ms=50) == []
    await asyncio.gather(*(message.ack() for message in messages))
    assert len(await got(consumer, 1)) == 1


async def test_credit_that_is_too_small_for_all_brokers_and_topics_goes_to_who_has_messages(
    client: IotmqClient, topic: str
) -> None:
    other = f"{topic}-other"
    await client.admin.create_topic(other, queues=1)
    consumer = await consumer_of(client, topic, held_max=1)
    await consumer.subscribe(other)
    await send(client, other, 3)
    await send(client, topic, 3)
    topics = []
    for _ in range(6):
        [message] = await got(consumer, 1)
        topics.append(message.topic)
        await message.ack()
    assert sorted(topics) == sorted([topic, other] * 3)


async def test_what_was_not_returned_is_given_back_at_the_end(client: IotmqClient, topic: str) -> None:
    await send(client, topic, 10)
    first = await consumer_of(client, topic)
    [held] = await got(first, 1)
    await until(lambda: first.held_count == 10)
    await first.stop()
    second = await consumer_of(client, topic)
    # Nobody has seen them.
    assert [message.attempt for message in await got(second, 9)] == [1] * 9
    # It may be settled still.
    await held.ack()
    with pytest.raises(ClientClosedError):
        await first.getmany()


async def test_a_pop_that_waits_at_the_broker_takes_nothing_along_when_its_consumer_ends(
    client: IotmqClient, topic: str
) -> None:
    first = await consumer_of(client, topic)
    assert await first.getmany(timeout_ms=50) == []
    await first.stop()
    await send(client, topic, 5)
    second = await consumer_of(client, topic)
    assert len({message.body for message in await got(second, 5)}) == 5


async def test_only_messages_with_the_tag_come_and_the_others_are_passed_over(
    client: IotmqClient, topic: str
) -> None:
    await send(client, topic, 3, tags="a")
    await send(client, topic, 2, tags="b")
    consumer = await consumer_of(client, topic, tags="b")
    messages = await got(consumer, 2)
    assert {message.tags for message in messages} == {"b"}


async def test_messages_that_failed_by_queue_come_by_message_too(client: IotmqClient, topic: str) -> None:
    group = f"G-{topic}"
    await client.admin.create_topic(f"%RETRY%{group}", queues=1)
    await send(client, f"%RETRY%{group}", 1)
    consumer = await consumer_of(client, topic)
    [message] = await got(consumer, 1)
    assert message.record.topic == f"%RETRY%{group}"
    await message.ack()


async def test_orderly_consumers_get_nothing_behind_what_is_held(client: IotmqClient, topic: str) -> None:
    await send(client, topic, 4, key="one queue")
    first = await consumer_of(client, topic, orderly=True, held_max=1)
    second = await consumer_of(client, topic, orderly=True, held_max=1)
    bodies = []
    for _ in range(4):
        tasks = [asyncio.create_task(each.getmany(timeout_ms=30_000)) for each in (first, second)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        done = [task.result() for task in tasks if task.done() and not task.cancelled()]
        [message] = [message for messages in done for message in messages]
        bodies.append(message.body)
        await message.ack()
    assert bodies == [b"0", b"1", b"2", b"3"]


async def test_consumers_by_key_get_one_message_of_each_key_at_a_time(
    client: IotmqClient, topic: str
) -> None:
    async with client.producer() as producer:
        for number in range(30):
            await producer.send(Message(topic, b"%d" % number, key="abc"[number % 3]))
    consumers = [await consumer_of(client, topic, orderly="key", held_max=10) for _ in range(4)]
    held: set[str] = set()
    bodies: dict[str, list[int]] = {"a": [], "b": [], "c": []}

    async def consume(consumer: PopConsumer) -> None:
        async for message in consumer:
            [key] = message.keys
            assert key not in held
            held.add(key)
            await asyncio.sleep(0)
            held.remove(key)
            if message.attempt == 1 and int(message.body) % 7 == 0:
                await message.nak()
                continue
            bodies[key].append(int(message.body))
            await message.ack()

    tasks = [asyncio.create_task(consume(consumer)) for consumer in consumers]
    await until(lambda: sum(map(len, bodies.values())) == 30)
    for consumer in consumers:
        await consumer.stop()
    await asyncio.gather(*tasks)
    assert bodies == {key: list(range(at, 30, 3)) for at, key in enumerate("abc")}


async def test_what_an_answer_had_that_was_lost_comes_at_once_and_not_with_its_time(
    client: IotmqClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(client, topic, 3, key="one queue")
    request, lost = PopFetch._request, list[Command]()

    async def lose(self: PopFetch, code: int, *, count: int = 0, poll_ms: int) -> Command:
        response = await request(self, code, count=count, poll_ms=poll_ms)
        if not lost and code == RequestCode.POP_MESSAGE and response.code == ResponseCode.SUCCESS:
            lost.append(response)
            raise ConnectionClosedError("no answer came")
        return response

    monkeypatch.setattr(PopFetch, "_request", lose)
    consumer = await consumer_of(client, topic)
    messages = await got(consumer, 3)
    assert len(lost) == 1
    assert [(message.body, message.attempt) for message in messages] == [(b"0", 1), (b"1", 1), (b"2", 1)]
    await consumer.ack(messages)


async def test_misuse_is_named(client: IotmqClient, topic: str) -> None:
    group = f"G-{topic}"
    with pytest.raises(SubscriptionError, match="no subscription"):
        await client.pop_consumer(group).start()
    with pytest.raises(ClientError, match="longer than hold_ms"):
        client.pop_consumer(group, PopConsumerSettings(hold_ms=1_000, pop_timeout_ms=1_000))
    with pytest.raises(ClientClosedError):
        await client.pop_consumer(group).getmany()
    await send(client, topic, 1)
    consumer = await consumer_of(client, topic)
    [message] = await got(consumer, 1)
    with pytest.raises(ClientError, match="must be in"):
        await message.nak(-1)
    pushing = client.push_consumer(group, lambda _: None)
    await pushing.subscribe(topic)
    with pytest.raises(ClientError, match="has a consumer of group"):
        await pushing.start()


def test_blocking_consumers_have_the_same_calls(server: Gateway) -> None:
    with server.connect_sync() as client:
        client.admin.create_topic("blocking", queues=1)
        with client.producer() as producer:
            for number in range(3):
                producer.send(Message("blocking", b"%d" % number))
        consumer = client.pop_consumer("blocking", PopConsumerSettings(consume_from="first"))
        consumer.subscribe("blocking")
        with consumer:
            found = []
            for message in consumer:
                message.ack()
                found.append((message.body, message.attempt))
                if len(found) == 3:
                    break
            assert found == [(b"0", 1), (b"1", 1), (b"2", 1)]
            with client.producer() as producer:
                producer.send(Message("blocking", b"3"))
            [message] = consumer.getmany(timeout_ms=30_000)
            message.nak()
            messages = consumer.getmany(timeout_ms=30_000)
            assert [message.attempt for message in messages] == [2]
            consumer.ack(messages)


async def test_interceptors_see_what_becomes_of_messages(server: Gateway, topic: str) -> None:
    """A call ends with the last of its messages: settled, expired, or left by the end of the consumer."""
    ended: list[Consuming] = []
    begun: list[int] = []

    class Noting(Interceptor):
        def before_consume(self, consuming: Consuming) -> None:
            assert consuming.is_asked
            begun.append(len(consuming.messages))

        def after_consume(self, consuming: Consuming) -> None:
            ended.append(consuming)

    def failed() -> list[set[bytes]]:
        return [{message.body for message in consuming.failed} for consuming in ended]

    async with iotmq.connect(server.url, interceptors=[Noting()]) as client:
        async with client.producer() as producer:
            for number in range(5):
                await producer.send(Message(topic, b"%d" % number, key="one queue"))
        consumer = await consumer_of(client, topic, held_max=3)
        await until(lambda: consumer.held_count == 3)
        first, second, third = await consumer.getmany(records_max=3)
        await first.ack()
        await second.nak(delay_ms=LONG_MS)
        assert ended == []
        await third.ack()
        await third.ack()
        assert (failed(), ended[0].error) == ([{second.body}], None)
        await until(lambda: consumer.held_count == 2)
        await consumer.ack(await consumer.getmany(records_max=1))
        await consumer.getmany(records_max=1)
        await consumer.stop()
        assert (failed()[1:], type(ended[2].error)) == ([set(), {b"4"}], ClientClosedError)
        assert begun == [3, 1, 1]
        assert len(ended) == 3

        consumer = await consumer_of(client, topic, "expiring", invisible_ms=300)
        expired = (await got(consumer, 1))[0]
        await until(lambda: len(ended) == 4)
        assert failed()[3] == {expired.body}
        await consumer.stop()
