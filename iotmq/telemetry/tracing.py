"""Spans of sampled messages: receive at a front end, store at a broker, deliver at a front end.

`tracing()` is the process's Tracing while it exports traces, else None: then nothing looks for contexts.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Literal, NamedTuple, TypeAlias

from iotmq import limits
from iotmq.log_format import within_trace
from iotmq.metrics import Metric, samples, samples_by
from iotmq.telemetry.trace_context import read_traceparent

Kind: TypeAlias = Literal["server", "internal", "producer"]
Attributes: TypeAlias = Mapping[str, str | int]

_TEXT_CHARACTERS_MAX: Final = 256


class EndedSpan(NamedTuple):
    """A span as it is exported; ids are hexadecimal digits."""

    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first of its trace."""
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str = ""


class OpenSpan:
    """A message that a front end or the HTTP API has received, and that is not acknowledged yet."""

    __slots__ = ("_attributes", "_parent_id", "_start_ns", "_tracing", "span_id", "trace_id")

    def __init__(self, tracing: Tracing, trace_id: str, parent_id: str, attributes: Attributes) -> None:
        self._tracing = tracing
        self._attributes = attributes
        self._parent_id = parent_id
        self._start_ns = time.time_ns()
        self.trace_id = trace_id
        self.span_id = tracing.new_span_id()

    @property
    def traceparent(self) -> bytes:
        """Return the context for all that comes of the message."""
        return f"00-{self.trace_id}-{self.span_id}-01".encode()

    def current(self) -> AbstractContextManager[None]:
        """Have log lines name it meanwhile."""
        return within_trace(self.trace_id, self.span_id)

    def end(self, error: str = "") -> None:
        """End it, where need be with what went wrong."""
        ended = EndedSpan(
            "receive",
            "server",
            self.trace_id,
            self.span_id,
            self._parent_id,
            self._start_ns,
            time.time_ns(),
            self._attributes,
            error,
        )
        self._tracing.ended(ended)


class Tracing:
    """Makes spans, and keeps those that ended until the exporter takes them: so many, others are dropped."""

    def __init__(self, *, sample_ratio: float = 0.0, trusts_devices: bool = False) -> None:
        self.sample_ratio = sample_ratio
        self.trusts_devices = trusts_devices
        self._random = random.Random()
        # Filled by the loop, emptied by the exporter's thread.
        self._ended: deque[EndedSpan] = deque()
        self._ended_total: dict[str, int] = {"receive": 0, "store": 0, "deliver": 0}
        self.dropped_total = 0

    def new_span_id(self) -> str:
        """Return a new id, which is not 0."""
        return f"{self._random.randrange(1, 1 << 64):016x}"

    def received(
        self, parent: bytes | None, client_id: str | None, mqtt_topic: bytes, topic: str, qos: int, size: int
    ) -> OpenSpan:
        """Begin the span of a message of a device, which goes on with the trace of `parent`."""
        context = None if parent is None else read_traceparent(parent)
        trace_id = f"{self._random.randrange(1, 1 << 128):032x}" if context is None else context[0]
        attributes: dict[str, str | int] = {
            "messaging.system": "mqtt",
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            "messaging.destination.name": topic,
            "messaging.client.id": _cut(client_id or ""),
            "messaging.message.body.size": size,
            "iotmq.mqtt.topic": _cut(mqtt_topic.decode("utf-8", "replace")),
            "iotmq.mqtt.qos": qos,
        }
        return OpenSpan(self, trace_id, "" if context is None else context[1], attributes)

    def asked(self, parent: bytes, caller: str, destination: str, size: int) -> OpenSpan:
        """Begin the span of messages that come by the HTTP API, which goes on with the trace of `parent`."""
        context = read_traceparent(parent)
        assert context is not None, "who calls has looked"
        attributes: dict[str, str | int] = {
            "messaging.system": "iotmq",
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            "messaging.destination.name": _cut(destination),
            "messaging.client.id": _cut(caller),
            "messaging.message.body.size": size,
        }
        return OpenSpan(self, context[0], context[1], attributes)

    def stored(self, parent: bytes, topic: bytes, queue_id: int, start_ns: int) -> tuple[str, str, int]:
        """Note that a record is stored as durably as promised; returns trace, span, microseconds."""
        attributes: dict[str, str | int] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "store",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic.decode("utf-8", "replace"),
            "messaging.destination.partition.id": str(queue_id),
        }
        return self._child("store", "internal", parent, start_ns, attributes)

    def delivered(self, parent: bytes, client_id: str | None, qos: int, start_ns: int) -> None:
        """Note that a message was handed to the connection of a device."""
        attributes: dict[str, str | int] = {
            "messaging.system": "mqtt",
            "messaging.operation.name": "deliver",
            "messaging.operation.type": "send",
            "messaging.client.id": _cut(client_id or ""),
            "iotmq.mqtt.qos": qos,
        }
        self._child("deliver", "producer", parent, start_ns, attributes)

    def ended(self, span: EndedSpan) -> None:
        """Keep a span for the exporter, if there is room."""
        self._ended_total[span.name] += 1
        if len(self._ended) >= limits.SPANS_WAITING_MAX:
            self.dropped_total += 1
        else:
            self._ended.append(span)

    @property
    def waiting_count(self) -> int:
        """Return how many wait for the exporter."""
        return len(self._ended)

    def take(self, count: int) -> list[EndedSpan]:
        """Return the first of them; for the exporter's thread."""
        taken: list[EndedSpan] = []
        while self._ended and len(taken) < count:
            taken.append(self._ended.popleft())
        return taken

    def metrics(self) -> Iterable[Metric]:
        """Report how many there were."""
        text = "Spans of sampled messages that ended."
        yield from samples_by("span", "iotmq_telemetry_spans_total", text, self._ended_total)
        yield from samples(
            ("iotmq_telemetry_spans_waiting", "Spans that wait to be exported.", len(self._ended)),
            (
                "iotmq_telemetry_dropped_spans_total",
                "Spans dropped because too many waited.",
                self.dropped_total,
            ),
        )

    def _child(
        self, name: str, kind: Kind, parent: bytes, start_ns: int, attributes: Attributes
    ) -> tuple[str, str, int]:
        context = read_traceparent(parent)
        assert context is not None, "who calls has looked"
        trace_id, parent_id, _ = context
        span_id = self.new_span_id()
        # Clocks of machines differ, and store times are whole milliseconds.
        end_ns = max(start_ns, time.time_ns())
        self.ended(EndedSpan(name, kind, trace_id, span_id, parent_id, start_ns, end_ns, attributes))
        return trace_id, span_id, (end_ns - start_ns) // 1000


_of_process: list[Tracing] = []


def tracing() -> Tracing | None:
    """Return that of this process; None while messages are not traced."""
    return _of_process[-1] if _of_process else None


def begin_tracing(tracing: Tracing) -> None:
    """Trace messages in this process; before its roles start."""
    _of_process.append(tracing)


def end_tracing(tracing: Tracing) -> None:
    """Trace none any more."""
    _of_process.remove(tracing)


def _cut(text: str) -> str:
    return text[:_TEXT_CHARACTERS_MAX]
