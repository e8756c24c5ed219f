"""The producer against scripted brokers: tries, timeouts, choice of queue, batches, limits."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import pytest
from fake_broker import CLOSE, CLOSE_AFTER, SILENT, FakeBroker, FakeRegistry, split_batch
from running_producer import running

from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message, SendStatus
from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ConfigError,
    MessageRefusedError,
    NotSupportedError,
    ProducerBusyError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendFailedError,
)
from iotmq.limits import BATCH_RECORDS_MAX
from iotmq.message.bodies import inflate_body
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.remoting.codes import BATCH_COMPRESSION_FIELD, LanguageCode, RequestCode, Version
from iotmq.remoting.command import Command
from iotmq.remoting.server import Listening, RemotingServer, ServerConnection

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


async def test_what_waits_for_room_while_the_producer_stops_is_not_sent() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    held: list[tuple[ServerConnection, Command]] = []
    answer_of = broker.answer

    def hold(connection: ServerConnection, request: Command) -> Command | None:
        answer = answer_of(connection, request)
        if request.code != SEND or answer is None:
            return answer
        held.append((connection, answer))
        return None

    broker.answer = hold  # type: ignore[method-assign]
    async with running(broker, in_flight_max=1) as producer:
        first = asyncio.ensure_future(producer.send(Message("T", b"first")))
        while not held:  # noqa: ASYNC110 - a fake has no event to wait for
            await asyncio.sleep(0.001)
        waiting = [asyncio.ensure_future(producer.send(Message("T", b"second")))]
        waiting.append(asyncio.ensure_future(producer.send_batch([Message("T", b"third")])))
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(0)
        ((connection, answer),) = held
        connection.reply(answer)
        await stopping
        assert (await first).count == 1
        for send in waiting:
            with pytest.raises(ClientClosedError, match="stopped before"):
                await send
        assert producer.in_flight == 0
    assert broker.stored_bodies("T") == [b"first"]


async def test_a_message_is_stored_with_its_properties() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        result = await producer.send(Message("T", b"hello", tags="a", key="k", flag=9))
    assert result.status is SendStatus.SEND_OK
    assert result.queue == MessageQueue("T", "broker-a", 0)
    assert (result.queue_offset, result.count, len(result.offset_message_ids)) == (0, 1, 1)
    record = decode_record(broker.topics["T"][0][0])
    assert (record.body, record.flag) == (b"hello", 9)
    assert decode_properties(record.properties) == {"KEYS": "k", "TAGS": "a", "UNIQ_KEY": result.message_id}


async def test_messages_without_a_key_go_round_the_queues() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 4)
    async with running(broker) as producer:
        results = [await producer.send(Message("T", b"")) for _ in range(8)]
    assert Counter(result.queue.queue_id for result in results) == {0: 2, 1: 2, 2: 2, 3: 2}


async def test_one_key_stays_on_one_queue_over_all_brokers() -> None:
    brokers = FakeBroker("a"), FakeBroker("b")
    for broker in brokers:
        broker.add_topic("T", 3)
    async with running(*brokers) as producer:
        queues = await producer.queues("T")
        assert len(queues) == 6
        for key in ("x", "y", "device-77"):
            results = [await producer.send(Message("T", b"", key=key)) for _ in range(3)]
            assert {result.queue for result in results} == {queues[queue_of_key(key, 6)]}


async def test_an_unknown_topic_is_made_by_the_first_message() -> None:
    broker = FakeBroker()
    async with running(broker, new_topic_queues=2) as producer:
        queues = await producer.queues("new")
        assert [queue.queue_id for queue in queues] == [0, 1]
        await producer.send(Message("new", b"first"))
    assert broker.stored_bodies("new") == [b"first"]
    (request,) = broker.seen(SEND)
    assert (request.ext["c"], request.ext["d"]) == ("TBW102", "2")


async def test_without_a_template_the_error_says_what_to_do() -> None:
    broker = FakeBroker(auto_create=False)
    async with running(broker) as producer:
        with pytest.raises(RouteNotFoundError, match=r"no route for topic new.*Create the topic"):
            await producer.send(Message("new", b""))


async def test_without_a_registry_the_error_names_it() -> None:
    broker = FakeBroker()
    async with running(broker) as producer:
        address = producer.registry.address
        await producer.registry.stop()
        with pytest.raises(RouteNotFoundError, match=f"no registry answered: no connection to {address}: "):
            await producer.send(Message("new", b""))


async def test_the_next_registry_takes_over() -> None:
    broker = FakeBroker()
    broker.add_topic("T")
    dead, registry = FakeRegistry(broker), FakeRegistry(broker)
    await dead.start()
    await dead.stop()
    for role in (broker, registry):
        await role.start()
    settings = ClientSettings(registries=(dead.address, registry.address))
    async with IotmqClient(settings) as client, Producer(client) as producer:
        assert (await producer.send(Message("T", b""))).status is SendStatus.SEND_OK
    await broker.stop()
    await registry.stop()


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_stored_with_a_weaker_promise_is_a_result(code: int) -> None:
    broker = FakeBroker()
    broker.add_topic("T")
    broker.script[SEND].append(code)
    async with running(broker) as producer:
        result = await producer.send(Message("T", b""))
    assert result.status.value == code


async def test_another_broker_is_tried_after_a_refusal() -> None:
    brokers = FakeBroker("a"), FakeBroker("b")
    for broker in brokers:
        broker.add_topic("T", 1)
    brokers[0].script[SEND].extend([14, 14])
    async with running(*brokers) as producer:
        result = await producer.send(Message("T", b"x"))
        assert result.queue.broker_name == "b"
        # The refusing one rests: round-robin passes it by.
        more = [await producer.send(Message("T", b"x")) for _ in range(4)]
    assert {result.queue.broker_name for result in more} == {"b"}
    assert len(brokers[0].seen(SEND)) == 1


class DeposedBroker(FakeBroker):
    """A member of a replicated broker that is not master for some sends."""

    refusals = 0

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == SEND and self.refusals:
            self.refusals -= 1
            return request.reply(14, remark="the master is member 2", ext={"isMaster": "false"})
        return super().answer(connection, request)


async def test_a_member_that_is_not_master_costs_no_try() -> None:
    broker = DeposedBroker()
    broker.add_topic("T", 1)
    broker.refusals = 2
    async with running(broker, tries_max=1) as producer:
        result = await producer.send(Message("T", b"x"))
    assert result.status is SendStatus.SEND_OK
    assert [request.ext.get("isRepeat") for request in broker.seen(SEND)] == [None] * 3, "nothing was stored"


async def test_a_member_that_is_never_master_is_asked_until_the_time_is_over() -> None:
    broker = DeposedBroker()
    broker.add_topic("T", 1)
    broker.refusals = 1_000
    async with running(broker, send_timeout_ms=700) as producer:
        with pytest.raises(RequestTimeoutError):
            await producer.send(Message("T", b"x"))
    assert len(broker.seen(SEND)) == 2, "with pauses of half a second"


async def test_at_most_three_tries() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].extend([1, 14, 1, 1])
    async with running(broker) as producer:
        with pytest.raises(SendFailedError, match="failed 3 times") as caught:
            await producer.send(Message("T", b""))
    assert isinstance(caught.value.__cause__, BrokerError)
    assert len(broker.seen(SEND)) == 3


@pytest.mark.parametrize("code", [2, 13])
async def test_what_another_try_cannot_cure_fails_at_once(code: int) -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].append(code)
    async with running(broker) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send(Message("T", b""))
    assert caught.value.code == code
    assert len(broker.seen(SEND)) == 1


async def test_a_topic_its_only_broker_does_not_know_fails_with_advice() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].append(17)
    async with running(broker) as producer:
        with pytest.raises(BrokerError, match=r"enable broker\.auto_create_topics"):
            await producer.send(Message("T", b""))


async def test_a_missing_answer_is_a_timeout_and_no_new_try() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].append(SILENT)
    async with running(broker, send_timeout_ms=60) as producer:
        with pytest.raises(RequestTimeoutError, match="may be stored"):
            await producer.send(Message("T", b""))
        assert producer.in_flight == 0
        result = await producer.send(Message("T", b""), timeout_ms=30_000)
        assert result.status is SendStatus.SEND_OK
    assert len(broker.seen(SEND)) == 2


async def test_a_shorter_timeout_of_one_send_ends_only_that_one() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].extend([SILENT, SILENT])
    async with running(broker, send_timeout_ms=5_000) as producer:
        await producer.queues("T")
        slow = producer.send_nowait(Message("T", b"slow"))
        with pytest.raises(RequestTimeoutError):
            await producer.send(Message("T", b"fast"), timeout_ms=30)
        assert not slow.done()
        slow.cancel()


@pytest.mark.parametrize(("step", "stored"), [(CLOSE, 1), (CLOSE_AFTER, 2)])
async def test_a_lost_connection_is_another_try(step: str, stored: int) -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].append(step)
    async with running(broker) as producer:
        result = await producer.send(Message("T", b"x", key="k"))
    assert result.status is SendStatus.SEND_OK
    # At least once: a broker that stored it and died before the answer has it twice.
    assert broker.stored_bodies("T") == [b"x"] * stored


async def test_sends_wait_for_a_broker_that_is_away_for_a_moment() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 2)
    async with running(broker) as producer:
        await producer.send(Message("T", b"before"))
        port = broker.server.port
        await broker.stop()
        waiting = [
            producer.send_nowait(Message("T", b"%d" % number, key=str(number))) for number in range(20)
        ]
        await asyncio.sleep(0.05)
        assert not any(future.done() for future in waiting)
        broker.server = RemotingServer(broker, Listening(port=port))
        await broker.start()
        results = await asyncio.gather(*waiting)
    assert len(results) == 20
    assert set(broker.stored_bodies("T")) == {b"before", *(b"%d" % number for number in range(20))}


async def test_a_broker_that_stays_away_ends_with_the_send_timeout() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 2)
    async with running(broker, send_timeout_ms=80) as producer:
        await producer.send(Message("T", b""))
        await broker.stop()
        with pytest.raises(RequestTimeoutError, match="was reachable in time"):
            await producer.send(Message("T", b""))


async def test_a_moved_broker_is_found_by_its_new_route() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 2)
    async with running(broker) as producer:
        await producer.send(Message("T", b"1"))
        await broker.stop()
        broker.server = type(broker.server)(broker)
        await broker.start()
        assert (await producer.send(Message("T", b"2"))).status is SendStatus.SEND_OK


async def test_oneway_asks_for_no_answer() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        await producer.send_oneway(Message("T", b"a"))
        await producer.send(Message("T", b"b"))
    assert broker.stored_bodies("T") == [b"a", b"b"]
    assert broker.seen(SEND)[0].is_oneway


async def test_a_batch_is_one_request_per_queue() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 4)
    messages = [Message("T", b"%d" % number, key=f"k{number % 7}", flag=number) for number in range(50)]
    async with running(broker) as producer:
        results = await producer.send_batch([*messages, Message("T", b"no key")])
    requests = broker.seen(BATCH)
    assert len(requests) == len(results) <= 4
    assert all(request.ext["m"] == "true" for request in requests)
    assert sum(result.count for result in results) == 51
    for queue in broker.topics["T"]:
        flags = [decode_record(record).flag for record in queue]
        keyed = [flag for flag in flags if flag]
        assert keyed == sorted(keyed)
    unique = {
        decode_properties(decode_record(r).properties)["UNIQ_KEY"] for q in broker.topics["T"] for r in q
    }
    assert len(unique) == 51
    assert {result.message_id for result in results} <= unique


async def test_a_batch_past_the_size_is_split() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, body_bytes_max=1000) as producer:
        results = await producer.send_batch([Message("T", b"x" * 400) for _ in range(6)])
        with pytest.raises(MessageRefusedError, match="body_bytes_max"):
            await producer.send_batch([Message("T", b"x" * 1000)])
    assert [result.count for result in results] == [2, 2, 2]
    assert all(len(request.body) <= 1000 for request in broker.seen(BATCH))


async def test_the_parts_of_a_split_batch_keep_the_order_of_keys_over_all_tries() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    bodies = [b"%03d" % number for number in range(6)]
    async with running(broker, body_bytes_max=100, linger_ms=5_000) as producer:
        broker.script[RequestCode.SEND_BATCH_MESSAGE].append(1)
        await producer.send_batch([Message("T", body, key="k") for body in bodies])
    assert broker.stored_bodies("T") == bodies
    assert len(broker.seen(RequestCode.SEND_BATCH_MESSAGE)) > 2


async def test_a_failed_part_of_a_batch_raises_and_says_what_is_stored() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[BATCH].append(13)
    async with running(broker, body_bytes_max=1000) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send_batch([Message("T", b"x" * 400) for _ in range(4)])
    assert caught.value.__notes__ == ["2 of 4 messages of this call are stored"]


async def test_delayed_messages_cannot_be_in_a_batch() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        with pytest.raises(MessageRefusedError, match="send them singly"):
            await producer.send_batch([Message("T", b"", delay_level=1)])
        assert await producer.send_batch([]) == []


async def test_an_encoded_batch_is_sent_as_it_is() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 2)
    elements = encode_batch([(b"%d" % number, b"", number) for number in range(100)])
    async with running(broker) as producer:
        queue = (await producer.queues("T"))[1]
        result = await producer.send_encoded_batch("T", queue, elements, 100)
        await producer.send_encoded_batch_nowait("T", None, memoryview(elements), 100)
    assert (result.queue, result.queue_offset, result.count) == (queue, 0, 100)
    assert [bytes(request.body) for request in broker.seen(BATCH)] == [elements, elements]
    assert len(split_batch(elements)) == 100


async def test_encoded_batches_past_a_limit_are_refused() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, body_bytes_max=100) as producer:
        await producer.send_encoded_batch("T", None, encode_batch([(b"x" * 78, b"", 0)]), 1)
        with pytest.raises(MessageRefusedError, match="split it"):
            await producer.send_encoded_batch("T", None, encode_batch([(b"x" * 79, b"", 0)]), 1)
        for count in (0, BATCH_RECORDS_MAX + 1):
            with pytest.raises(MessageRefusedError, match="split it"):
                await producer.send_encoded_batch("T", None, b"x", count)
        with pytest.raises(MessageRefusedError, match="not one of topic"):
            await producer.send_encoded_batch("T", MessageQueue("U", "broker-a", 0), b"x", 1)


@pytest.mark.parametrize(("compression", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
async def test_only_large_single_bodies_are_compressed(compression: str, flag: int) -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, compress_bytes_min=100, compression=compression) as producer:
        await producer.send(Message("T", b"x" * 99))
        await producer.send(Message("T", b"x" * 100))
        await producer.send_batch([Message("T", b"x" * 5000)])
    flags = [decode_record(record).sys_flag for record in broker.topics["T"][0]]
    assert flags == [0, flag, 0]


async def test_a_compression_without_its_library_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"compression: zstd needs .* 'iotmq\[compression\]'"):
        async with running(compression="zstd"):
            pass


@pytest.mark.parametrize(("compression", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
async def test_batches_are_compressed_for_brokers_that_say_they_open_them(
    compression: str, flag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    answer_of = broker.answer
    told = {BATCH_COMPRESSION_FIELD: f"other,{compression}"}

    def answer(connection: ServerConnection, request: Command) -> Command | None:
        if request.code == RequestCode.HEART_BEAT:
            return request.reply(0, ext=told)
        flags.append(int(request.ext.get("f", "0")))
        if request.code == BATCH and flags[-1]:
            request.body = inflate_body(request.body_bytes(), flags[-1])
        return answer_of(connection, request)

    flags: list[int] = []
    broker.answer = answer  # type: ignore[method-assign]
    bodies = [b"telemetry %d" % number for number in range(500)]
    messages = [Message("T", body) for body in bodies]
    async with running(broker, compress_batches=True, compression=compression) as producer:
        # The answer to the heartbeat of a new connection comes before that to the first batch.
        await producer.send_batch(messages)
        await producer.send_batch(messages)
        await producer.send_batch(messages[:2])
        assert flags == [0, flag, 0]
        # What is forgotten with a connection is asked again.
        told.clear()
        await broker.restart()
        await producer.send_batch(messages)
        await producer.send_batch(messages)
        assert set(flags[3:]) == {0}
    assert broker.stored_bodies("T") == bodies * 2 + bodies[:2] + bodies * 2


async def test_a_body_at_the_limit_passes_and_one_past_it_does_not() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, body_bytes_max=10) as producer:
        await producer.send(Message("T", b"x" * 10))
        with pytest.raises(MessageRefusedError, match="allowed are 10"):
            await producer.send(Message("T", b"x" * 11))


async def test_nowait_refuses_past_the_limit_and_send_waits() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[BATCH].append(SILENT)
    async with running(broker, in_flight_max=2, send_timeout_ms=100) as producer:
        await producer.queues("T")
        silent = [producer.send_nowait(Message("T", b"")) for _ in range(2)]
        with pytest.raises(ProducerBusyError, match="await room"):
            producer.send_nowait(Message("T", b""))
        result = await producer.send(Message("T", b"later"), timeout_ms=30_000)
        assert result.status is SendStatus.SEND_OK
        assert [type(error) for error in await asyncio.gather(*silent, return_exceptions=True)] == [
            RequestTimeoutError
        ] * 2


async def test_room_for_bytes_is_limited_too() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, in_flight_bytes_max=100, compress_bytes_min=0) as producer:
        await producer.queues("T")
        first = producer.send_nowait(Message("T", b"x" * 100))
        with pytest.raises(ProducerBusyError):
            producer.send_nowait(Message("T", b"x"))
        await producer.room()
        assert first.done()
        producer.send_nowait(Message("T", b"x"))


async def test_many_waiting_senders_all_get_their_turn() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 4)
    async with running(broker, in_flight_max=3) as producer:
        results = await asyncio.gather(*(producer.send(Message("T", b"%d" % n)) for n in range(200)))
    assert len(results) == 200
    assert len(set(broker.stored_bodies("T"))) == 200


async def test_a_cancelled_send_frees_its_room() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].append(SILENT)
    async with running(broker, in_flight_max=1) as producer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send(Message("T", b"")), 0.03)
        assert producer.in_flight == 0
        await producer.send(Message("T", b""))


async def test_a_cancelled_waiter_does_not_keep_the_room_it_was_given() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].append(SILENT)
    async with running(broker, in_flight_max=1) as producer:
        await producer.queues("T")
        silent = producer.send_nowait(Message("T", b""))
        first = asyncio.ensure_future(producer.send(Message("T", b"1")))
        second = asyncio.ensure_future(producer.send(Message("T", b"2")))
        while not broker.seen(SEND):  # noqa: ASYNC110 - a fake has no event to wait for
            await asyncio.sleep(0.001)
        silent.add_done_callback(lambda _: first.cancel())
        silent.cancel()
        assert (await asyncio.wait_for(second, 30)).status is SendStatus.SEND_OK


async def test_stopping_waits_for_what_is_in_flight() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        await producer.queues("T")
        futures = [producer.send_nowait(Message("T", b"")) for _ in range(10)]
        await producer.stop()
        assert all(future.done() for future in futures)
        with pytest.raises(ClientClosedError, match="not started"):
            await producer.send(Message("T", b""))
    assert broker.seen(RequestCode.UNREGISTER_CLIENT)[0].ext["producerGroup"] == "pg"


async def test_a_client_must_be_started() -> None:
    with pytest.raises(ClientClosedError, match=r"async with iotmq\.connect"):
        await Producer(IotmqClient()).start()


def test_a_bad_registry_address_is_named() -> None:
    with pytest.raises(ConfigError, match="registries: invalid address: 'nowhere'"):
        IotmqClient(ClientSettings(registries=("nowhere",)))


async def test_counters() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.script[SEND].extend([14, 13])
    async with running(broker) as producer:
        await producer.send_batch([Message("T", b"")] * 5)
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b""))
        numbers = {metric.name: metric.value for metric in producer.metrics()}
    assert numbers == {
        "iotmq_client_sent_total": 5,
        "iotmq_client_send_failed_total": 1,
        "iotmq_client_send_retried_total": 1,
        "iotmq_client_sends_in_flight": 0,
    }


class _OfRocketmq(FakeBroker):
    """Says that it is one of RocketMQ's, of this version."""

    version = 0

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        answer = super().answer(connection, request)
        if answer is not None:
            answer.language, answer.version = LanguageCode.JAVA, self.version
        return answer


