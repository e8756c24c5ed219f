"""A producer whose brokers fall silent or go away, and that is stopped by somebody who does not wait."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest
from fake_broker import FakeBroker
from running_producer import running

from iotmq.client.sending.pending_send import PendingSend
from iotmq.client.sending.producer import Producer
from iotmq.client.sending.waiting_sends import WaitingSend
from iotmq.client.transport.message import Message, SendResult
from iotmq.client.transport.routes import queue_of_key
from iotmq.errors import BrokerError, ClientClosedError, RequestTimeoutError
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class SilentBroker(FakeBroker):
    """Takes connections and sends, and answers none of these while it is silent."""

    def __init__(self, name: str = "broker-a", *, queues: int = 2) -> None:
        super().__init__(name)
        self.add_topic("T", queues)
        self.is_silent = True
        self.unanswered: list[tuple[ServerConnection, Command]] = []
        self.has_more = asyncio.Event()

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if not self.is_silent or request.code not in SENDS:
            return super().answer(connection, request)
        self.unanswered.append((connection, request))
        self.has_more.set()
        return None

    def speak(self) -> None:
        """Carry out and answer everything."""
        self.is_silent = False
        for connection, request in self.unanswered:
            answer = super().answer(connection, request)
            assert answer is not None
            connection.reply(answer)


async def test_a_stop_goes_on_when_nobody_waits_for_it() -> None:
    broker = SilentBroker()
    async with running(broker) as producer:
        sent = producer.send_nowait(Message("T", b"held"))
        await broker.has_more.wait()
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()
        with pytest.raises(ClientClosedError):
            await producer.send(Message("T", b"late"))
        second = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(0)
        assert not second.done()
        broker.speak()
        await second
        assert sent.done()
        assert len(broker.seen(RequestCode.UNREGISTER_CLIENT)) == 1
        await producer.start()
        assert (await producer.send(Message("T", b"again"))).count == 1
    assert broker.stored_bodies("T") == [b"held", b"again"]
    assert len(broker.seen(RequestCode.UNREGISTER_CLIENT)) == 2


async def test_a_broker_that_never_answers_keeps_no_messages_from_the_others() -> None:
    silent, speaking = SilentBroker("a"), FakeBroker("b")
    speaking.add_topic("T", 2)
    async with running(silent, speaking, batch_records_max=1) as producer:
        await producer.queues("T")
        futures = [producer.send_nowait(Message("T", b"%d" % number)) for number in range(50)]
        left = set(futures)
        while len(left) > 2:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        # One for each of its queues, and no more.
        assert len(silent.unanswered) == 2
        assert len(speaking.stored_bodies("T")) == 48
        for future in left:
            future.cancel()


async def test_a_silent_broker_has_its_part_of_what_may_be_in_flight() -> None:
    silent, speaking = SilentBroker("a", queues=8), FakeBroker("b")
    speaking.add_topic("T", 8)
    async with running(silent, speaking, batch_records_max=10, in_flight_max=80) as producer:
        await producer.queues("T")
        for number in range(400):
            await producer.room()
            producer.send_nowait(Message("T", b"%d" % number))
        # 80 / 10 requests for two brokers.
        assert len(silent.unanswered) <= 4
        silent.speak()


async def test_a_broker_whose_answer_is_overdue_is_passed_by() -> None:
    silent, speaking = SilentBroker("a"), FakeBroker("b")
    speaking.add_topic("T", 2)
    async with running(silent, speaking, slow_answer_ms=60_000) as producer:
        await producer.queues("T")
        first = [producer.send_nowait(Message("T", b""), timeout_ms=30_000) for _ in range(4)]
        await silent.has_more.wait()
        given = producer._tries._by_turn["a"]
        for send in given:
            given[send] -= 60.1
        results = [await producer.send(Message("T", b""), timeout_ms=30_000) for _ in range(20)]
        assert {result.queue.broker_name for result in results} == {"b"}
        assert len(silent.unanswered) == 2
        silent.speak()
        await asyncio.gather(*first)
        assert not producer._tries._by_turn


def keys_of(queue: int, queue_count: int, count: int) -> list[str]:
    keys = (f"k{number}" for number in range(1_000))
    return [key for key in keys if queue_of_key(key, queue_count) == queue][:count]


async def test_messages_of_a_queue_that_is_gone_for_good_go_where_their_keys_lead_now() -> None:
    leaving, staying = SilentBroker("b", queues=1), FakeBroker("a")
    staying.add_topic("T", 1)
    async with running(leaving, staying) as producer:
        queues = await producer.queues("T")
        (key,) = keys_of(1, 2, 1)
        futures = [producer.send_nowait(Message("T", b"%d" % number, key=key)) for number in range(3)]
        pinned = [producer.send_nowait(Message("T", b"pinned"), queue=queues[1]) for _ in range(2)]
        await leaving.has_more.wait()
        # These wait behind the request under way.
        futures += [producer.send_nowait(Message("T", b"%d" % number, key=key)) for number in range(3, 6)]
        futures.append(producer.send_nowait(Message("T", b"alone", key=key), timeout_ms=30_000))
        producer.registry.brokers.remove(leaving)  # type: ignore[attr-defined]
        await leaving.stop()
        results = await asyncio.gather(*futures)
        assert {result.queue for result in results} == {queues[0]}
        assert [result.queue_offset for result in results] == list(range(7))
        # What was sent to the queue itself waits for it.
        assert not any(future.done() for future in pinned)
        assert producer.in_flight == 2
        leaving.is_silent = False
        producer.registry.brokers.append(leaving)  # type: ignore[attr-defined]
        await leaving.restart()
        assert {(await future).queue for future in pinned} == {queues[1]}
    assert staying.stored_bodies("T") == [b"%d" % number for number in range(6)] + [b"alone"]


async def test_a_queue_whose_broker_cannot_be_reached_is_waited_for() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, send_timeout_ms=80) as producer:
        await producer.queues("T")
        await broker.stop()
        futures = [producer.send_nowait(Message("T", b"", key="k")) for _ in range(2)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [RequestTimeoutError] * 2


class ForgettingBroker(FakeBroker):
    """Stores nothing."""

    refused = 0

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code not in SENDS:
            return super().answer(connection, request)
        self.requests.clear()
        if self.refused:
            return request.reply(self.refused)
        return request.reply(0, ext={"msgId": "", "queueId": request.ext["e"], "queueOffset": "0"})


def live_objects() -> Counter[str]:
    gc.collect()
    kinds = (asyncio.Future, PendingSend, WaitingSend, SendResult)
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))


async def send_many(producer: Producer, count: int) -> Counter[str]:
    """Send messages with and without keys, each to its end, and count how they end."""
    ends: Counter[str] = Counter()

    def ended(future: asyncio.Future[SendResult]) -> None:
        ends["cancelled" if future.cancelled() else type(future.exception()).__name__] += 1

    for number in range(count):
        if producer.in_flight == 10_000:
            await producer.drain()
        future = producer.send_nowait(Message("T", b"x", key=f"k{number % 7}" if number % 2 else ""))
        future.add_done_callback(ended)
        if number % 10_000 == 17:
            future.cancel()
    await producer.drain()
    # Callbacks run in the next turn.
    await asyncio.sleep(0)
    return ends


async def test_nothing_is_left_of_sends_that_have_ended() -> None:
    broker = ForgettingBroker()
    broker.add_topic("T", 4)
    async with running(broker) as producer:
        await send_many(producer, 100)
        before = live_objects()
        assert await send_many(producer, 100_000) == {"NoneType": 99_990, "cancelled": 10}
        left = live_objects()
        left.subtract(before)
        # The client itself waits for a few things, now and then.
        assert all(count < 20 for count in left.values()), left
        broker.refused = 16
        assert await send_many(producer, 10_000) == {BrokerError.__name__: 9_999, "cancelled": 1}
        broker.refused = 13
        assert await send_many(producer, 500) == {BrokerError.__name__: 499, "cancelled": 1}
        after = live_objects()
        assert (after["PendingSend"], after["WaitingSend"]) == (before["PendingSend"], before["WaitingSend"])
        assert not producer._tries._retries
