"""Orders to a front end about its traces, and its answers, in JSON.

They are inspections: `traces` for those that read, `trace_changes` for those that begin or end one.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits

TraceKind: TypeAlias = Literal["client", "topic", "address"]

TraceName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?!\n)$")]
"""The name of a trace, the same at every front end; a dollar alone lets the end of a line pass behind it."""


class StartTrace(msgspec.Struct, frozen=True, kw_only=True, tag="start", forbid_unknown_fields=True):
    """Begin a trace."""

    name: TraceName
    kind: TraceKind
    value: Annotated[str, Meta(min_length=1, max_length=65_535)]
    """A client id, a topic filter, or an IP address or network."""
    duration_s: Annotated[int, Meta(ge=1, le=limits.MQTT_TRACE_S_MAX)] = 600
    events_max: Annotated[int, Meta(ge=1, le=limits.MQTT_TRACE_EVENTS_MAX)] = 10_000
    """The newest so many are kept."""
    bytes_max: Annotated[int, Meta(ge=1024, le=limits.MQTT_TRACE_BYTES_MAX)] = 4 * 1024 * 1024
    """The newest of so many bytes are kept."""
    payload_bytes: Annotated[int, Meta(ge=0, le=limits.MQTT_TRACE_PAYLOAD_BYTES_MAX)] = 0
    """Of each payload, and of the user properties of a message, that is kept; 0: none of them."""
    by: Annotated[str, Meta(max_length=256)] = ""
    """The one who has started it."""


class StopTrace(msgspec.Struct, frozen=True, kw_only=True, tag="stop", forbid_unknown_fields=True):
    """End a trace; what it has is kept."""

    name: TraceName


class DeleteTrace(msgspec.Struct, frozen=True, kw_only=True, tag="delete", forbid_unknown_fields=True):
    """End a trace, if it has not ended, and forget it."""

    name: TraceName


class ListTraces(msgspec.Struct, frozen=True, kw_only=True, tag="list", forbid_unknown_fields=True):
    """List the traces that are known."""


class ReadTrace(msgspec.Struct, frozen=True, kw_only=True, tag="read", forbid_unknown_fields=True):
    """Read the events of a trace from behind one on."""

    name: TraceName
    after: Annotated[int, Meta(ge=0)] = 0
    """The number of the last event that is known; 0: none."""
    limit: Annotated[int, Meta(ge=1, le=limits.MQTT_TRACE_PAGE_EVENTS_MAX)] = (
        limits.MQTT_TRACE_PAGE_EVENTS_MAX
    )
    with_payloads: bool = False


TraceQuestion: TypeAlias = ListTraces | ReadTrace
TraceChange: TypeAlias = StartTrace | StopTrace | DeleteTrace


class TraceState(msgspec.Struct, frozen=True, kw_only=True):
    """A trace at one front end."""

    name: str
    kind: TraceKind
    value: str
    by: str
    started_ms: int
    until_ms: int
    """When it ends, or has ended."""
    is_running: bool
    payload_bytes: int
    events: int
    """That it has."""
    bytes: int
    lost: int
    """Older events that made room for newer ones."""
    skipped: int
    """Packets that were not looked at, because there were too many in a second."""


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened: a packet or a decision."""

    number: int
    """Counted by the front end for each trace."""
    time_ms: int
    what: Literal["received", "sent", "decided"]
    kind: str
    """The type of the packet, or what was decided about."""
    client: str = ""
    address: str = ""
    topic: str = ""
    facts: dict[str, str | int | bool | list[str]] = {}
    """The fields of the packet, or of the decision; no passwords, no tokens."""
    payload: str = ""
    """The beginning of a payload that is text."""
    payload_base64: str = ""
    """The beginning of one that is not."""
    properties: list[tuple[str, str]] = []
    """User properties of a message."""


class TraceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to each order: `problem` is empty when it was followed."""

    problem: str = ""
    is_unknown: bool = False
    """Whether there is no trace of the name."""
    is_invalid: bool = False
    """Whether the order has a wrong value."""
    traces: list[TraceState] = []
    events: list[TraceEvent] = []
    next_after: int | None = None
    """`after` for what follows; None at the end of what there is now."""


encode_order: Final = msgspec.json.Encoder().encode
decode_question: Final = msgspec.json.Decoder(TraceQuestion).decode
decode_change: Final = msgspec.json.Decoder(TraceChange).decode
decode_answer: Final = msgspec.json.Decoder(TraceAnswer).decode
