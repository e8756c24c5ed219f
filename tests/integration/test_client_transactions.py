"""Transactions and request-reply of the native client over a real registry and broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from local_cluster import LocalCluster
from msgspec.structs import replace

from iotmq.client import (
    IotmqClient,
    Message,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    Replier,
    Requester,
    SyncClient,
    SyncProducer,
    SyncPushConsumer,
    SyncReplier,
    SyncRequester,
    SyncTransactionProducer,
    TransactionProducer,
    TransactionState,
)
from iotmq.errors import (
    BrokerError,
    ClientError,
    ConnectionClosedError,
    IotmqError,
    ProducerBusyError,
    RequestTimeoutError,
)
from iotmq.limits import TRANSACTION_CHECKS_IN_FLIGHT_MAX
from iotmq.message.records.record import iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class Gateway(LocalCluster):
    """Asks about transactions at once, and heartbeats often."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            client={"heartbeat_ms": 200},
            transaction_timeout_s=0.0,
            transaction_check_interval_s=0.1,
            transaction_checks_max=1_000,
            delay_levels="1s 1s 1s 1s",
        )

    def bodies(self, topic: str) -> list[bytes]:
        found = []
        for queue in self.store.queues():
            if queue.topic == topic and queue.max_offset > queue.min_offset:
                read = self.store.read(queue, queue.min_offset, records_max=10_000, bytes_max=1 << 28)
                found += [record.body for view in read.views for record in iter_records(view)]
        return found


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path)
    await gateway.start()
    yield gateway
    await gateway.stop()


def never(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"nobody should ask about {message}")


class Answers:
    """A check function that says what it is told, by body."""

    def __init__(self, **states: TransactionState) -> None:
        self.states = states
        self.asked: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> TransactionState:
        self.asked.append(message)
        return self.states.get(message.body.decode(), UNKNOWN)


async def test_commit_and_rollback(gateway: Gateway) -> None:
    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", never) as producer,
    ):
        kept = await producer.begin(Message("T", b"kept", key="k", tags="a"), check_after_s=60)
        dropped = await producer.begin(Message("T", b"dropped"), check_after_s=60)
        assert gateway.bodies("T") == []
        await kept.commit()
        await dropped.rollback()
        assert (kept.state, dropped.state) == (COMMIT, ROLLBACK)
        # Said again, because the answer might have got lost.
        await kept.commit()
        with pytest.raises(BrokerError, match="committed"):
            await kept.rollback()
        # It sends as any producer does, too.
        await producer.send(Message("T", b"plain"))
        assert sorted(gateway.bodies("T")) == [b"kept", b"plain"]


async def test_the_application_decides_between_prepare_and_commit(gateway: Gateway) -> None:
    seen: list[str] = []

    def commit(message_id: str) -> TransactionState:
        seen.append(message_id)
        assert gateway.bodies("T") == []
        return COMMIT

    async def roll_back(message_id: str) -> TransactionState:
        seen.append(message_id)
        return ROLLBACK

    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", never) as producer,
    ):
        one = await producer.send_in_transaction(Message("T", b"one"), commit, check_after_s=60)
        two = await producer.send_in_transaction(Message("T", b"two"), roll_back, check_after_s=60)
    assert (one.state, two.state) == (COMMIT, ROLLBACK)
    assert seen == [one.message_id, two.message_id]
    assert gateway.bodies("T") == [b"one"]


async def test_the_broker_asks_about_what_was_left_open(gateway: Gateway) -> None:
    answers = Answers(good=COMMIT, bad=ROLLBACK)
    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", answers) as producer,
    ):
        await producer.begin(Message("T", b"good", tags="a", properties={"colour": "blue"}))
        await producer.begin(Message("T", b"bad"))
        left = await producer.send_in_transaction(Message("T", b"later"), lambda _: UNKNOWN)
        assert left.state is UNKNOWN
        await soon(lambda: gateway.bodies("T") == [b"good"], "the commit after a question")
        await soon(lambda: len(gateway.broker.native.transactions) == 1, "the rollback after a question")
        answers.states["later"] = COMMIT
        await soon(lambda: gateway.bodies("T") == [b"good", b"later"], "the late commit")
    asked = next(message for message in answers.asked if message.body == b"good")
    assert (asked.topic, asked.tags, asked.properties["colour"]) == ("T", "a", "blue")
    assert asked.queue.broker_name == "broker-a"


async def test_an_error_of_the_application_leaves_the_transaction_to_the_check(gateway: Gateway) -> None:
    def fail(message_id: str) -> TransactionState:
        raise KeyError("no such account")

    answers = Answers(open=COMMIT)
    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", answers) as producer,
    ):
        with pytest.raises(KeyError):
            await producer.send_in_transaction(Message("T", b"open"), fail)
        await soon(lambda: gateway.bodies("T") == [b"open"], "the commit after a question")


