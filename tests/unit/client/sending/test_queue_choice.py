"""Queues chosen by the sender: themselves, by number, or by a function."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import FakeBroker
from running_producer import running

from iotmq.client.sending.queue_choice import QueueChoice, chosen_queue
from iotmq.client.transport.message import Message
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import MessageRefusedError

QUEUES = tuple(MessageQueue("T", "broker-a", number) for number in range(3))


@pytest.mark.parametrize("choice", [QUEUES[1], 1, lambda queues: queues[1]])
async def test_every_kind_of_send_goes_to_the_chosen_queue(choice: QueueChoice) -> None:
    broker = FakeBroker()
    broker.add_topic("T", 3)
    async with running(broker) as producer:
        results = await asyncio.gather(
            producer.send(Message("T", b"1"), queue=choice),
            producer.send(Message("T", b"2", key="k"), queue=choice),
            producer.send(Message("T", b"3", delay_ms=1), queue=choice),
            producer.send(Message("T", b"4", wait_stored=False), queue=choice),
        )
        batch = await producer.send_batch([Message("T", b"5", key="x"), Message("T", b"6")], queue=choice)
        await producer.send_oneway(Message("T", b"7"), queue=choice)
        await producer.send(Message("T", b"8"), queue=choice)
    assert {result.queue for result in [*results, *batch]} == {QUEUES[1]}
    assert sorted(broker.stored_bodies("T")) == [b"%d" % number for number in range(1, 9)]
    assert [len(queue) for queue in broker.topics["T"]] == [0, 8, 0]


@pytest.mark.parametrize("fields", [{}, {"delay_ms": 1}])
async def test_a_function_that_fails_fails_its_message_alone(fields: dict[str, int]) -> None:
    broker = FakeBroker()
    broker.add_topic("T", 3)

    def fail(queues: tuple[MessageQueue, ...]) -> MessageQueue:
        raise LookupError("no queue today")

    async with running(broker) as producer:
        good, bad = await asyncio.gather(
            producer.send(Message("T", b"good", **fields), queue=0),
            producer.send(Message("T", b"bad", **fields), queue=fail),
            return_exceptions=True,
        )
        assert producer.in_flight == 0
        assert isinstance(bad, LookupError)
        assert not isinstance(good, BaseException)
        with pytest.raises(MessageRefusedError, match="has 3 queues"):
            await producer.send(Message("T", b"", **fields), queue=3)


@pytest.mark.parametrize("choice", [-1, 3, MessageQueue("U", "broker-a", 0), lambda _: None])
def test_what_is_no_queue_of_the_topic_is_refused(choice: QueueChoice) -> None:
    with pytest.raises(MessageRefusedError):
        chosen_queue(choice, "T", QUEUES)
