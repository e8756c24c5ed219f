"""The trace in the background: bounds, failures, the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry

from iotmq import limits
from iotmq.client import ClientSettings, IotmqClient, Message, MessageTrace, PushConsumerSettings
from iotmq.client.transport.interceptors import Sending
from iotmq.errors import ClientError
from iotmq.remoting.codes import RequestCode
from iotmq.supervised import FAILURES

TRACES = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.add_topic(TRACES, 1)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def settings(broker: FakeBroker) -> AsyncIterator[ClientSettings]:
    registry = FakeRegistry(broker)
    await registry.start()
    yield ClientSettings(registries=(registry.address,), reconnect_ms_min=5)
    await registry.stop()


def entries(broker: FakeBroker) -> list[list[str]]:
    data = b"".join(broker.stored_bodies(TRACES)).decode()
    return [entry.split("\x01") for entry in data.split("\x02")[:-1]]


def sending(size: int = 1) -> Sending:
    return Sending("pg", [Message("T", b"")], time.perf_counter(), message_ids=["A" * size])


async def test_sends_and_calls_of_listeners_are_written_and_those_of_traces_are_not(
    broker: FakeBroker, settings: ClientSettings
) -> None:
    trace = MessageTrace(linger_ms=1)
    from_first = PushConsumerSettings(consume_from="first")
    got: list[str] = []
    async with IotmqClient(settings, interceptors=[trace]) as client:
        producer = await client.producer("pg")
        result = await producer.send(Message("T", b"body"))
        consumer = client.push_consumer(
            "cg", lambda messages: got.extend(each.topic for each in messages), settings=from_first
        )
        await consumer.subscribe("T")
        await consumer.subscribe(TRACES)
        async with consumer:
            await until(lambda: trace.written_total == 3)
            await until(lambda: TRACES in got)
    assert sorted(entry[0] for entry in entries(broker)) == ["Pub", "SubAfter", "SubBefore"]
    by_kind = {entry[0]: entry for entry in entries(broker)}
    assert {by_kind["Pub"][5], by_kind["SubBefore"][5], by_kind["SubAfter"][2]} == {result.message_id}
    assert by_kind["SubBefore"][4] == by_kind["SubAfter"][1]
    assert {metric.name: metric.value for metric in trace.metrics()} == {
        "iotmq_client_trace_entries_written_total": 3,
        "iotmq_client_trace_entries_dropped_total": 0,
        "iotmq_client_trace_entries_waiting": 0,
    }


async def test_what_pull_consumers_return_is_written(broker: FakeBroker, settings: ClientSettings) -> None:
    trace = MessageTrace(linger_ms=1)
    broker.store("T", 0, b"body", b"UNIQ_KEY\x01ID\x02")
    async with IotmqClient(settings, interceptors=[trace]) as client:
        async with client.pull_consumer("cg") as consumer:
            await consumer.assign(await consumer.queues("T"))
            assert len(await consumer.getmany()) == 1
        await until(lambda: trace.written_total == 2)
    assert sorted(entry[0] for entry in entries(broker)) == ["SubAfter", "SubBefore"]


async def test_many_are_written_together_and_the_rest_at_the_end(
    broker: FakeBroker, settings: ClientSettings
) -> None:
    trace = MessageTrace(linger_ms=60_000)
    async with IotmqClient(settings, interceptors=[trace]) as client:
        producer = await client.producer("pg")
        for _ in range(20):
            await producer.send(Message("T", b"body"))
        assert (trace.written_total, broker.stored_bodies(TRACES)) == (0, [])
    assert (trace.written_total, len(broker.stored_bodies(TRACES)), len(entries(broker))) == (20, 1, 20)


async def test_what_has_no_room_is_dropped() -> None:
    trace = MessageTrace(entries_max=3)
    for _ in range(3):
        trace.after_send(sending())
    assert trace.dropped_total == 0
    trace.after_send(sending())
    assert trace.dropped_total == 1

    trace = MessageTrace()
    for _ in range(limits.TRACE_ENTRIES_MAX + 1):
        trace.after_send(sending())
    assert trace.dropped_total == 1
    trace = MessageTrace(entries_max=10_000_000)
    size = limits.TRACE_BYTES_MAX // 8
    for _ in range(5):
        trace.after_send(sending(size - 1_000))
    # Too long as a key, but the id itself is in the entry, too.
    assert trace.dropped_total == 1


async def test_a_broker_that_takes_no_traces_delays_nothing(
    broker: FakeBroker, settings: ClientSettings
) -> None:
    trace = MessageTrace(linger_ms=1)
    async with IotmqClient(settings, interceptors=[trace]) as client:
        producer = await client.producer("pg")
        await producer.send(Message("T", b"first"))
        await until(lambda: trace.written_total == 1)
        broker.script[RequestCode.SEND_MESSAGE_V2].extend([0, 2])
        await producer.send(Message("T", b"second"))
        await until(lambda: trace.dropped_total == 1)
    assert trace.written_total == 1


async def test_a_trace_belongs_to_one_client(settings: ClientSettings) -> None:
    trace = MessageTrace()
    async with IotmqClient(settings, interceptors=[trace]):
        with pytest.raises(ClientError, match="belongs to one client"):
            await IotmqClient(settings, interceptors=[trace]).start()


async def test_what_is_being_written_at_the_end_is_written_and_counted(
    broker: FakeBroker, settings: ClientSettings
) -> None:
    broker.script[RequestCode.SEND_MESSAGE_V2] += [0, 1, 0]
    trace = MessageTrace(linger_ms=0)
    async with IotmqClient(settings, interceptors=[trace]) as client:
        producer = await client.producer("pg")
        await producer.send(Message("T", b"body"))
        # Its first try is refused, so the second one comes while the client ends.
        await until(lambda: len(broker.seen(RequestCode.SEND_MESSAGE_V2)) == 2)
    assert (trace.written_total, trace.dropped_total) == (1, 0)
    assert len(broker.seen(RequestCode.SEND_MESSAGE_V2)) == 3


def test_it_may_be_used_again_in_another_event_loop() -> None:
    trace = MessageTrace(linger_ms=0)

    async def use() -> None:
        broker = FakeBroker()
        broker.add_topic(TRACES, 1)
        registry = FakeRegistry(broker)
        for role in (broker, registry):
            await role.start()
        settings = ClientSettings(registries=(registry.address,))
        async with IotmqClient(settings, interceptors=[trace]) as client:
            # So that it waits for something to write.
            await asyncio.sleep(0)
            producer = await client.producer("pg")
            await producer.send(Message("T", b"body"))
            await until(lambda: len(broker.stored_bodies(TRACES)) == 1)
        for role in (broker, registry):
            await role.stop()

    failures = FAILURES.count("message trace")
    asyncio.run(use())
    asyncio.run(use())
    assert (trace.written_total, FAILURES.count("message trace") - failures) == (2, 0)