async def test_a_check_that_fails_or_says_nonsense_is_asked_again(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def check(message: ReceivedMessage) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("not now")
        return "yes" if calls == 2 else COMMIT

    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", check) as producer,
    ):
        await producer.begin(Message("T", b"body"))
        await soon(lambda: gateway.bodies("T") == [b"body"], "the commit after three questions")
        values = {metric.name: metric.value for metric in producer.metrics()}
    assert values["iotmq_client_transaction_checks_failed_total"] == 2
    assert "returns COMMIT, ROLLBACK or UNKNOWN" in caplog.text or "invalid result" in caplog.text


async def test_questions_past_the_maximum_are_dropped(gateway: Gateway) -> None:
    go_on = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        await go_on.wait()
        return COMMIT

    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", check) as producer,
    ):
        assert producer._checks_max == TRANSACTION_CHECKS_IN_FLIGHT_MAX
        producer._checks_max = 2
        for number in range(3):
            await producer.begin(Message("T", b"%d" % number))

        def dropped() -> float:
            values = {metric.name: metric.value for metric in producer.metrics()}
            return values["iotmq_client_transaction_checks_dropped_total"]

        await soon(lambda: dropped() > 0, "a question too many")
        assert len(producer._checks) == 2
        go_on.set()
        await soon(lambda: len(gateway.bodies("T")) == 3, "all three are asked about in the end")


async def test_another_member_of_the_group_answers_for_one_that_is_gone(gateway: Gateway) -> None:
    answers = Answers(orphan=COMMIT)
    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", Answers()) as producer,
    ):
        await producer.begin(Message("T", b"orphan"))
    # Another group of the same client is not asked.
    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", answers, topics=("T", "NoSuchTopic")),
        TransactionProducer(client, "payments", never, topics=("T",)),
    ):
        await soon(lambda: b"orphan" in gateway.bodies("T"), "the commit by the other member")


async def test_transactions_outlive_a_restart_of_the_broker(gateway: Gateway) -> None:
    answers = Answers(asked=COMMIT)
    async with (
        IotmqClient(gateway.client_settings) as client,
        TransactionProducer(client, "orders", answers) as producer,
    ):
        transaction = await producer.begin(Message("T", b"explicit"), check_after_s=600)
        await producer.begin(Message("T", b"asked"), check_after_s=1)
        await gateway.stop_broker()
        with pytest.raises(IotmqError):
            await transaction.commit()
        await gateway.start_broker()
        # The producer is silent, and is asked on a connection that it has made again.
        await soon(lambda: b"asked" in gateway.bodies("T"), "the commit after a question")
        await transaction.commit()
        assert sorted(gateway.bodies("T")) == [b"asked", b"explicit"]


def test_the_blocking_producer_checks_on_its_own_threads(tmp_path: Path) -> None:
    with running(tmp_path) as (gateway, run), SyncClient(gateway.client_settings) as client:
        threads: list[str] = []

        def check(message: ReceivedMessage) -> TransactionState:
            threads.append(threading.current_thread().name)
            return COMMIT

        with SyncTransactionProducer(client, "orders", check) as producer:
            done = producer.begin(Message("T", b"one"), check_after_s=60)
            done.commit()
            assert done.state is COMMIT
            producer.begin(Message("T", b"two"), check_after_s=60).rollback()
            three = producer.send_in_transaction(
                Message("T", b"three"),
                lambda message_id: threads.append(threading.current_thread().name) or COMMIT,
                check_after_s=60,
            )
            assert three.message_id
            producer.begin(Message("T", b"four"))
            producer.send(Message("T", b"plain"))
            run(soon(lambda: len(gateway.bodies("T")) == 4, "the commit after a question"))
        assert sorted(gateway.bodies("T")) == [b"four", b"one", b"plain", b"three"]
        assert threads
        assert all(name.startswith("iotmq-orders") for name in threads)


