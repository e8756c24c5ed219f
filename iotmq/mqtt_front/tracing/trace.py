"""One trace: what it is about, and its events, of which the newest are kept."""

from __future__ import annotations

from collections import deque
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from iotmq import limits
from iotmq.mqtt.topics.topics import is_valid_filter, matches
from iotmq.ports.traces import ReadTrace, StartTrace, TraceEvent, TraceState

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(TraceEvent).decode


class TraceOrderError(ValueError):
    """An order that cannot be followed, with a text for who gave it."""


class Trace:
    """A trace of one front end."""

    def __init__(self, order: StartTrace, *, now_ms: int, skipped: int) -> None:
        """`skipped` counts the packets that were not looked at before. TraceOrderError for a wrong value."""
        self.name: Final = order.name
        self.kind: Final = order.kind
        self.value: Final = order.value
        self.payload_bytes: Final = order.payload_bytes
        self.until_ms = now_ms + order.duration_s * 1_000
        self.is_running = True
        self._order = order
        self._started_ms = now_ms
        self._skipped = skipped
        self._network = _network_of(order)
        self._events: deque[bytes] = deque()
        self._bytes = 0
        # The number of the oldest event that is kept.
        self._first = 1

    @property
    def last(self) -> int:
        """Return the number of the newest event; 0 before there is one."""
        return self._first + len(self._events) - 1

    def is_of_address(self, address: str | None) -> bool:
        """Return whether a connection from this address is traced."""
        if self._network is None or address is None:
            return False
        return ip_address(address) in self._network

    def is_of_topic(self, topic: str) -> bool:
        """Return whether messages of this topic are traced, which may have a prefix such as $delayed/5/."""
        return self.kind == "topic" and matches(self.value, topic)

    def add(self, event: TraceEvent) -> None:
        """Keep an event; its number is that of the trace."""
        encoded = _encode(msgspec.structs.replace(event, number=self.last + 1))
        self._events.append(encoded)
        self._bytes += len(encoded)
        while len(self._events) > self._order.events_max or self._bytes > self._order.bytes_max:
            self._bytes -= len(self._events.popleft())
            self._first += 1

    def end(self, now_ms: int, skipped: int) -> None:
        """Take no more events."""
        if self.is_running:
            self.is_running = False
            self.until_ms = min(now_ms, self.until_ms)
            self._skipped = skipped - self._skipped

    def state(self, skipped: int) -> TraceState:
        """Describe it; `skipped` as in the constructor."""
        return TraceState(
            name=self.name,
            kind=self.kind,
            value=self.value,
            by=self._order.by,
            started_ms=self._started_ms,
            until_ms=self.until_ms,
            is_running=self.is_running,
            payload_bytes=self.payload_bytes,
            events=len(self._events),
            bytes=self._bytes,
            lost=self._first - 1,
            skipped=skipped - self._skipped if self.is_running else self._skipped,
        )

    def page(self, order: ReadTrace) -> tuple[list[TraceEvent], int | None]:
        """Return events from behind `order.after` on, and `after` of the next page; None at the end."""
        found: list[TraceEvent] = []
        size_bytes = 0
        at = max(0, order.after - self._first + 1)
        while at < len(self._events) and len(found) < order.limit:
            encoded = self._events[at]
            size_bytes += len(encoded)
            if found and size_bytes > limits.MQTT_TRACE_PAGE_BYTES_MAX:
                break
            event = _decode(encoded)
            if not order.with_payloads:
                event = msgspec.structs.replace(event, payload="", payload_base64="", properties=[])
            found.append(event)
            at += 1
        return found, (self._first + at - 1 if at < len(self._events) else None)

    def check_invariants(self) -> None:
        assert self._bytes == sum(map(len, self._events)) <= self._order.bytes_max
        assert len(self._events) <= self._order.events_max


def _network_of(order: StartTrace) -> IPv4Network | IPv6Network | None:
    if order.kind == "address":
        try:
            return ip_network(order.value.strip(), strict=False)
        except ValueError as error:
            raise TraceOrderError(f"no IP address or network: {error}") from None
    if order.kind == "topic":
        if len(order.value.encode()) > limits.MQTT_TOPIC_BYTES_MAX or not is_valid_filter(order.value):
            raise TraceOrderError("no topic filter: + stands alone in its level, and # alone in the last one")
    elif len(order.value.encode()) > limits.MQTT_CLIENT_ID_BYTES_MAX:
        raise TraceOrderError(f"a client id has at most {limits.MQTT_CLIENT_ID_BYTES_MAX} bytes")
    return None
