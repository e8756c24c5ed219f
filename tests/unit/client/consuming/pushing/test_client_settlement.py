"""What a listener decides about single messages, and what becomes of listeners that go wrong."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry

from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.delivery import delay_level
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import ReceivedMessage, Settlement
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings, PushConsumerSettings
from iotmq.errors import ClientError, ListenerError, ListenerResultError, ListenerTimeoutError
from iotmq.remoting.codes import RequestCode

BACK = RequestCode.CONSUMER_SEND_MESSAGE_BACK


def broker_with(count: int, queues: int = 1) -> FakeBroker:
    broker = FakeBroker()
    broker.add_topic("T", queues)
    for number in range(count):
        broker.store("T", number % queues, b"%d" % number)
    return broker


@asynccontextmanager
async def client_of(broker: FakeBroker):
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    try:
        settings = ClientSettings(
            registries=(registry.address,), reconnect_ms_min=5, request_timeout_ms=1_000
        )
        async with ClientTransport(settings) as client:
            yield client
    finally:
        await broker.stop()
        await registry.stop()


@asynccontextmanager
async def pushing(broker: FakeBroker, listener, **settings):
    """A push consumer, and the errors that it tells."""
    options = {"consume_from": "first", "commit_ms": 10, "local_retry_ms": 5, "stop_timeout_ms": 500}
    async with client_of(broker) as client:
        consumer = PushConsumer(client, "cg", listener, settings=PushConsumerSettings(**options | settings))
        errors: list[ListenerError] = []
        consumer.on_failure(errors.append)
        await consumer.subscribe("T")
        async with consumer:
            yield consumer, errors


def consumed(broker: FakeBroker, offset: int):
    return lambda: broker.offsets.get(("cg", "T", 0)) == offset


def levels(broker: FakeBroker) -> list[tuple[str, str]]:
    """Record position and delay level of everything that was given back."""
    return [(request.ext["offset"], request.ext["delayLevel"]) for request in broker.seen(BACK)]


def positions(broker: FakeBroker) -> list[str]:
    sizes = [len(record) for record in broker.topics["T"][0]]
    return [str(position) for position in itertools.accumulate([0, *sizes])]


async def test_messages_are_settled_one_by_one_whatever_the_listener_raises() -> None:
    broker = broker_with(5)

    def listen(batch: list[ReceivedMessage]) -> None:
        batch[0].ack()
        batch[1].nak(3_000)
        batch[2].term()
        batch[3].nak()
        batch[3].ack()
        raise ValueError("fails the one that is not settled")

    async with pushing(broker, listen) as (consumer, errors):
        await until(consumed(broker, 5))
        values = {metric.name: metric.value for metric in consumer.metrics()}
    at = positions(broker)
    assert levels(broker) == [(at[1], "2"), (at[2], "-1"), (at[4], "0")]
    assert (values["iotmq_client_consumed_total"], values["iotmq_client_consume_failed_total"]) == (2, 3)
    (error,) = errors
    assert (error.topic, error.broker_name, error.queue_id) == ("T", "broker-a", 0)
    assert isinstance(error.__cause__, ValueError)


async def test_a_message_without_a_broker_for_it_is_a_dead_letter_by_way_of_the_retry_topic() -> None:
    broker = broker_with(1)
    broker.script[BACK].append(1)
    async with pushing(broker, lambda batch: batch[0].term()):
        await until(consumed(broker, 1))
    (request,) = broker.seen(RequestCode.SEND_MESSAGE_V2)
    assert (request.ext["b"], request.ext["l"]) == ("%RETRY%cg", "0")


def test_delays_are_rounded_up_to_levels() -> None:
    wishes = [None, Settlement("nak"), Settlement("term")]
    assert [delay_level(wish) for wish in wishes] == [0, 0, -1]
    delays = [0, 1_000, 1_001, 7_200_000, 7_200_001]
    assert [delay_level(Settlement("nak", delay_ms)) for delay_ms in delays] == [1, 1, 2, 18, 18]


async def test_a_message_is_settled_by_its_listener_only() -> None:
    broker = broker_with(1)
    kept: list[ReceivedMessage] = []
    async with pushing(broker, kept.extend):
        await until(consumed(broker, 1))
    for call in (kept[0].ack, kept[0].nak, kept[0].term, kept[0].in_progress):
        with pytest.raises(ClientError, match="the listener has returned"):
            call()
    with pytest.raises(ClientError, match="must not be negative"):
        kept[0].nak(-1)
    async with client_of(broker) as client, PullConsumer(client) as consumer:
        await consumer.assign([MessageQueue("T", "broker-a", 0)])
        (message,) = await consumer.getmany()
        with pytest.raises(ClientError, match=r"commit\(\) settles it"):
            message.ack()


async def test_a_listener_that_hangs_is_cancelled_and_has_failed() -> None:
    broker = broker_with(2)
    was_cancelled = asyncio.Event()

    async def listen(batch: list[ReceivedMessage]) -> None:
        if batch[0].body == b"0":
            batch[0].ack() if len(batch) > 1 else None
            try:
                await asyncio.Event().wait()
            finally:
                was_cancelled.set()

    async with pushing(broker, listen, batch_max=1, listener_timeout_ms=20) as (_, errors):
        await until(consumed(broker, 2))
    assert was_cancelled.is_set()
    (error,) = errors
    assert isinstance(error, ListenerTimeoutError)
    assert "not done after 20 ms" in str(error)
    assert sum(broker.given_back.values()) == 1


async def test_progress_gives_the_whole_time_again() -> None:
    broker = broker_with(1)
    loop = asyncio.get_running_loop()
    began_s = 0.0

    async def listen(batch: list[ReceivedMessage]) -> None:
        nonlocal began_s
        began_s = loop.time()
        while loop.time() - began_s < 0.6:
            batch[0].in_progress()
            await asyncio.sleep(0)

    async with pushing(broker, listen, listener_timeout_ms=300) as (_, errors):
        await until(consumed(broker, 1))
    assert not errors
    assert loop.time() - began_s >= 0.6


async def test_a_timeout_of_the_listeners_own_is_an_error_like_others() -> None:
    broker = broker_with(1)

    def listen(batch: list[ReceivedMessage]) -> None:
        raise TimeoutError("of a database")

    async with pushing(broker, listen) as (_, errors):
        await until(consumed(broker, 1))
    assert [type(error) for error in errors] == [ListenerError]


async def test_a_listener_whose_work_was_cancelled_has_failed() -> None:
    broker = broker_with(1)

    async def listen(batch: list[ReceivedMessage]) -> None:
        work = asyncio.ensure_future(asyncio.sleep(30))
        work.cancel()
        await work

    async with pushing(broker, listen) as (_, errors):
        await until(consumed(broker, 1))
    assert [type(error) for error in errors] == [ListenerError]
    assert "was cancelled" in str(errors[0])


@pytest.mark.parametrize("result", [5, ["text"], [None], object()])
async def test_a_listener_that_returns_nonsense_has_failed(result: object) -> None:
    broker = broker_with(2)
    async with pushing(broker, lambda batch: result) as (_, errors):
        await until(consumed(broker, 2))
    assert [type(error) for error in errors] == [ListenerResultError]
    assert sum(broker.given_back.values()) == 2


async def test_a_function_told_about_failures_may_fail_itself() -> None:
    broker = broker_with(2)

    def told(error: ListenerError) -> None:
        raise ValueError

    async with pushing(broker, lambda batch: [batch[0]], batch_max=1) as (consumer, _):
        consumer.on_failure(told)
        await until(consumed(broker, 2))


async def test_broadcast_messages_that_are_given_up_are_counted() -> None:
    broker = broker_with(2)
    got: list[bytes] = []

    def listen(batch: list[ReceivedMessage]) -> None:
        got.extend(message.body for message in batch)
        batch[0].nak(1) if len(got) == 2 else batch[0].term()

    async with pushing(broker, listen, model="broadcasting") as (consumer, _):
        await until(lambda: len(got) == 3)
        await until(lambda: {m.name: m.value for m in consumer.metrics()}["iotmq_client_dropped_total"] == 1)
    assert got == [b"0", b"1", b"0"]


async def test_paused_queues_hand_over_nothing() -> None:
    broker = broker_with(1, 2)
    got: list[bytes] = []
    async with pushing(broker, lambda batch: got.extend(message.body for message in batch)) as (consumer, _):
        await until(lambda: got == [b"0"])
        consumer.pause()
        broker.store("T", 0, b"late")
        consumer.resume(MessageQueue("T", "broker-a", 1))
        broker.store("T", 1, b"other")
        await until(lambda: got == [b"0", b"other"])
        consumer.resume()
        await until(lambda: got == [b"0", b"other", b"late"])
        with pytest.raises(ClientError, match="not assigned"):
            consumer.pause(MessageQueue("T", "broker-a", 7))


async def test_failures_make_all_rest_until_a_probe_succeeds() -> None:
    broker = broker_with(40, 2)
    sizes: list[int] = []
    is_ill = True

    def listen(batch: list[ReceivedMessage]) -> None:
        sizes.append(len(batch))
        if is_ill:
            raise ConnectionError("the database is away")

    async with pushing(broker, listen, probe_ms_max=40, batch_max=10):
        await until(lambda: len(sizes) >= 4)
        is_ill = False
        await until(lambda: sum(broker.offsets.get(("cg", "T", number), 0) for number in (0, 1)) == 40)
    # One call found out; after it single messages were tried, until one succeeded.
    first_good = next(at for at in range(3, len(sizes)) if sizes[at] > 1)
    assert sizes[0] == 10
    assert sizes[1:first_good] == [1] * (first_good - 1)
    assert sum(broker.given_back.values()) < 20