class running:  # noqa: N801 - used as a function
    """A gateway on a thread of its own, for blocking clients."""

    def __init__(self, directory: Path) -> None:
        self._gateway = Gateway(directory)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def __enter__(self) -> tuple[Gateway, Callable[[Any], Any]]:
        self._thread.start()
        self._run(self._gateway.start())
        return self._gateway, self._run

    def __exit__(self, *error: object) -> None:
        self._run(self._gateway.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


# --- requests ---------------------------------------------------------------------------------------


async def replying(client: IotmqClient, answer: Callable[[ReceivedMessage], bytes]) -> PushConsumer:
    """A consumer of `questions` that replies to what it gets."""
    replier = Replier(client)

    async def listen(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            await replier.reply(message, answer(message), tags="reply", properties={"by": "service"})

    consumer = PushConsumer(
        client,
        "service",
        listen,
        settings=PushConsumerSettings(consume_from="first", parallel_batches=8, batch_max=1),
    )
    await consumer.subscribe("questions")
    return consumer


async def test_a_request_gets_its_reply(gateway: Gateway) -> None:
    gateway.broker.topics.ensure("questions", queues=2)
    async with (
        IotmqClient(gateway.client_settings) as service,
        IotmqClient(gateway.client_settings) as client,
        await replying(service, lambda message: message.body.upper()),
        Requester(client) as requester,
    ):
        reply = await requester.request(Message("questions", b"hello", tags="a"), timeout_ms=10_000)
        assert reply.body == b"HELLO"
        assert (reply.topic, reply.tags, reply.properties["by"]) == (
            "DefaultCluster_REPLY_TOPIC",
            "reply",
            "service",
        )
        assert reply.properties["REPLY_TO_CLIENT"] == client.client_id
        replies = await asyncio.gather(
            *(requester.request(Message("questions", b"q%d" % n), timeout_ms=10_000) for n in range(50))
        )
        assert [each.body for each in replies] == [b"Q%d" % n for n in range(50)]
    assert sorted(gateway.bodies("DefaultCluster_REPLY_TOPIC")) == sorted(
        [b"HELLO", *(b"Q%d" % n for n in range(50))]
    )


async def test_each_requester_of_a_client_gets_its_own_replies(gateway: Gateway) -> None:
    gateway.broker.topics.ensure("questions", queues=1)
    async with (
        IotmqClient(gateway.client_settings) as client,
        await replying(client, lambda message: message.body + b"!"),
        Requester(client, "one") as one,
        Requester(client, "two") as two,
    ):
        first, second = await asyncio.gather(
            one.request(Message("questions", b"1"), timeout_ms=10_000),
            two.request(Message("questions", b"2"), timeout_ms=10_000),
        )
        assert (first.body, second.body) == (b"1!", b"2!")


async def test_a_client_that_asked_as_an_operator_before_gets_its_replies(gateway: Gateway) -> None:
    """Its connection to the broker is there before it knows a route of that broker."""
    gateway.broker.topics.ensure("questions", queues=1)
    settings = replace(gateway.client_settings, heartbeat_ms=60_000)
    async with (
        IotmqClient(gateway.client_settings) as service,
        IotmqClient(settings) as client,
        await replying(service, lambda message: message.body + b"!"),
        Requester(client) as requester,
    ):
        await client.request(gateway.broker.address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        reply = await requester.request(Message("questions", b"now"), timeout_ms=5_000)
        assert reply.body == b"now!"


async def test_a_request_without_a_reply_times_out(gateway: Gateway) -> None:
    async with IotmqClient(gateway.client_settings) as client, Requester(client) as requester:
        with pytest.raises(RequestTimeoutError, match="no reply"):
            await requester.request(Message("questions", b"anybody?"), timeout_ms=1_000)
        assert requester._waiting == {}
        assert gateway.bodies("questions") == [b"anybody?"]


async def test_so_many_requests_may_wait_and_no_more(gateway: Gateway) -> None:
    settings = ProducerSettings(in_flight_max=2)
    async with IotmqClient(gateway.client_settings) as client:
        requester = Requester(client, settings=settings)
        await requester.start()
        waiting = [
            asyncio.ensure_future(requester.request(Message("questions", b"?"), timeout_ms=60_000))
            for _ in range(2)
        ]
        await soon(lambda: len(gateway.bodies("questions")) == 2, "both are asked")
        with pytest.raises(ProducerBusyError):
            await requester.request(Message("questions", b"?"))
        await requester.stop()
        for request in waiting:
            with pytest.raises(ConnectionClosedError, match="stopped"):
                await request


async def test_a_reply_that_comes_too_late_is_an_error_to_who_replies(gateway: Gateway) -> None:
    gateway.broker.topics.ensure("questions", queues=1)
    got: list[ReceivedMessage] = []

    def listen(messages: list[ReceivedMessage]) -> None:
        got.extend(messages)

    consumer_settings = PushConsumerSettings(consume_from="first")
    async with (
        IotmqClient(gateway.client_settings) as service,
        IotmqClient(gateway.client_settings) as client,
    ):
        consumer = PushConsumer(service, "service", listen, settings=consumer_settings)
        await consumer.subscribe("questions")
        replier = Replier(service)
        async with consumer:
            async with Requester(client) as requester:
                with pytest.raises(RequestTimeoutError):
                    await requester.request(Message("questions", b"quick!"), timeout_ms=50)
                await soon(lambda: bool(got), "the question arrives")
                with pytest.raises(BrokerError, match="waits for a reply"):
                    await replier.reply(got[0], b"slow")
            with pytest.raises(BrokerError, match="not connected"):
                await replier.reply(got[0], b"slower")
            await requester.start()
            await requester._producer.send(Message("questions", b"no question"))
            await soon(lambda: len(got) == 2, "the message arrives")
            with pytest.raises(ClientError, match="is not a request"):
                await replier.reply(got[1], b"?")
            await requester.stop()


def test_blocking_requests_and_replies(tmp_path: Path) -> None:
    with (
        running(tmp_path) as (gateway, _),
        SyncClient(gateway.client_settings) as client,
        SyncClient(gateway.client_settings) as service,
    ):
        with SyncProducer(service) as producer:
            producer.send(Message("questions", b"warm"))
        replier = SyncReplier(service)

        def listen(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                if message.body != b"warm":
                    replier.reply(message, b"re: " + message.body)

        settings = PushConsumerSettings(consume_from="first")
        consumer = SyncPushConsumer(service, "service", listen, settings=settings)
        consumer.subscribe("questions")
        with consumer, SyncRequester(client) as requester:
            assert requester.request(Message("questions", b"hi"), timeout_ms=10_000).body == b"re: hi"
