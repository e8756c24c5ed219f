"""Many messages of one request: what goes together, what alone, and what each is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pytest

from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import SendResult, SendStatus
from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.client.transport.settings import ProducerSettings
from iotmq.console.api.batch_elements import ALONE_BYTES
from iotmq.console.api.batch_publishing import BatchPublisher
from iotmq.console.api.problems import NOT_FOUND, ProblemError
from iotmq.console.api.publishing import KNOWN_TOPICS_MAX, Publisher
from iotmq.console.api.routes.messaging.messages import DeviceMessage, Outcomes
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
        self.settings = ProducerSettings()
        self.joins_sends = True
        self.known: tuple[MessageQueue, ...] = ()
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

    def known_queues(self, _topic: str) -> tuple[MessageQueue, ...]:
        return self.known

    async def queues(self, _topic: str) -> tuple[MessageQueue, ...]:
        return QUEUES

    def send_elements_nowait(
        self, queue: MessageQueue, elements: bytes, count: int
    ) -> asyncio.Future[SendResult]:
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


def item(mqtt_topic: str, payload: str = "x", **fields: Any) -> DeviceMessage:
    return DeviceMessage(mqtt_topic=mqtt_topic, payload=payload, **fields)


async def test_those_of_known_topics_are_taken_up_to_the_first_that_needs_more() -> None:
    site = Site()
    site.begin(4)
    items = (item("m/1", "é", qos=2, retain=True), item("m/2"), item("m/1", qos=0), item("m/3"))
    assert site.batch.take(items, 0) == 0
    for number in (1, 2):
        assert site.publisher.lane_of(f"m/{number}") is not None
    assert site.batch.take(items, 0) == 0
    await site.batch.prepare("m/1")
    assert site.batch.take(items, 0) == 3
    assert site.batch.take(items[:3], 3) == 3
    site.batch.refuse(3, ProblemError(NOT_FOUND, "x"))
    await site.batch.send()
    records = {
        (queue, 100 + number): record
        for queue, elements, _ in site.sent
        for number, record in enumerate(iter_records(encode_records(elements, topic="t")))
    }
    assert len(records) == site.outcomes.stored == 3
    for each, outcome in zip(items[:3], site.outcomes.items[:3], strict=True):
        stored = outcome.stored
        assert stored is not None
        assert stored.queue is not None
        assert stored.offset is not None
        record = records[MessageQueue(stored.topic, stored.broker, stored.queue), stored.offset]
        assert record.body.decode() == each.payload
        assert decode_properties(record.properties) == {
            "MQTT_TOPIC": each.mqtt_topic,
            "KEYS": each.mqtt_topic,
            "TAGS": "tag",
            "long": "x",
            "MQTT_QOS": str(each.qos),
            "UNIQ_KEY": stored.message_id,
            **({"MQTT_RETAIN": "1"} if each.retain else {}),
        }


@pytest.mark.parametrize(
    "other",
    [
        item("rule"),
        item("m", ""),
        item("m", payload_base64="eA=="),
        item("m", payload_json=msgspec.Raw(b"1")),
        item("m", expiry_s=1),
        item("m", topic="other"),
        item("m", "x" * (ALONE_BYTES + 1)),
        item("m", "é" * (ALONE_BYTES // 2 + 1)),
    ],
)
async def test_what_needs_more_is_not_taken(other: DeviceMessage) -> None:
    site = Site()
    for topic in ("m", "rule"):
        site.publisher.lane_of(topic)
    await site.batch.prepare("m")
    assert site.batch.take((item("m", "x" * ALONE_BYTES), other, item("m")), 0) == 1


async def test_unique_keys_are_those_of_the_maker_also_when_it_gives_few_at_once() -> None:
    class Few(UniqueKeys):
        def next_numbers(self, count: int) -> tuple[str, int, int]:
            return super().next_numbers(min(count, 3))

    site = Site()
    site.batch = BatchPublisher(site.publisher, cast(Producer, site), Few(), 10, context={})
    for place in range(10):
        assert await site.add(place, "m", b"", 1, is_retained=False)
    await site.batch.send()
    keys = [each.stored.message_id for each in site.outcomes.items if each.stored is not None]
    assert keys == sorted(set(keys))
    assert (len(keys), {len(key) for key in keys}) == (10, {32})


async def test_a_message_goes_at_once_when_its_queue_is_known_and_nothing_is_in_the_way() -> None:
    site = Site()
    publish = partial(site.publisher.publish_at_once, qos=1, is_retained=True)
    assert publish("m", b"x") is None
    site.known = QUEUES
    coming = publish("m", b"x")
    assert coming is not None
    stored = coming.make(await coming.future)
    ((queue, elements, count),) = site.sent
    (record,) = iter_records(encode_records(elements, topic="t"))
    assert (count, record.body) == (1, b"x")
    assert decode_properties(record.properties)["UNIQ_KEY"] == stored.message_id
    assert decode_properties(record.properties)["MQTT_RETAIN"] == "1"
    assert (stored.topic, stored.broker, stored.queue, stored.offset) == (*queue, 100)
    # Those that would be compressed, and those that rules are asked about.
    assert publish("m", bytes(site.settings.compress_bytes_min)) is None
    assert publish("rule", b"x") is None
    site.joins_sends = False
    assert publish("m", b"x") is None
    with pytest.raises(MessageRefusedError):
        publish("bad", b"x")


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


async def test_long_topics_without_payloads_are_spread_over_several_requests() -> None:
    site = Site()
    site.begin(300)
    for place in range(300):
        assert await site.add(place, "m" * 4_000, b"", 1, is_retained=False)
    await site.batch.send()
    assert max(len(elements) for _, elements, _ in site.sent) < 2 * 1024 * 1024
    assert site.outcomes.stored == 300


@pytest.mark.parametrize(("size", "is_known"), [(256, True), (257, False)])
async def test_topics_with_long_names_are_not_remembered(size: int, is_known: bool) -> None:
    site = Site()
    lanes = [site.publisher.lane_of("m" * size) for _ in range(2)]
    assert (lanes[0] is lanes[1]) == is_known
    assert len(site.asked) == (1 if is_known else 2)


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
