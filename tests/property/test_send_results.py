"""Whatever becomes of requests, each message has the result of its own, and those of a key stay in order."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest
from fake_broker import CLOSE, CLOSE_AFTER
from hypothesis import given, settings
from hypothesis import strategies as st
from numbering_broker import NumberingBroker
from running_producer import running

from iotmq.client.sending import send_tries
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message, SendResult
from iotmq.errors import IotmqError
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import RequestCode

QUEUES = 2
# A refusal for good, an illegal request, and one that another try may cure; connections that are lost before
# and after it was stored.
STEPS = (2, 13, 14, CLOSE, CLOSE_AFTER)

steps = st.lists(st.none() | st.sampled_from(STEPS), max_size=5)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["", "", "a", "b", "ключ"]),
            "queue": st.none() | st.integers(0, QUEUES - 1),
            "is_large": st.booleans(),
            "is_last_of_turn": st.booleans(),
            "is_cancelled": st.sampled_from([False, False, False, True]),
        }
    ),
    min_size=1,
    max_size=24,
)
producer_settings = st.fixed_dictionaries(
    {
        "batch_records_max": st.integers(1, 6),
        "linger_ms": st.sampled_from([0, 1]),
        "idempotent": st.booleans(),
        "compress_bytes_min": st.just(0),
        "body_bytes_max": st.just(400),
    }
)


@pytest.fixture(autouse=True, scope="module")
def _short_rests() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_tries, "_REST_S_MIN", 0.001)
        patch.setattr(send_tries, "_REST_S_MAX", 0.002)
        yield


@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(messages, steps, steps, producer_settings)
def test_results_belong_to_their_messages_whatever_fails(
    plan: list[dict[str, Any]], alone: list[Any], shared: list[Any], chosen: dict[str, Any]
) -> None:
    asyncio.run(_compare(plan, alone, shared, chosen))


async def _compare(
    plan: list[dict[str, Any]], alone: list[Any], shared: list[Any], chosen: dict[str, Any]
) -> None:
    broker = NumberingBroker(queues=QUEUES)
    async with running(broker, **chosen) as producer:
        await producer.queues("T")
        broker.script[RequestCode.SEND_MESSAGE_V2].extend(alone)
        broker.script[RequestCode.SEND_BATCH_MESSAGE].extend(shared)
        futures = await _send(producer, plan)
        ends = await asyncio.gather(*futures, return_exceptions=True)
        await producer.drain()
        counted = {metric.name: metric.value for metric in producer.metrics()}
    assert producer.in_flight == 0
    assert counted["iotmq_client_sent_total"] + counted["iotmq_client_send_failed_total"] == len(plan)
    stored = {
        (queue_id, offset): decode_record(record).body
        for queue_id, queue in enumerate(broker.topics["T"])
        for offset, record in enumerate(queue)
    }
    times = Counter(body.split()[0] for body in stored.values())
    message_ids = set()
    for number, end in enumerate(ends):
        name = b"%d" % number
        if isinstance(end, SendResult):
            message_ids.add(end.message_id)
            assert times[name] >= 1
            if end.queue_offset >= 0:
                assert stored[end.queue.queue_id, end.queue_offset].split()[0] == name
            else:
                assert chosen["idempotent"]
        else:
            assert isinstance(end, IotmqError | asyncio.CancelledError)
    assert len(message_ids) == sum(isinstance(end, SendResult) for end in ends)
    if chosen["idempotent"]:
        assert set(times.values()) <= {1}
    by_key = defaultdict(list)
    for body in stored.values():
        number = int(body.split()[0])
        where = plan[number]["key"], plan[number]["queue"]
        if where != ("", None) and number not in by_key[where]:
            by_key[where].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def _send(producer: Producer, plan: list[dict[str, Any]]) -> list[asyncio.Future[SendResult]]:
    futures = []
    for number, one in enumerate(plan):
        # A large one is too large for a batch with another.
        body = b"%d " % number + b"x" * (300 if one["is_large"] else 0)
        message = Message("T", body, key=one["key"])
        futures.append(producer.send_nowait(message, queue=one["queue"]))
        if one["is_cancelled"]:
            futures[-1].cancel()
        if one["is_last_of_turn"]:
            await asyncio.sleep(0)
    return futures
