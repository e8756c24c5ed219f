"""Many messages of one request: what goes together, what alone, and what each is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pytest

from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import SendResult, SendStatus
from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.console.api.batch_publishing import BatchPublisher
from iotmq.console.api.problems import NOT_FOUND, ProblemError
from iotmq.console.api.publishing import KNOWN_TOPICS_MAX, Publisher
from iotmq.console.api.routes.messages import Outcomes
from iotmq.errors import BrokerError, IotmqError, MessageRefusedError, ProducerBusyError
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import encode_records, iter_records
from iotmq.ports.publishing import Placed

QUEUES = tuple(MessageQueue("t", broker, number) for broker in ("a", 'b"') for number in range(2))


class Site:
    """A producer and places that do as the test says."""

    def __init__(self) -> None:
        self.sent: list[tuple[MessageQueue, bytes, int]] = []
        self.error: IotmqError | None = None
        self.refusal: IotmqError | None = None
        self.asked: list[str] = []
        self.changed: Callable[[], None]
        self.publisher = Publisher(cast(Any, None), cast(Producer, self), self)
        self.batch = self.begin(10)

    def begin(self, count: int, context: Mapping[str, str] = MappingProxyType({})) -> BatchPublisher:
        producer = cast(Producer, self)
        self.batch = BatchPublisher(self.publisher, producer, UniqueKeys(), count, context=context)
        return self.batch

    async def add(
        self, place: int, topic: str, payload: bytes, qos: int, *, is_retained: bool
    ) -> bool | None:
        taken = self.batch.add(place, topic, payload, qos, is_retained=is_retained)
        if taken is None:
            await self.batch.prepare(topic)
            taken = self.batch.add(place, topic, payload, qos, is_retained=is_retained)
        return taken

    # The places.

    def start(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def stop(self) -> None: ...

    def fixed(self, mqtt_topic: str) -> Placed | None:
        self.asked.append(mqtt_topic)
        if mqtt_topic == "bad":
            raise MessageRefusedError("invalid MQTT topic")
        if mqtt_topic.startswith("rule"):
            return None
        properties = {"MQTT_TOPIC": mqtt_topic, "long": "x" * (40_000 if mqtt_topic == "long" else 1)}
        return Placed("t", mqtt_topic, "tag", properties, is_stored=mqtt_topic != "live")

    def place(self, *_: object, **__: object) -> Placed:
        raise AssertionError("not asked")

    # The producer.

    async def queues(self, _topic: str) -> tuple[MessageQueue, ...]:
        return QUEUES

    def send_encoded_batch_nowait(
        self, topic: str, queue: MessageQueue, elements: bytes, count: int
    ) -> asyncio.Future[SendResult]:
        assert topic == queue.topic
        if self.refusal is not None:
            raise self.refusal
        self.sent.append((queue, elements, count))
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(SendResult(SendStatus.SEND_OK, queue, 100, count, "", ""))
        return future

    @property
    def outcomes(self) -> Outcomes:
        return msgspec.json.decode(self.batch.answer, type=Outcomes)


@pytest.mark.parametrize("context", [{}, {"traceparent": "00-1", "tracestate": "a=1"}])
async def test_messages_of_a_queue_go_together_and_each_is_told_its_place(context: dict[str, str]) -> None:
    site = Site()
    site.begin(10, context)
    for place in range(10):
        assert await site.add(place, f"m/{place % 5}", b"%d" % place, place % 3, is_retained=place == 9)
    await site.batch.send()
    assert site.asked == [f"m/{number}" for number in range(5)]
    outcomes = site.outcomes
    assert outcomes.stored == 10
    found: dict[tuple[MessageQueue, int], tuple[bytes, dict[str, str]]] = {}
    for queue, elements, count in site.sent:
        records = list(iter_records(encode_records(elements, topic="t")))
        assert len(records) == count
        for number, record in enumerate(records):
            found[queue, 100 + number] = (record.body, decode_properties(record.properties))
    for place, each in enumerate(outcomes.items):
        stored = each.stored
        assert stored is not None
        assert stored.queue is not None
        assert stored.offset is not None
        queue = MessageQueue(stored.topic, stored.broker, stored.queue)
        assert queue == QUEUES[queue_of_key(f"m/{place % 5}", len(QUEUES))]
        body, properties = found[queue, stored.offset]
        assert body == b"%d" % place
        assert properties == {
            "MQTT_TOPIC": f"m/{place % 5}",
            "KEYS": f"m/{place % 5}",
            "TAGS": "tag",
            "long": "x",
            "MQTT_QOS": str(place % 3),
            "UNIQ_KEY": stored.message_id,
            **context,
            **({"MQTT_RETAIN": "1"} if place == 9 else {}),
        }


@pytest.mark.parametrize("topic", ["rule", "live", "long"])
async def test_what_needs_more_goes_by_itself(topic: str) -> None:
    site = Site()
    site.begin(2)
    assert not await site.add(0, topic, b"x", 1, is_retained=False)
    site.batch.put(
        0,
        b'{"stored":{"message_id":"","topic":"","broker":"","queue":null,"offset":null,"status":"X"}}',
        is_stored=True,
    )
    with pytest.raises(MessageRefusedError):
        await site.add(1, "bad", b"x", 1, is_retained=False)
    site.batch.refuse(1, ProblemError(NOT_FOUND, 'a "quoted" text'))
    await site.batch.send()
    stored, refused = site.outcomes.items
    assert stored.stored is not None
    assert refused.problem is not None
    assert (refused.problem.status, refused.problem.detail) == (404, 'a "quoted" text')
    assert (site.outcomes.stored, site.sent) == (1, [])


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_all_messages_of_a_batch_are_told_why_it_was_refused(is_at_once: bool) -> None:
    site = Site()
    site.begin(2)
    if is_at_once:
        site.refusal = ProducerBusyError("too many in flight")
    else:
        site.error = BrokerError(14, "the disk is full")
    for place in range(2):
        assert await site.add(place, "m", b"x", 1, is_retained=False)
    await site.batch.send()
    problems = [each.problem for each in site.outcomes.items]
    assert [each.status for each in problems if each is not None] == [429 if is_at_once else 503] * 2
    assert site.outcomes.stored == 0


async def test_large_messages_are_spread_over_several_requests_in_their_order() -> None:
    site = Site()
    for place in range(10):
        assert await site.add(place, "m", bytes(400_000), 1, is_retained=False)
    await site.batch.send()
    assert [count for _, _, count in site.sent] == [3, 3, 3, 1]
    assert site.outcomes.stored == 10


async def test_topics_are_known_until_there_are_too_many_or_routes_change() -> None:
    site = Site()
    for number in range(KNOWN_TOPICS_MAX):
        site.publisher.lane_of(f"m/{number}")
    site.publisher.lane_of("m/0")
    assert len(site.asked) == KNOWN_TOPICS_MAX
    site.publisher.lane_of("one more")
    site.publisher.lane_of("m/0")
    assert len(site.asked) == KNOWN_TOPICS_MAX + 2
    site.changed()
    site.publisher.lane_of("m/0")
    assert len(site.asked) == KNOWN_TOPICS_MAX + 3
