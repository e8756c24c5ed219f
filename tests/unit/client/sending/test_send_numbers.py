"""Idempotent producers: numbers of requests, and what they make of tries that were stored or lost."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import CLOSE_AFTER, SILENT, FakeBroker
from numbering_broker import NumberingBroker
from running_producer import running

from iotmq.client.sending import send_numbers
from iotmq.client.sending.send_numbers import SendNumbers, marked_batch, marked_properties
from iotmq.client.transport.message import Message
from iotmq.errors import BrokerError, MessageRefusedError, RequestTimeoutError
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


def bodies_of(broker: FakeBroker) -> list[bytes]:
    return sorted(broker.stored_bodies("T"))


async def test_what_was_stored_and_not_answered_is_not_stored_again() -> None:
    broker = NumberingBroker(queues=2)
    broker.script[BATCH].append(CLOSE_AFTER)
    broker.script[SEND].append(CLOSE_AFTER)
    async with running(broker, idempotent=True) as producer:
        results = await asyncio.gather(
            *(producer.send(Message("T", b"%d" % number, key="k")) for number in range(5))
        )
        alone = await producer.send(Message("T", b"5"))
        more = await producer.send_batch([Message("T", b"6"), Message("T", b"7")])
    assert broker.found == 2
    assert bodies_of(broker) == [b"%d" % number for number in range(8)]
    # Nobody tells where an earlier try was stored.
    assert [result.queue_offset for result in [*results, alone]] == [-1] * 6
    assert len({result.queue for result in results}) == 1
    assert [result.count for result in more] == [2]
    assert all(request.ext.get("isRepeat") is None for request in broker.requests)


async def test_every_kind_of_send_is_numbered_but_transactions() -> None:
    broker = NumberingBroker(queues=2)
    async with running(broker, idempotent=True) as producer:
        await producer.send(Message("T", b"1"))
        await producer.send(Message("T", b"2", delay_ms=1))
        await producer.send(Message("T", b"3" * 5_000, key="k"))
        await producer.send(Message("T", b"4"), queue=1)
        await producer.send_batch([Message("T", b"5")])
        await producer.send_encoded_batch("T", None, encode_batch([(b"6", b"", 0)]), 1)
        half = producer._prepare(Message("T", b"7"), None, None)
        half.sys_flag |= 4
        await producer._start(half)
    sends = [request for request in broker.requests if request.code in (SEND, BATCH)]
    assert [request.ext.get("isNumbered") for request in sends] == ["true"] * 6 + [None]
    assert len(broker.stored_bodies("T")) == 7


async def test_a_broker_that_has_forgotten_gets_a_new_batch_of_numbers() -> None:
    broker = NumberingBroker()
    # That it has forgotten costs no try.
    async with running(broker, idempotent=True, tries_max=1) as producer:
        for number in range(3):
            await producer.send(Message("T", b"%d" % number))
        broker.last.clear()
        await producer.send(Message("T", b"3"))
        await producer.send(Message("T", b"4"))
    assert bodies_of(broker) == [b"%d" % number for number in range(5)]
    assert list(broker.last.values()) == [(1, 1)]


async def test_after_a_send_of_unknown_fate_new_numbers_begin() -> None:
    broker = NumberingBroker()
    async with running(broker, idempotent=True, send_timeout_ms=100) as producer:
        await producer.send(Message("T", b"0"))
        broker.script[SEND].append(SILENT)
        with pytest.raises(RequestTimeoutError):
            await producer.send(Message("T", b"lost"))
        assert (await producer.send(Message("T", b"1"))).queue_offset == 1
        broker.script[SEND].append(13)
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"refused"))
        await producer.send(Message("T", b"2"))
    assert bodies_of(broker) == [b"0", b"1", b"2"]
    assert list(broker.last.values()) == [(2, 0)]


async def test_a_broker_that_does_not_know_numbers_is_refused() -> None:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    async with running(broker, idempotent=True) as producer:
        results = await asyncio.gather(
            *(producer.send(Message("T", b"")) for _ in range(2)), return_exceptions=True
        )
    assert [type(result) for result in results] == [BrokerError] * 2
    assert "without `idempotent`" in str(results[0])
    assert broker.stored_bodies("T") == []


def test_numbers_go_round_into_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_numbers, "NUMBER_MAX", 1)
    numbers = SendNumbers("p")
    seen = []
    for _ in range(3):
        seen.append(numbers.mark(7))
        numbers.stored()
    assert seen == [
        f"BATCH_NUMBER\x01p {batch} {number} 0 7\x02" for batch, number in ((0, 0), (0, 1), (1, 0))
    ]
    assert numbers.restart()
    assert not numbers.restart()


@pytest.mark.parametrize(
    ("properties", "marked"), [(b"", b"M"), (b"a\x01b\x02", b"a\x01b\x02M"), (b"a\x01b", b"a\x01b\x02M")]
)
def test_a_mark_stands_behind_the_other_properties(properties: bytes, marked: bytes) -> None:
    assert marked_properties(properties.decode(), "M").encode() == marked
    elements = encode_batch([(b"body", properties, -3), (b"next", b"x\x01y\x02", 4)])
    joined = b"".join(marked_batch(elements, "M"))
    assert joined == encode_batch([(b"body", marked, -3), (b"next", b"x\x01y\x02", 4)])


async def test_properties_without_room_for_the_number_are_refused_and_fail_no_other_message() -> None:
    broker = NumberingBroker()
    body = b"x" * 5_000
    room = send_numbers.PROPERTIES_BYTES_MAX - 128

    async with running(broker, idempotent=True, compress_bytes_min=4_096) as producer:
        await producer.queues("T")
        around = len(Message("T", b"", key="k", properties={"A": ""}).encoded_properties("U" * 32))
        # At the limit, with the longest mark there is.
        longest = SendNumbers("0" * 32 + "-" + "9" * 10)
        longest._batch, longest._number = 10**20, send_numbers.NUMBER_MAX
        assert len(longest.mark(32_768)) <= 128
        largest, larger = ({"A": "v" * (room - around + more)} for more in (0, 1))
        bodies = (b"1", b"2", body)
        futures = [
            producer.send_nowait(Message("T", each, key="k", properties=largest)) for each in bodies
        ]
        for each in (b"3", body):
            with pytest.raises(MessageRefusedError, match=f"may take {room}"):
                producer.send_nowait(Message("T", each, key="k", properties=larger))
        await asyncio.gather(*futures)
    assert len(broker.stored_bodies("T")) == 3
