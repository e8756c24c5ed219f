"""Bad brokers: each class of client has the outcome that docs/reference/native-client.md names.

A broker disappears, is silent, answers bytes that are no frame, or nonsense, moves, or loses a topic. All use
it at the same time, and go on when it is well again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from eventually import until
from faulty_broker import FaultyBroker, no_frame, nonsense, silence

from iotmq.client import (
    IotmqClient,
    Message,
    PopConsumer,
    PopConsumerSettings,
    PoppedMessage,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
    ReceivedMessage,
    SyncClient,
    TransactionState,
)
from iotmq.errors import (
    BrokerError,
    ClientError,
    ConnectionClosedError,
    IotmqError,
    ReceiptExpiredError,
    RequestTimeoutError,
    SendFailedError,
)
from iotmq.remoting.codes import ResponseCode

SHORT = ProducerSettings(send_timeout_ms=500)
WAIT_MS = 500
HELD = {"hold_ms": 100, "pull_timeout_ms": 300}

Do = Callable[[], Awaitable[Any]]
SENDERS = ("send", "send_nowait", "send_batch", "begin", "blocking send")
READERS = ("getmany", "getmany of a group", "getmany_columns", "blocking getmany", "pop")


class Users:
    """One of each, with what it does; `seen` is what listeners got, by their names."""

    def __init__(self, cluster: FaultyBroker, client: IotmqClient, blocking: SyncClient) -> None:
        self._cluster = cluster
        self._client = client
        self._blocking = blocking
        self.do: dict[str, Do] = {}
        self.seen: dict[str, list[bytes]] = {}

    async def start(self) -> None:
        client, do = self._client, self.do
        producer = await client.producer("p", SHORT)
        await producer.send_batch([Message("T", b"%d" % number) for number in range(20)])
        do["send"] = lambda: producer.send(Message("T", b"x"))
        do["send_nowait"] = lambda: producer.send_nowait(Message("T", b"x"))
        do["send_batch"] = lambda: producer.send_batch([Message("T", b"x")])
        prepared = await client.transaction_producer("tp", lambda message: TransactionState.UNKNOWN, SHORT)
        transaction = await prepared.begin(Message("T", b"x"))
        do["begin"] = lambda: prepared.begin(Message("T", b"x"))
        do["end"] = transaction.commit
        requester = await client.requester("r", SHORT)
        do["request"] = lambda: requester.request(Message("T", b"x"), timeout_ms=WAIT_MS)
        await self._start_readers()
        do["offsets"] = lambda: client.admin.offsets("T")
        do["admin"] = lambda: client.admin.configurations.topics()
        await asyncio.to_thread(self._start_blocking)
        # Last, because what they hold they hold for a second.
        await self._start_pops()

    async def _start_readers(self) -> None:
        client, do = self._client, self.do
        alone = await client.pull_consumer("g1", PullConsumerSettings(**HELD))  # type: ignore[arg-type]
        columns = await client.pull_consumer("g2", PullConsumerSettings(**HELD))  # type: ignore[arg-type]
        for consumer in (alone, columns):
            # From the end on: what is fetched ahead before the broker is bad would be returned.
            ends = {queue: await consumer.end_offset(queue) for queue in await consumer.queues("T")}
            await consumer.assign(ends)
        group = client.pull_consumer("g3", PullConsumerSettings(consume_from="last", **HELD))  # type: ignore[arg-type]
        await group.subscribe("T")
        await group.start()
        await group.seek_to_end()
        do["getmany"] = lambda: alone.getmany(timeout_ms=WAIT_MS)
        do["getmany_columns"] = lambda: columns.getmany_columns(timeout_ms=WAIT_MS)
        do["getmany of a group"] = lambda: group.getmany(timeout_ms=WAIT_MS)
        do["commit"] = lambda: group.commit(dict.fromkeys(group.assigned, 0))
        for name in ("push", "orderly", "columns"):
            await self._start_push(name)

    async def _start_push(self, name: str) -> None:
        seen = self.seen[name] = []

        async def listen(messages: list[ReceivedMessage]) -> None:
            seen.extend(message.body for message in messages)

        consumer = self._client.push_consumer(
            f"push-{name}",
            None if name == "columns" else listen,
            columns_listener=(lambda queue, columns: seen.extend([b""] * len(columns)))
            if name == "columns"
            else None,
            settings=PushConsumerSettings(
                orderly=name == "orderly", consume_from="first", rebalance_ms=100, **HELD
            ),  # type: ignore[arg-type]
        )
        await consumer.subscribe("T")
        await consumer.start()
        await until(lambda: len(seen) == 20)
        seen.clear()

    async def _start_pops(self) -> None:
        async def popping(group: str, invisible_ms: int) -> PopConsumer:
            settings = PopConsumerSettings(
                consume_from="first", hold_ms=100, pop_timeout_ms=300, held_max=64, invisible_ms=invisible_ms
            )
            consumer = self._client.pop_consumer(group, settings)
            await consumer.subscribe("T")
            await consumer.start()
            return consumer

        settler, reader = await popping("g4", 1_000), await popping("g5", 60_000)
        held: list[PoppedMessage] = []
        seen = 0
        while not held or seen < 20:
            held += await settler.getmany(timeout_ms=100)
            messages = await reader.getmany(timeout_ms=100)
            await reader.ack(messages)
            seen += len(messages)
        self.do["pop"] = lambda: reader.getmany(timeout_ms=WAIT_MS)
        self.do["ack"] = held[0].ack
        self.do["nak"] = held[1].nak

    def _start_blocking(self) -> None:
        client = self._blocking
        client.start()
        producer = client.producer("sp", SHORT)
        producer.start()
        consumer = client.pull_consumer("g6", PullConsumerSettings(**HELD))  # type: ignore[arg-type]
        consumer.start()
        consumer.assign({queue: consumer.end_offset(queue) for queue in consumer.queues("T")})
        self.do["blocking send"] = lambda: asyncio.to_thread(producer.send, Message("T", b"x"))
        self.do["blocking getmany"] = lambda: asyncio.to_thread(consumer.getmany, timeout_ms=WAIT_MS)

    def addresses(self) -> set[str | None]:
        """Where the clients believe the broker to be."""
        known = [client.routes.known("T") for client in (self._client, self._blocking.asynchronous)]
        return {None if route is None else route.master("broker-a") for route in known}

    async def outcomes(self) -> dict[str, Any]:
        """What everybody gets who asks now: a result, or an error."""
        async with asyncio.timeout(30):
            results = await asyncio.gather(*(do() for do in self.do.values()), return_exceptions=True)
        return dict(zip(self.do, results, strict=True))

    async def stop(self) -> None:
        await asyncio.to_thread(self._blocking.stop)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FaultyBroker]:
    cluster = FaultyBroker(tmp_path)
    cluster.settings["auto_create_topics"] = False
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def users(cluster: FaultyBroker) -> AsyncIterator[Users]:
    async with IotmqClient(cluster.client_settings) as client:
        users = Users(cluster, client, SyncClient(cluster.client_settings))
        await users.start()
        yield users
        cluster.answer = None
        await users.stop()


Class = type[BaseException]


def check(outcomes: dict[str, Any], expected: dict[str, tuple[Class, ...]]) -> None:
    """Everybody has one of the errors expected, which names topic and broker; who is not named has none."""
    for name, outcome in outcomes.items():
        kinds = expected.get(name)
        if kinds is None:
            assert not isinstance(outcome, BaseException), (name, outcome)
            continue
        assert type(outcome) in kinds, (name, outcome)
        # Who waits for a reply does not know which broker has it; a list is of all topics.
        assert "broker-a" in str(outcome) or (name == "request" and "topic T" in str(outcome)), (
            name,
            outcome,
        )
        words = ("topic T", "topic='T'", "T queue")
        assert any(word in str(outcome) for word in words) or name == "admin", (name, outcome)
        assert isinstance(outcome, IotmqError)


def all_of(names: tuple[str, ...], *kinds: Class) -> dict[str, tuple[Class, ...]]:
    return dict.fromkeys(names, kinds)


def nothing_of(outcomes: dict[str, Any]) -> None:
    """Those who read wait, and return nothing."""
    assert [outcomes[name] for name in READERS] == [[], [], None, [], []]


async def goes_on(users: Users) -> None:
    """Everybody goes on by itself: what is sent arrives everywhere."""
    for seen in users.seen.values():
        seen.clear()
    left = {*READERS}

    async def everybody_has_something() -> None:
        while left:
            await users.do["send"]()
            for name in sorted(left):
                try:
                    result = await users.do[name]()
                except IotmqError:
                    # What a call before had not raised.
                    continue
                if result is not None and len(result):
                    left.discard(name)

    async with asyncio.timeout(30):
        await everybody_has_something()
    await until(lambda: all(users.seen.values()))


async def test_a_broker_that_does_not_answer(cluster: FaultyBroker, users: Users) -> None:
    cluster.answer = silence
    outcomes = await users.outcomes()
    asking = (*SENDERS, "end", "request", "commit", "offsets", "admin", "ack", "nak")
    check(outcomes, all_of(asking, RequestTimeoutError))
    nothing_of(outcomes)
    assert not any(users.seen.values())
    cluster.answer = None
    await goes_on(users)


async def test_a_broker_that_sends_what_is_no_frame(cluster: FaultyBroker, users: Users) -> None:
    cluster.answer = no_frame
    outcomes = await users.outcomes()
    check(
        outcomes,
        {
            **all_of((*SENDERS, "request"), SendFailedError, RequestTimeoutError, ConnectionClosedError),
            **all_of(("end", "commit", "offsets", "admin", "ack", "nak"), ConnectionClosedError),
        },
    )
    nothing_of(outcomes)
    cluster.answer = None
    await goes_on(users)


async def test_a_broker_that_answers_nonsense(cluster: FaultyBroker, users: Users) -> None:
    cluster.answer = nonsense
    outcomes = await users.outcomes()
    # The end of a transaction, a commit and an acknowledgement have nothing to be read.
    check(
        outcomes,
        {
            **all_of((*SENDERS, "request", "offsets", "nak", *READERS), BrokerError),
            **all_of(("admin",), ClientError),
        },
    )
    assert not any(users.seen.values())
    cluster.answer = None
    await goes_on(users)


async def test_a_broker_that_disappears(cluster: FaultyBroker, users: Users) -> None:
    await cluster.vanish()
    outcomes = await users.outcomes()
    check(
        outcomes,
        {
            **all_of((*SENDERS, "request"), RequestTimeoutError),
            **all_of(("end", "commit", "offsets", "admin", "ack", "nak"), ConnectionClosedError),
        },
    )
    nothing_of(outcomes)
    await cluster.come_back()
    await goes_on(users)


async def test_a_broker_that_changes_its_address(cluster: FaultyBroker, users: Users) -> None:
    del users.do["request"]
    await cluster.come_back(elsewhere=True)
    # What is not tried again by itself fails until then.
    await until(lambda: users.addresses() == {cluster.broker.address})
    check(await users.outcomes(), {})
    await goes_on(users)


async def test_a_topic_that_vanishes(cluster: FaultyBroker, users: Users) -> None:
    cluster.broker._admin._removal.delete("T")
    outcomes = await users.outcomes()
    refused = (*SENDERS, *READERS[:-1], "end", "request", "commit", "offsets")
    check(outcomes, {**all_of(refused, BrokerError), **all_of(("ack", "nak"), ReceiptExpiredError)})
    codes = {getattr(outcome, "code", None) for name, outcome in outcomes.items() if name in refused}
    assert codes == {ResponseCode.TOPIC_NOT_EXIST}
    # It may be made again.
    assert outcomes["pop"] == []
    cluster.broker.topics.ensure("T", queues=2)
    await goes_on(users)
