"""Single messages that share requests: who waits for whom, and what of a request comes to each message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from fake_broker import CLOSE, SILENT, FakeBroker, split_batch
from running_producer import running

from iotmq.client.sending import waiting_sends
from iotmq.client.sending.message_elements import encode_element
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message, SendResult
from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import (
    BrokerError,
    ConfigError,
    MessageRefusedError,
    ProducerBusyError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.limits import BATCH_RECORDS_MAX
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


class HoldingBroker(FakeBroker):
    """A broker that keeps its answers to sends until it is told."""

    def __init__(self, *, queues: int = 1) -> None:
        super().__init__()
        self.add_topic("T", queues)
        self.answers: list[tuple[ServerConnection, Command]] = []
        self.has_more = asyncio.Event()
        self.is_holding = True

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        answer = super().answer(connection, request)
        if not self.is_holding or request.code not in (SEND, BATCH) or answer is None:
            return answer
        self.answers.append((connection, answer))
        self.has_more.set()
        return None

    async def has_held(self, count: int) -> None:
        while len(self.answers) < count:
            self.has_more.clear()
            await self.has_more.wait()

    def release(self) -> None:
        self.is_holding = False
        for connection, answer in self.answers:
            connection.reply(answer)

    @property
    def batches(self) -> list[list[bytes]]:
        """The bodies of each request, in the order of their coming."""
        return [
            [bytes(request.body)]
            if request.code == SEND
            else [body for body, _, _ in split_batch(bytes(request.body))]
            for request in self.requests
            if request.code in (SEND, BATCH)
        ]


def send_all(producer: Producer, bodies: Sequence[bytes], key: str = "") -> list[asyncio.Future[SendResult]]:
    return [producer.send_nowait(Message("T", body, key=key)) for body in bodies]


async def test_sends_of_one_turn_share_a_request_and_have_a_result_each() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 4)
    async with running(broker) as producer:
        results = await asyncio.gather(
            *(producer.send(Message("T", b"%d" % number, tags="a", flag=number)) for number in range(50))
        )
        assert producer.in_flight == 0
    assert len(broker.seen(BATCH)) == 1
    assert not broker.seen(SEND)
    assert [result.queue_offset for result in results] == list(range(50))
    assert len({result.queue for result in results}) == 1
    assert {result.count for result in results} == {1}
    assert len({result.message_id for result in results}) == 50
    assert len({tuple(result.offset_message_ids) for result in results}) == 50
    records = [decode_record(record) for queue in broker.topics["T"] for record in queue]
    assert [record.body for record in records] == [b"%d" % number for number in range(50)]
    assert [record.flag for record in records] == list(range(50))
    for record, result in zip(records, results, strict=True):
        assert result.message_id.encode() in record.properties


async def test_what_comes_while_a_request_is_under_way_shares_the_next_one() -> None:
    broker = HoldingBroker()
    async with running(broker) as producer:
        futures = send_all(producer, [b"first"], "k")
        await broker.has_held(1)
        for number in range(10):
            futures += send_all(producer, [b"%d" % number], "k")
            await asyncio.sleep(0)
        broker.release()
        offsets = [(await future).queue_offset for future in futures]
    assert broker.batches == [[b"first"], [b"%d" % number for number in range(10)]]
    assert offsets == list(range(11))


async def test_each_queue_has_a_request_under_way_of_its_own() -> None:
    broker = HoldingBroker(queues=3)
    async with running(broker) as producer:
        queues = await producer.queues("T")
        keys = {queue_of_key(key, 3): key for key in map(str, range(20))}
        futures = [producer.send_nowait(Message("T", b"", key=keys[number])) for number in range(3)]
        futures += [producer.send_nowait(Message("T", b"x"), queue=queues[1])]
        await broker.has_held(3)
        # Messages without a key take turns, whoever waits at the queue.
        futures += send_all(producer, [b"any"])
        await broker.has_held(4)
        broker.release()
        results = [await future for future in futures]
    assert [result.queue for result in results[:4]] == [*queues, queues[1]]
    assert sorted(broker.batches[:3]) == [[b""], [b""], [b"", b"x"]]


@pytest.mark.parametrize("limit", [3, 4])
async def test_as_many_messages_as_a_request_may_have_share_it(limit: int) -> None:
    broker = HoldingBroker()
    async with running(broker, batch_records_max=limit) as producer:
        futures = send_all(producer, [b"0"], "k")
        await broker.has_held(1)
        futures += send_all(producer, [b"1", b"2", b"3", b"4"], "k")
        broker.release()
        await asyncio.gather(*futures)
    assert [len(batch) for batch in broker.batches] == ([1, 3, 1] if limit == 3 else [1, 4])


@pytest.mark.parametrize("spare", [0, -1])
async def test_as_many_bytes_as_a_request_may_have_share_it(spare: int) -> None:
    broker = HoldingBroker()
    # Two elements of 22 bytes, the body, the unique key and the key.
    size = 2 * (22 + 10 + 42 + 7) + spare
    async with running(broker, batch_bytes_max=size) as producer:
        futures = send_all(producer, [b"0"], "k")
        await broker.has_held(1)
        futures += send_all(producer, [b"x" * 10] * 2, "k")
        broker.release()
        await asyncio.gather(*futures)
    assert [len(batch) for batch in broker.batches] == ([1, 2] if spare == 0 else [1, 1, 1])


async def test_a_message_larger_than_a_batch_goes_by_itself() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, batch_bytes_max=100) as producer:
        await asyncio.gather(*send_all(producer, [b"x" * 200, b"y" * 200]))
    assert broker.stored_bodies("T") == [b"x" * 200, b"y" * 200]
    assert len(broker.seen(SEND)) == 2


async def test_lingering_ends_with_enough_messages() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, linger_ms=9_000, batch_records_max=3) as producer:
        await producer.queues("T")
        for key in ("", "k"):
            futures = send_all(producer, [b"1", b"2"], key)
            await asyncio.sleep(0.01)
            assert not any(future.done() for future in futures)
            await asyncio.gather(*futures, *send_all(producer, [b"3"], key))
    assert len(broker.seen(BATCH)) == 2


async def test_lingering_ends_with_its_time() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, linger_ms=1) as producer:
        assert (await producer.send(Message("T", b"1"))).queue_offset == 0
        assert (await producer.send(Message("T", b"2", key="k"))).queue_offset == 1


async def test_nobody_lingers_while_somebody_waits_for_room_or_for_the_end() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, linger_ms=9_000, in_flight_max=2) as producer:
        futures = send_all(producer, [b"1", b"2"])
        waiting = asyncio.ensure_future(producer.send(Message("T", b"3", key="k")))
        await asyncio.gather(*futures)
        while not producer.in_flight:  # noqa: ASYNC110 - nothing tells that it has begun to linger
            await asyncio.sleep(0)
        await producer.drain()
        assert waiting.done() or (await waiting).queue_offset == 2
        last = send_all(producer, [b"4"])
    assert (await last[0]).queue_offset == 3


async def test_lingering_past_the_timeout_is_refused() -> None:
    async with running(FakeBroker()) as producer:
        ProducerSettings(linger_ms=99, send_timeout_ms=100)
        with pytest.raises(ConfigError, match="less than send_timeout_ms"):
            Producer(producer._client, "p", ProducerSettings(linger_ms=100, send_timeout_ms=100))


async def test_the_error_of_a_request_comes_to_each_of_its_messages() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[BATCH].append(16)
    async with running(broker) as producer:
        results = await asyncio.gather(*send_all(producer, [b"1", b"2", b"3"]), return_exceptions=True)
        numbers = {metric.name: metric.value for metric in producer.metrics()}
    assert [type(result) for result in results] == [BrokerError] * 3
    assert numbers["iotmq_client_send_failed_total"] == 3
    assert numbers["iotmq_client_sends_in_flight"] == 0


async def test_the_messages_of_an_illegal_request_go_one_by_one() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[BATCH].append(13)
    broker.script[SEND].extend([None, 13])
    async with running(broker) as producer:
        await producer.queues("T")
        futures = send_all(producer, [b"1", b"2", b"3"], "k")
        await asyncio.sleep(0)
        futures += send_all(producer, [b"4", b"5"], "k")
        results = await asyncio.gather(*futures, return_exceptions=True)
        numbers = {metric.name: metric.value for metric in producer.metrics()}
    assert [isinstance(result, SendResult) for result in results] == [True, False, True, True, True]
    assert broker.stored_bodies("T") == [b"1", b"3", b"4", b"5"]
    assert numbers["iotmq_client_send_failed_total"] == 1
    assert numbers["iotmq_client_sent_total"] == 4
    assert numbers["iotmq_client_sends_in_flight"] == 0


def elements(*bodies: bytes) -> tuple[bytes, int]:
    return b"".join(encode_element(Message("T", body), "K" * 32) for body in bodies), len(bodies)


async def test_elements_of_several_callers_share_a_request_with_messages() -> None:
    broker = HoldingBroker()
    async with running(broker) as producer:
        (queue,) = await producer.queues("T")
        assert producer.known_queues("T") == (queue,)
        assert not producer.known_queues("unknown")
        futures = [producer.send_elements_nowait(queue, *elements(b"1"))]
        await broker.has_held(1)
        futures += [
            producer.send_elements_nowait(queue, *elements(*each)) for each in ((b"2", b"3"), (b"4",))
        ]
        futures += [producer.send_nowait(Message("T", b"5"), queue=queue)]
        futures += [producer.send_elements_nowait(queue, *elements(b"6", b"7", b"8"))]
        assert producer.in_flight == 5
        broker.release()
        results = [await future for future in futures]
        numbers = {metric.name: metric.value for metric in producer.metrics()}
    assert broker.batches == [[b"1"], [b"2", b"3", b"4", b"5", b"6", b"7", b"8"]]
    assert [(each.queue_offset, each.count) for each in results] == [(0, 1), (1, 2), (3, 1), (4, 1), (5, 3)]
    assert [bool(each.message_id) for each in results] == [False, False, False, True, False]
    assert (numbers["iotmq_client_sent_total"], numbers["iotmq_client_sends_in_flight"]) == (8, 0)


@pytest.mark.parametrize("limit", [4, 5])
async def test_elements_count_for_what_a_request_may_have(limit: int) -> None:
    broker = HoldingBroker()
    async with running(broker, batch_records_max=limit) as producer:
        (queue,) = await producer.queues("T")
        futures = [producer.send_elements_nowait(queue, *elements(b"0"))]
        await broker.has_held(1)
        pieces = ([b"1"] * 2, [b"2"] * 3, [b"3"], [b"4"] * 9)
        futures += [producer.send_elements_nowait(queue, *elements(*piece)) for piece in pieces]
        broker.release()
        await asyncio.gather(*futures)
    # Those of one caller are never torn apart.
    assert [len(batch) for batch in broker.batches] == ([1, 2, 4, 9] if limit == 4 else [1, 5, 1, 9])


async def test_elements_of_an_illegal_request_go_caller_by_caller() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[BATCH].extend([13, None, 13])
    async with running(broker) as producer:
        (queue,) = await producer.queues("T")
        pieces = ([b"1", b"2"], [b"3", b"4", b"5"], [b"6", b"7"])
        futures = [producer.send_elements_nowait(queue, *elements(*piece)) for piece in pieces]
        results = await asyncio.gather(*futures, return_exceptions=True)
        numbers = {metric.name: metric.value for metric in producer.metrics()}
    assert [isinstance(result, SendResult) for result in results] == [True, False, True]
    assert broker.stored_bodies("T") == [b"1", b"2", b"6", b"7"]
    assert numbers["iotmq_client_send_failed_total"] == 3
    assert numbers["iotmq_client_sent_total"] == 4
    assert numbers["iotmq_client_sends_in_flight"] == 0


async def test_elements_past_the_limits_are_refused() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    whole, _ = elements(b"12345")
    async with running(broker, body_bytes_max=len(whole), in_flight_max=1) as producer:
        (queue,) = await producer.queues("T")
        for wrong in ((b"", 1), (whole + b"x", 1), (whole, 0), (whole, BATCH_RECORDS_MAX + 1)):
            with pytest.raises(MessageRefusedError):
                producer.send_elements_nowait(queue, *wrong)
        assert producer.joins_sends
        stored = producer.send_elements_nowait(queue, whole, 1)
        assert not producer.joins_sends
        with pytest.raises(ProducerBusyError):
            producer.send_elements_nowait(queue, whole, 1)
        assert (await stored).queue_offset == 0


async def test_an_idempotent_producer_numbers_elements_too() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, idempotent=True) as producer:
        (queue,) = await producer.queues("T")
        with pytest.raises(BrokerError, match="numbered batches"):
            await producer.send_elements_nowait(queue, *elements(b"1"))


async def test_a_cancelled_send_takes_no_other_along() -> None:
    broker = HoldingBroker()
    async with running(broker) as producer:

        def send(number: int) -> asyncio.Future[SendResult]:
            return asyncio.ensure_future(producer.send(Message("T", b"%d" % number, key="k")))

        under_way = [send(number) for number in range(3)]
        await broker.has_held(1)
        waiting = [
            asyncio.ensure_future(producer.send(Message("T", b"%d" % n, key="k"))) for n in range(3, 6)
        ]
        await asyncio.sleep(0)
        for task in (under_way[1], waiting[1]):
            task.cancel()
        broker.release()
        results = await asyncio.gather(*under_way, *waiting, return_exceptions=True)
        assert producer.in_flight == 0
    assert [isinstance(result, SendResult) for result in results] == [True, False, True, True, False, True]
    # What is under way is stored all the same.
    assert broker.stored_bodies("T") == [b"0", b"1", b"2", b"3", b"5"]


async def test_the_order_of_a_queue_holds_over_lost_connections_and_refusals() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 2)
    broker.script[BATCH].extend([CLOSE, 14])
    async with running(broker, batch_records_max=10) as producer:
        await producer.queues("T")
        futures = [producer.send_nowait(Message("T", b"%d" % n, key="k")) for n in range(100)]
        await asyncio.gather(*futures)
    assert broker.stored_bodies("T") == [b"%d" % number for number in range(100)]


async def test_a_large_message_keeps_its_place_among_those_of_its_key() -> None:
    broker = HoldingBroker()
    bodies = [b"a", b"b", b"large" * 2_000, b"d", b"e"]
    async with running(broker) as producer:
        futures = send_all(producer, [b"first"], "k")
        await broker.has_held(1)
        futures += send_all(producer, bodies, "k")
        broker.release()
        offsets = [(await future).queue_offset for future in futures]
        assert producer.in_flight == 0
    assert offsets == list(range(6))
    assert [len(batch) for batch in broker.batches] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_level": 1},
        {"delay_ms": 5},
        {"deliver_at_ms": 5},
        {"wait_stored": False},
        {"properties": {"DELAY": "1"}},
        {"properties": {"REPLY_TO_CLIENT": "x"}},
        {"properties": {"TIMER_DELIVER_MS": "1"}},
    ],
)
async def test_what_a_batch_cannot_carry_goes_alone(fields: dict[str, object]) -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        messages = [Message("T", b"", **fields) for _ in range(2)]  # type: ignore[arg-type]
        await asyncio.gather(*(producer.send_nowait(message) for message in messages))
        await asyncio.gather(*(producer.send_nowait(message, timeout_ms=900) for message in messages))
        await asyncio.gather(*send_all(producer, [b"1", b"2"]))
    assert (len(broker.seen(SEND)), len(broker.seen(BATCH))) == (4, 1)


async def test_waiting_behind_a_request_counts_as_part_of_the_timeout() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].append(SILENT)
    async with running(broker, send_timeout_ms=150) as producer:
        await producer.queues("T")
        first = send_all(producer, [b"1"], "k")
        await asyncio.sleep(0.05)
        broker.script[BATCH].append(SILENT)
        started_s = asyncio.get_running_loop().time()
        behind = send_all(producer, [b"2", b"3"], "k")
        impatient = producer.send_nowait(Message("T", b"4", key="k"), timeout_ms=20)
        with pytest.raises(RequestTimeoutError, match="was reachable"):
            await impatient
        assert not first[0].done()
        results = await asyncio.gather(*first, *behind, return_exceptions=True)
        took_s = asyncio.get_running_loop().time() - started_s
    assert [type(result) for result in results] == [RequestTimeoutError] * 3
    assert took_s >= 0.149
    assert [len(batch.body) > 0 for batch in broker.seen(BATCH)] == [True]


async def test_messages_with_a_key_wait_for_the_route_and_fail_without_one() -> None:
    broker = FakeBroker(auto_create=False)
    async with running(broker) as producer:
        futures = [producer.send_nowait(Message("new", b"", key=str(n))) for n in range(3)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [RouteNotFoundError] * 3
        broker.add_topic("TBW102", 4)
        futures = [producer.send_nowait(Message("new", b"%d" % n, key=str(n))) for n in range(9)]
        results = await asyncio.gather(*futures)
    assert sorted(broker.stored_bodies("new")) == [b"%d" % number for number in range(9)]


async def test_names_that_no_broker_takes_are_refused_at_once() -> None:
    async with running(FakeBroker()) as producer:
        with pytest.raises(MessageRefusedError, match="invalid topic name"):
            producer.send_nowait(Message("a b", b""))
        with pytest.raises(MessageRefusedError, match="not one of topic"):
            producer.send_nowait(Message("T", b""), queue=MessageQueue("U", "broker-a", 0))
        assert producer.in_flight == 0


async def test_topics_with_nothing_under_way_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_sends, "_IDLE_TOPICS_MAX", 3)
    broker = HoldingBroker()
    for number in range(4):
        broker.add_topic(f"T{number}")
    async with running(broker) as producer:
        busy = send_all(producer, [b""], "k")
        await broker.has_held(1)
        broker.is_holding = False
        for number in range(4):
            await producer.send(Message(f"T{number}", b""))
            assert len(producer._lanes._intake.topics) <= 3
        assert "T" in producer._lanes._intake.topics
        broker.release()
        await asyncio.gather(*busy)


async def test_the_end_waits_for_the_messages_of_a_refused_request_which_go_once_more() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        await producer.queues("T")
        broker.script[BATCH].append(13)
        futures = send_all(producer, [b"1", b"2", b"3"], key="k")
        await producer.drain()
        assert [future.result().queue_offset for future in futures] == [0, 1, 2]


async def test_an_answer_that_is_nonsense_is_an_error_that_names_the_queue() -> None:
    class Garbling(FakeBroker):
        def answer(self, connection: ServerConnection, request: Command) -> Command | None:
            answer = super().answer(connection, request)
            if answer is not None and request.code in (SEND, BATCH):
                answer.ext["queueOffset"] = "ninth"
            return answer

    broker = Garbling()
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        alone = producer.send_nowait(Message("T", b"1"), timeout_ms=5_000)
        for future in (*send_all(producer, [b"2", b"3"]), alone):
            with pytest.raises(BrokerError, match=r"broker-a.*queue_id=0.*cannot be read.*ninth"):
                await future
    assert broker.stored_bodies("T") == [b"1", b"2", b"3"]


async def test_a_stop_waits_for_the_messages_of_an_illegal_request() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[BATCH].append(13)
    async with running(broker) as producer:
        await producer.queues("T")
        futures = send_all(producer, [b"1", b"2"], "k")
        await producer.stop()
        assert [future.result().queue_offset for future in futures] == [0, 1]