@pytest.mark.parametrize("delay", [{"delay_ms": 60_000}, {"deliver_at_ms": 1_900_000_000_000}])
async def test_a_broker_that_would_deliver_at_once_is_not_sent_a_time(delay: dict[str, int]) -> None:
    """The last of 4.9 does not know them, the first of 5.0 does."""
    broker = _OfRocketmq()
    broker.version = Version.HAS_TIMERS - 1
    broker.add_topic("T", 1)
    message = Message("T", b"later", **delay)  # type: ignore[arg-type]
    async with running(broker) as producer:
        await producer.send(Message("T", b"now"))
        with pytest.raises(NotSupportedError, match="broker-a is one of RocketMQ 4"):
            await producer.send(message)
        with pytest.raises(NotSupportedError, match="use delay_level"):
            await producer.send_oneway(message)
        assert broker.stored_bodies("T") == [b"now"]
        broker.version = Version.HAS_TIMERS
        await producer.send(message)
        heartbeats = len(broker.seen(RequestCode.HEART_BEAT))
        await producer.send(message)
        assert len(broker.seen(RequestCode.HEART_BEAT)) == heartbeats, "asked once for each connection"
        assert broker.stored_bodies("T") == [b"now", b"later", b"later"]


async def test_a_broker_is_asked_about_times_again_after_its_connection_was_lost() -> None:
    broker = _OfRocketmq()
    broker.version = Version.HAS_TIMERS
    broker.add_topic("T", 1)
    async with running(broker) as producer:
        await producer.send(Message("T", b"later", delay_ms=1_000))
        broker.version = Version.HAS_TIMERS - 1
        broker.script[SEND].append(CLOSE)
        with pytest.raises(NotSupportedError):
            await producer.send(Message("T", b"lost", delay_ms=1_000))
        assert broker.stored_bodies("T") == [b"later"]
