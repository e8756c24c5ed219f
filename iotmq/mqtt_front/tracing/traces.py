"""The traces of a front end: orders about them, the connections they are for, and what is written into them.

A connection has a Tap (connection.traced) while a trace is for it. With a trace of a topic all connections
share one that looks at the topics of messages; with a trace of a client, connections whose client id is not
known yet have one of their own until their CONNECT has come. When no trace runs, no connection has any.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from iotmq import limits
from iotmq.clock import Clock
from iotmq.event_loop import LoopSlice
from iotmq.message.bodies import text_beginning
from iotmq.mqtt.codec import packets
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt_front.access.authentication import Opens
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.mqtt_front.connection.traced import Tap, TraceBudget, TracedConnection
from iotmq.mqtt_front.tracing.decisions import Decisions, Facts
from iotmq.mqtt_front.tracing.packet_facts import cut, packet_facts, packet_name, publish_parts, shown_topic
from iotmq.mqtt_front.tracing.trace import Trace, TraceOrderError
from iotmq.ports.traces import (
    DeleteTrace,
    ListTraces,
    StartTrace,
    TraceAnswer,
    TraceChange,
    TraceEvent,
    TraceQuestion,
    decode_change,
    decode_question,
)
from iotmq.supervised import surviving

_SECOND_S: Final = 1.0
_PROPERTIES_MAX: Final = 16

_encode: Final = msgspec.json.Encoder().encode

OrderT = TypeVar("OrderT")


class Traces:
    """All traces of one front end; `answer` and `change` are its inspections."""

    def __init__(
        self,
        group: DeviceGroup,
        clock: Clock,
        devices: Callable[[], Iterable[Device]],
        decisions: Decisions,
    ) -> None:
        """`devices` yields all connections."""
        self._group = group
        self._clock = clock
        self._devices = devices
        self._decisions = decisions
        self._traces: dict[str, Trace] = {}
        self._running: tuple[Trace, ...] = ()
        self._budget = TraceBudget(limits.MQTT_TRACE_PACKETS_PER_S_MAX)
        # What connections have that no trace of a client or an address is for; None without one of a topic.
        self._shared_tap: Tap | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The connections that are still to be looked at after a change; None while there are none.
        self._looking: Iterator[Device] | None = None

    # Orders

    async def answer(self, body: bytes) -> bytes:
        """List traces, or read one (the inspection `traces`)."""
        return self._answer(body, decode_question, self._read)

    async def change(self, body: bytes) -> bytes:
        """Begin, end or forget a trace (the inspection `trace_changes`)."""
        return self._answer(body, decode_change, self._change)

    def stop(self) -> None:
        """End all traces: the front end stops."""
        for trace in self._traces.values():
            trace.end(self._clock.now_ms(), self._budget.skipped)
        self._changed()

    @staticmethod
    def _answer(
        body: bytes, decode: Callable[[bytes], OrderT], follow: Callable[[OrderT], TraceAnswer]
    ) -> bytes:
        try:
            answer = follow(decode(body))
        except (msgspec.DecodeError, TraceOrderError) as error:
            answer = TraceAnswer(problem=str(error), is_invalid=True)
        return _encode(answer)

    def _read(self, order: TraceQuestion) -> TraceAnswer:
        if isinstance(order, ListTraces):
            return TraceAnswer(traces=[each.state(self._budget.skipped) for each in self._traces.values()])
        trace = self._traces.get(order.name)
        if trace is None:
            return _unknown(order.name)
        events, after = trace.page(order)
        return TraceAnswer(traces=[trace.state(self._budget.skipped)], events=events, next_after=after)

    def _change(self, order: TraceChange) -> TraceAnswer:
        if isinstance(order, StartTrace):
            return self._start(order)
        trace = self._traces.get(order.name)
        if trace is None:
            return _unknown(order.name)
        trace.end(self._clock.now_ms(), self._budget.skipped)
        if isinstance(order, DeleteTrace):
            del self._traces[order.name]
        self._changed()
        return TraceAnswer(traces=[trace.state(self._budget.skipped)])

    def _start(self, order: StartTrace) -> TraceAnswer:
        if order.name in self._traces:
            return TraceAnswer(problem=f"there is a trace {order.name} already")
        trace = Trace(order, now_ms=self._clock.now_ms(), skipped=self._budget.skipped)
        if len(self._traces) >= limits.MQTT_TRACES_MAX:
            ended = next((name for name, each in self._traces.items() if not each.is_running), None)
            if ended is None:
                return TraceAnswer(
                    problem=f"{limits.MQTT_TRACES_MAX} traces are running: stop one of them before"
                )
            del self._traces[ended]
        self._traces[order.name] = trace
        self._changed()
        return TraceAnswer(traces=[trace.state(self._budget.skipped)])

    def _changed(self) -> None:
        """Have each connection, some in each turn, tell the traces that are for it now."""
        self._running = tuple(trace for trace in self._traces.values() if trace.is_running)
        has_topics = any(trace.kind == "topic" for trace in self._running)
        # Another one each time: it remembers which topics are wanted.
        self._shared_tap = Tap(_Tracer(self, ()), self._budget, takes_all=False) if has_topics else None
        self._group.tracing = self if self._running else None
        self._decisions.hear(self if self._running else None)
        if self._running and self._timer is None:
            self._timer = self._group.loop.call_later(_SECOND_S, self._tick)
        is_looking = self._looking is not None
        self._looking = iter(self._devices())
        if not is_looking:
            self._look()

    def _look(self) -> None:
        assert self._looking is not None
        loop_slice = LoopSlice()
        with surviving("traces"):
            while loop_slice.take():
                device = next(self._looking, None)
                if device is None:
                    self._looking = None
                    return
                self._attach(device, device.client_id)
        self._group.loop.call_soon(self._look)

    def _tick(self) -> None:
        """A second is over."""
        self._timer = None
        self._budget.left = limits.MQTT_TRACE_PACKETS_PER_S_MAX
        now_ms = self._clock.now_ms()
        over = [trace for trace in self._running if trace.until_ms <= now_ms]
        for trace in over:
            trace.end(now_ms, self._budget.skipped)
        if over:
            self._changed()
        elif self._running:
            self._timer = self._group.loop.call_later(_SECOND_S, self._tick)

    # Connections (DeviceGroup.tracing)

    def connected(self, device: Device) -> None:
        """A connection was accepted while something is traced."""
        self._attach(device, None)
        device.note("connection", result="accepted", listener=device.peer.listener)

    def identified(self, device: Device, client_id: str) -> _Tracer | None:
        """A connection has this client id; return what it tells from now on."""
        return self._attach(device, client_id)

    def opening(self, opens: Opens) -> Opens:
        """Return `opens` (authentication.AccessEvents), with a look at who was let in."""

        def traced(device: Device, connect: packets.Connect, client_id: str) -> None:
            if self._running:
                # Authentication may have chosen another one than that of the CONNECT.
                self._attach(device, client_id)
                identity = device.identity
                device.note(
                    "authentication",
                    result="accepted",
                    user=device.user,
                    by="nobody was asked" if identity is None else identity.decided_by,
                )
            opens(device, connect, client_id)

        return traced

    def _attach(self, device: Device, client_id: str | None) -> _Tracer | None:
        """Give a connection the tap that the traces of now want; return what it tells, if it is its own."""
        if not self._running:
            device.trace(None)
            return None
        has_clients = any(trace.kind == "client" for trace in self._running)
        has_addresses = any(trace.kind == "address" for trace in self._running)
        address = device.address if has_addresses else None
        own = tuple(
            trace
            for trace in self._running
            if (trace.kind == "client" and client_id is not None and trace.value == client_id)
            or trace.is_of_address(address)
        )
        if own or (has_clients and client_id is None):
            tracer = _Tracer(self, own, client_id=client_id, address=address or device.address)
            device.trace(Tap(tracer, self._budget, takes_all=True))
            return tracer
        device.trace(self._shared_tap)
        return None

    # Events

    def wants(self, topic: str) -> bool:
        """Return whether a trace is for messages of a topic."""
        return any(trace.is_of_topic(topic) for trace in self._running)

    def write(self, own: Collection[Trace], event: TraceEvent, topic: str | None) -> None:
        """Write an event into these traces and those of its topic, each once."""
        for trace in self._for(own, topic):
            trace.add(event)

    def heard(self, kind: str, facts: Facts, *, topic: str | None = None) -> None:
        """A decision was made about who is named in it: `client`, `address`."""
        client, address = facts.get("client"), facts.get("address")
        own = [
            trace
            for trace in self._running
            if (trace.kind == "client" and trace.value == client)
            or (isinstance(address, str) and trace.is_of_address(address))
        ]
        if own or (topic is not None and self.wants(topic)):
            self.write(own, self.decision(kind, facts, client, address, topic), topic)

    def decision(
        self, kind: str, facts: Facts, client: object, address: object, topic: str | None
    ) -> TraceEvent:
        """Make the event of a decision."""
        told = {
            name: cut(value) if isinstance(value, str) else value
            for name, value in facts.items()
            if value is not None and name not in ("client", "address", "topic")
        }
        return TraceEvent(
            number=0,
            time_ms=self._clock.now_ms(),
            what="decided",
            kind=kind,
            client=cut(str(client or "")),
            address=str(address or ""),
            topic=shown_topic(topic or ""),
            facts=told,
        )

    def packet(
        self,
        tracer: _Tracer,
        device: Device,
        is_sent: bool,
        packet: tuple[int, bytes, int],
        topic: str | None,
    ) -> None:
        """Write a packet, and what will be decided about it, into the traces it is for."""
        first, body, size = packet
        level = device.protocol_level
        is_message = first >> 4 == packets.PUBLISH
        client = tracer.client_id if tracer.client_id is not None else device.client_id
        event = TraceEvent(
            number=0,
            time_ms=self._clock.now_ms(),
            what="sent" if is_sent else "received",
            kind=packet_name(first),
            client=cut(client or ""),
            address=tracer.address or device.address or "",
            topic=shown_topic(topic or ""),
            facts=packet_facts(first, body, size, level, is_sent=is_sent),
        )
        content = publish_parts(first, body, level) if is_message else None
        for trace in self._for(tracer.own, topic):
            whole = event
            if content is not None and trace.payload_bytes:
                whole = _with_content(event, *content, trace.payload_bytes)
            trace.add(whole)
        if is_message and not is_sent and topic is not None:
            for kind, facts in self._decisions.of_publish(device, event.facts, topic):
                told = self.decision(kind, facts, client, event.address, topic)
                self.write(tracer.own, told, topic)

    def _for(self, own: Collection[Trace], topic: str | None) -> Iterator[Trace]:
        """Yield these traces and those of a topic, each once."""
        for trace in self._running:
            if trace in own or (topic is not None and trace.is_of_topic(topic)):
                yield trace


class _Tracer:
    """Told by the tap of a connection with its `own` traces, or by the one that others share."""

    __slots__ = ("_traces", "address", "client_id", "own")

    def __init__(
        self,
        traces: Traces,
        own: tuple[Trace, ...],
        *,
        client_id: str | None = None,
        address: str | None = None,
    ) -> None:
        self._traces = traces
        self.own = own
        self.client_id = client_id
        # None where several connections share it.
        self.address = address

    def wants(self, topic: str) -> bool:
        return self._traces.wants(topic)

    def packet(
        self,
        connection: TracedConnection,
        is_sent: bool,
        first: int,
        body: bytes,
        size: int,
        topic: str | None,
    ) -> None:
        assert isinstance(connection, Device)
        tracer: _Tracer | None = self
        if self.client_id is None and first >> 4 == packets.CONNECT and not is_sent:
            # The level is known when the CONNECT is decoded, which is next.
            try:
                client_id = packets.decode_connect(body).client_id
            except MqttProtocolError:
                client_id = ""
            tracer = self._traces.identified(connection, client_id)
        if tracer is not None:
            self._traces.packet(tracer, connection, is_sent, (first, body, size), topic)

    def decided(self, connection: TracedConnection, kind: str, topic: str | None, fields: Facts) -> None:
        assert isinstance(connection, Device)
        client = connection.client_id or self.client_id
        address = self.address or connection.address
        event = self._traces.decision(kind, fields, client, address, topic)
        self._traces.write(self.own, event, topic)

    def ended(self, connection: TracedConnection) -> None:
        reason = connection.close_reason
        fields = {
            "result": "ended",
            "reason": "" if reason is None else reason.name,
            "detail": connection.close_detail or None,
        }
        self.decided(connection, "connection", None, fields)


def _unknown(name: str) -> TraceAnswer:
    return TraceAnswer(problem=f"there is no trace {name}", is_unknown=True)


def _with_content(
    event: TraceEvent, properties: tuple[tuple[str, str], ...], payload: bytes, bytes_max: int
) -> TraceEvent:
    """Add the beginning of a payload, as text if it is some, and user properties."""
    try:
        text, encoded = text_beginning(payload, bytes_max), ""
    except UnicodeDecodeError:
        text, encoded = "", base64.b64encode(payload[:bytes_max]).decode()
    shown = [(cut(name), cut(value)) for name, value in properties[:_PROPERTIES_MAX]]
    return msgspec.structs.replace(event, payload=text, payload_base64=encoded, properties=shown)
