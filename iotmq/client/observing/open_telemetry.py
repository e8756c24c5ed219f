"""Make OpenTelemetry spans of sends and of listeners' calls, and join them through properties of messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from typing import TYPE_CHECKING, NamedTuple

from iotmq.client.transport.interceptors import (
    Consuming,
    ConsumingColumns,
    Interceptor,
    Sending,
    SendingEncoded,
)
from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ClientError
from iotmq.message.properties import MQTT_USER_PREFIX

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import Attributes


class _Consumed(NamedTuple):
    """The span of messages, and what makes the former one current again where a listener gets them."""

    span: Span
    token: Token[Context] | None


class OpenTelemetry(Interceptor):
    """Makes spans, and passes their contexts on in the properties of messages (W3C `traceparent`, as a rule).

    Needs the package `opentelemetry-api`. Spans go where the application's tracer provider sends them; its
    propagator says which properties there are. While a listener runs, its span is the current one.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """ClientError when `opentelemetry-api` is not installed. The global provider is the default."""
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            raise ClientError("OpenTelemetry() needs the package opentelemetry-api: install it") from error
        self._context = context
        self._propagate = propagate
        self._trace = trace
        self._tracer = trace.get_tracer("iotmq.client", tracer_provider=tracer_provider)

    def before_send(self, sending: Sending) -> None:
        """Begin a span, and give the messages its context."""
        topic = sending.messages[0].topic if sending.messages else ""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_attributes(
                "send", topic, len(sending.messages), {"messaging.rocketmq.producer_group": sending.group}
            ),
        )
        sending.notes[self] = span
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))
        for name, value in carrier.items():
            sending.set_property(name, value)

    def after_send(self, sending: Sending) -> None:
        """End the span."""
        span: Span | None = sending.notes.get(self)
        if span is None:
            return
        if len(sending.message_ids) == 1:
            span.set_attribute("messaging.message.id", sending.message_ids[0])
        self._end(span, sending.error, "")

    def before_send_encoded(self, sending: SendingEncoded) -> None:
        """Begin a span. Its context is not passed on: the messages are encoded."""
        sending.notes[self] = self._tracer.start_span(
            f"send {sending.topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_attributes(
                "send", sending.topic, sending.count, {"messaging.rocketmq.producer_group": sending.group}
            ),
        )

    def after_send_encoded(self, sending: SendingEncoded) -> None:
        """End the span."""
        span: Span | None = sending.notes.get(self)
        if span is not None:
            self._end(span, sending.error, "")

    def before_consume(self, consuming: Consuming) -> None:
        """Begin a span: a child of that of the send for one message, with links to the sends of several."""
        parents = [self._extracted(message) for message in consuming.messages]
        parent = parents[0] if len(parents) == 1 else None
        links = [
            self._trace.Link(context)
            for each in parents
            if len(parents) > 1
            and (context := self._trace.get_current_span(each).get_span_context()).is_valid
        ]
        topic = consuming.messages[0].topic if consuming.messages else consuming.queue.topic
        details = _of_queue(consuming.group, consuming.queue)
        if len(consuming.messages) == 1:
            details["messaging.message.id"] = consuming.messages[0].message_id
        span = self._tracer.start_span(
            f"process {topic}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_attributes("process", topic, len(consuming.messages), details),
            links=links,
        )
        self._begin_consumed(consuming, span, parent)

    def after_consume(self, consuming: Consuming) -> None:
        """End the span."""
        consumed: _Consumed | None = consuming.notes.get(self)
        if consumed is None:
            return
        count = len(consuming.failed)
        self._end_consumed(consumed, consuming.error, f"{count} messages have failed" if count else "")

    def before_consume_columns(self, consuming: ConsumingColumns) -> None:
        """Begin a span."""
        topic = consuming.queue.topic
        details = _of_queue(consuming.group, consuming.queue)
        span = self._tracer.start_span(
            f"process {topic}",
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_attributes("process", topic, len(consuming.columns), details),
        )
        self._begin_consumed(consuming, span, None)

    def after_consume_columns(self, consuming: ConsumingColumns) -> None:
        """End the span."""
        consumed: _Consumed | None = consuming.notes.get(self)
        if consumed is not None:
            self._end_consumed(consumed, consuming.error, "")

    def _begin_consumed(
        self, consuming: Consuming | ConsumingColumns, span: Span, parent: Context | None
    ) -> None:
        token = None
        if not consuming.is_asked:
            # Who has asked goes on in a context of its own.
            token = self._context.attach(self._trace.set_span_in_context(span, parent))
        consuming.notes[self] = _Consumed(span, token)

    def _end_consumed(self, consumed: _Consumed, error: BaseException | None, description: str) -> None:
        if consumed.token is not None:
            self._context.detach(consumed.token)
        self._end(consumed.span, error, description)

    def _extracted(self, message: StoredMessage) -> Context:
        """Return the context of the send; of a message of a device that of its user properties."""
        of_device = {
            name.removeprefix(MQTT_USER_PREFIX): value
            for name, value in message.properties.items()
            if name.startswith(MQTT_USER_PREFIX)
        }
        return self._propagate.extract({**of_device, **message.properties})

    def _end(self, span: Span, error: BaseException | None, description: str) -> None:
        if error is not None:
            span.record_exception(error)
            description = f"{type(error).__name__}: {error}"
        if description:
            span.set_status(self._trace.StatusCode.ERROR, description)
        span.end()


def _of_queue(group: str, queue: MessageQueue) -> dict[str, str]:
    return {
        "messaging.consumer.group.name": group,
        "messaging.destination.partition.id": str(queue.queue_id),
    }


def _attributes(operation: str, topic: str, count: int, details: Mapping[str, str]) -> Attributes:
    """Return the attributes of a span, by the names that OpenTelemetry has for messaging."""
    attributes: dict[str, str | int] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        **details,
    }
    if count > 1:
        attributes["messaging.batch.message_count"] = count
    return attributes
