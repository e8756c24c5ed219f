"""Spans of sends and listeners, joined through the messages, at a provider that keeps them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry
from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags

from iotmq.client import (
    ClientSettings,
    Columns,
    IotmqClient,
    Message,
    MessageQueue,
    OpenTelemetry,
    PushConsumerSettings,
    ReceivedMessage,
    encode_batch,
)
from iotmq.client.blocking.application_threads import ApplicationThreads
from iotmq.client.blocking.loop_thread import LoopThread
from iotmq.errors import ClientError, MessageRefusedError
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.remoting.codes import RequestCode


class KeptSpan(trace.NonRecordingSpan):
    def __init__(self, name: str, context: SpanContext, parent: SpanContext, **given: Any) -> None:
        super().__init__(context)
        self.name = name
        self.parent = parent
        self.kind: SpanKind = given["kind"]
        self.attributes: dict[str, Any] = dict(given["attributes"])
        self.links = [link.context for link in given.get("links") or ()]
        self.errors: list[BaseException] = []
        self.status: tuple[StatusCode, str] | None = None
        self.ended_count = 0

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        self.errors.append(exception)

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = (status, description or "")

    def end(self, end_time: int | None = None) -> None:
        self.ended_count += 1


class Provider(trace.TracerProvider):
    """Keeps its spans; the number of one is its place among them."""

    def __init__(self) -> None:
        self.spans: list[KeptSpan] = []

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return _Tracer(self.spans)

    @property
    def process_spans(self) -> list[KeptSpan]:
        return [span for span in self.spans if span.name.startswith("process")]


class _Tracer(trace.NoOpTracer):
    def __init__(self, spans: list[KeptSpan]) -> None:
        self._spans = spans

    def start_span(self, name: str, context: Any = None, **given: Any) -> trace.Span:  # type: ignore[override]
        parent = trace.get_current_span(context).get_span_context()
        number = len(self._spans) + 1
        own = SpanContext(
            parent.trace_id or 1_000 + number,
            number,
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        span = KeptSpan(name, own, parent, **given)
        self._spans.append(span)
        return span


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def client(broker: FakeBroker, provider: Provider) -> AsyncIterator[IotmqClient]:
    registry = FakeRegistry(broker)
    await registry.start()
    settings = ClientSettings(registries=(registry.address,), reconnect_ms_min=5)
    async with IotmqClient(settings, interceptors=[OpenTelemetry(provider)]) as client:
        yield client
    await registry.stop()


async def test_a_listener_continues_the_trace_of_the_send(
    client: IotmqClient, broker: FakeBroker, provider: Provider
) -> None:
    current: list[int] = []

    async def listen(messages: list[ReceivedMessage]) -> None:
        await asyncio.sleep(0)
        current.append(trace.get_current_span().get_span_context().span_id)

    producer = await client.producer("pg")
    result = await producer.send(Message("T", b"x", properties={"own": "1"}))
    properties = decode_properties(broker.seen(RequestCode.SEND_MESSAGE_V2)[0].ext["i"].encode())
    assert (properties["own"], properties["traceparent"]) == ("1", f"00-{1_001:032x}-{1:016x}-01")
    consumer = client.push_consumer("cg", listen, settings=PushConsumerSettings(consume_from="first"))
    await consumer.subscribe("T")
    async with consumer:
        await until(lambda: len(provider.spans) == 2 and provider.spans[1].ended_count)
    sent, consumed = provider.spans
    assert (sent.name, sent.kind, sent.ended_count, sent.status) == ("send T", SpanKind.PRODUCER, 1, None)
    assert (consumed.name, consumed.kind, consumed.status) == ("process T", SpanKind.CONSUMER, None)
    assert (consumed.parent.trace_id, consumed.parent.span_id, consumed.links) == (1_001, 1, [])
    assert current == [2]
    assert sent.attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "messaging.rocketmq.producer_group": "pg",
        "messaging.message.id": result.message_id,
    }
    assert consumed.attributes["messaging.consumer.group.name"] == "cg"
    assert consumed.attributes["messaging.message.id"] == result.message_id
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("own", [{}, {"traceparent": f"00-{8:032x}-{4:016x}-01"}])
async def test_a_message_of_a_device_goes_on_with_what_the_device_has_sent(
    client: IotmqClient, provider: Provider, own: dict[str, str]
) -> None:
    """Unless a gateway that traces has put its own context beside it."""
    consumer = client.push_consumer("cg", lambda _: None, settings=PushConsumerSettings(consume_from="first"))
    await consumer.subscribe("T")
    properties = {"MQTT_USER.traceparent": f"00-{7:032x}-{3:016x}-01", **own}
    producer = await client.producer("pg")
    elements = encode_batch([(b"", encode_properties(properties), 0)])
    await producer.send_encoded_batch("T", None, elements, 1)
    async with consumer:
        await until(lambda: provider.process_spans)
    (consumed,) = provider.process_spans
    assert (consumed.parent.trace_id, consumed.parent.span_id) == ((8, 4) if own else (7, 3))


async def test_a_batch_is_one_span_linked_to_its_sends(
    client: IotmqClient, broker: FakeBroker, provider: Provider
) -> None:
    producer = await client.producer("pg")
    await producer.send(Message("T", b"single"))
    await producer.send_batch([Message("T", b"one"), Message("T", b"two")])
    assert provider.spans[1].attributes["messaging.batch.message_count"] == 2
    broker.store("T", 0, b"of another client")
    done = asyncio.Event()
    consumer = client.push_consumer(
        "cg", lambda _: done.set(), settings=PushConsumerSettings(consume_from="first")
    )
    await consumer.subscribe("T")
    async with consumer:
        await done.wait()
    (consumed,) = provider.process_spans
    assert [link.span_id for link in consumed.links] == [1, 2, 2]
    assert not consumed.parent.is_valid
    assert consumed.attributes["messaging.batch.message_count"] == 4


async def test_what_fails_is_the_status_of_the_span(
    client: IotmqClient, broker: FakeBroker, provider: Provider
) -> None:
    producer = await client.producer("pg")
    with pytest.raises(MessageRefusedError):
        await producer.send(Message("no topic", b""))
    (sent,) = provider.spans
    assert sent.status is not None
    assert (sent.status[0], sent.ended_count) == (StatusCode.ERROR, 1)
    assert isinstance(sent.errors[0], MessageRefusedError)

    def listen(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if messages[0].body == b"raise":
            raise ValueError("of the listener")
        return messages

    settings = PushConsumerSettings(consume_from="first", batch_max=1)
    consumer = client.push_consumer("cg", listen, settings=settings)
    await consumer.subscribe("T")
    broker.store("T", 0, b"raise")
    broker.store("T", 0, b"fail")
    async with consumer:
        await until(lambda: len(provider.process_spans) >= 2)
    raised, failed = provider.process_spans[:2]
    assert raised.status == (StatusCode.ERROR, "ValueError: of the listener")
    assert failed.status == (StatusCode.ERROR, "1 messages have failed")
    assert (len(raised.errors), failed.errors) == (1, [])


async def test_a_worker_thread_has_the_listeners_span() -> None:
    thread = LoopThread()
    thread.start()
    try:

        async def call() -> int:
            span = trace.NonRecordingSpan(SpanContext(1, 77, is_remote=False))
            with trace.use_span(span):
                there: int = await on_worker()
                return there

        on_worker = ApplicationThreads(thread, "test", 1).on_worker(
            lambda: trace.get_current_span().get_span_context().span_id
        )
        assert await asyncio.to_thread(thread.run, call()) == 77
    finally:
        thread.stop()


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ClientError, match="opentelemetry-api"):
        OpenTelemetry()


async def test_wholes_have_one_span_and_what_was_asked_for_is_not_current(
    client: IotmqClient, broker: FakeBroker, provider: Provider
) -> None:
    current: list[int] = []

    def listen(queue: MessageQueue, columns: Columns) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    producer = await client.producer("pg")
    await producer.send_encoded_batch("T", None, encode_batch([(b"x", b"", 0)] * 3), 3)
    sent = provider.spans[0]
    assert (sent.name, sent.kind, sent.ended_count) == ("send T", SpanKind.PRODUCER, 1)
    assert sent.attributes["messaging.batch.message_count"] == 3

    settings = PushConsumerSettings(consume_from="first")
    consumer = client.push_consumer("cg", columns_listener=listen, settings=settings)
    await consumer.subscribe("T")
    async with consumer:
        await until(lambda: len(provider.process_spans) == 1 and provider.process_spans[0].ended_count)
    assert current == [2]
    assert provider.process_spans[0].attributes["messaging.batch.message_count"] == 3

    async with client.pull_consumer("asking") as asking:
        await asking.assign(await asking.queues("T"))
        assert len(await asking.getmany(records_max=2)) == 2
        assert not trace.get_current_span().get_span_context().is_valid
        assert await asking.getmany_columns() is not None
        assert not trace.get_current_span().get_span_context().is_valid
    assert [span.ended_count for span in provider.process_spans] == [1, 1, 1]
    assert {span.attributes["messaging.consumer.group.name"] for span in provider.process_spans[1:]} == {
        "asking"
    }
