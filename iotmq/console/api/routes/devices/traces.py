"""Traces of clients, topics and addresses at all front ends."""

from __future__ import annotations

import secrets
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.admin.cursors import decode_cursor, encode_cursor
from iotmq.client.admin.devices.trace_text import json_line, text_line
from iotmq.client.admin.devices.traces import TraceAdmin, TracedAt, TraceRefusedError
from iotmq.console.api.pages import Cursor, Limit
from iotmq.console.api.problems import CONFLICT, NOT_FOUND, ProblemError, invalid
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.services import Services
from iotmq.console.server.messages import Answer, Sink
from iotmq.ports.traces import StartTrace, TraceEvent, TraceKind, TraceName, TraceState

_BY_CHARACTERS_MAX: Final = 256


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace."""

    name: str
    kind: TraceKind
    value: str
    """The client id, topic filter, or IP address or network that is traced."""
    by: str
    """The one who has started it."""
    started_ms: int
    until_ms: int
    """When it ends, or has ended."""
    is_running: bool
    payload_bytes: int
    """Of each payload that is kept."""
    events: int
    """That it has, at all front ends."""
    lost: int
    """Older events that made room for newer ones."""
    skipped: int
    """Packets that were not looked at, because there were too many in a second."""
    front_ends: dict[str, TraceState]


class TraceList(msgspec.Struct, frozen=True, kw_only=True):
    """All traces."""

    items: list[Trace]
    problems: dict[str, str]
    """Front ends that did not answer, and why."""


class TraceChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that has been begun or ended."""

    name: str
    front_ends: list[str]
    """Those that have done it."""
    problems: dict[str, str]
    """Front ends that did not answer, and why."""


class NewTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace to begin."""

    kind: TraceKind
    """The kind of thing that is traced: a client, messages of topics, or connections from an address."""
    value: Annotated[str, Meta(min_length=1, max_length=65_535)]
    """The client id, topic filter, or IP address or network."""
    name: TraceName | None = None
    """One is made up by default."""
    duration_s: Annotated[int, Meta(ge=1, le=limits.MQTT_TRACE_S_MAX)] = 600
    """How long it runs."""
    events_max: Annotated[int, Meta(ge=1, le=limits.MQTT_TRACE_EVENTS_MAX)] = 10_000
    """The newest so many are kept at each front end."""
    bytes_max: Annotated[int, Meta(ge=1024, le=limits.MQTT_TRACE_BYTES_MAX)] = 4 * 1024 * 1024
    """The newest so many bytes of events are kept at each front end."""
    payload_bytes: Annotated[int, Meta(ge=0, le=limits.MQTT_TRACE_PAYLOAD_BYTES_MAX)] = 0
    """Of each payload that is kept, with user properties; 0: none of them."""


class TraceArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One trace."""

    trace: TraceName
    """The name of the trace."""


class EventsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of the events of a trace."""

    trace: TraceName
    """The name of the trace."""
    limit: Limit = 100
    """The most items of a page."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""


class DownloadArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace as a file."""

    trace: TraceName
    """The name of the trace."""
    format: Literal["text", "jsonl"] = "text"
    """Lines for people, or lines of JSON."""


class Event(TraceEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A packet or a decision."""

    front_end: str
    """The front end that has seen it."""


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events, oldest first."""

    items: list[Event]
    next: str | None
    """`cursor` for the next page; null when there are no more now."""
    last: str
    """`cursor` for what will have come behind this page."""
    problems: dict[str, str]
    """Front ends that did not answer, and why."""


async def list_traces(services: Services, _call: Call[NoArguments, None]) -> TraceList:
    """List the traces that front ends know."""
    found = await TraceAdmin(await services.client()).all()
    return TraceList(
        items=[_trace(name, traced) for name, traced in sorted(found.traces.items())], problems=found.problems
    )


async def show_trace(services: Services, call: Call[TraceArguments, None]) -> Trace:
    """Show one trace."""
    name = call.arguments.trace
    return _trace(name, await TraceAdmin(await services.client()).show(name))


async def start_trace(services: Services, call: Call[NoArguments, NewTrace]) -> TraceChanged:
    """Begin a trace at all front ends."""
    body = call.body
    name = body.name or f"{body.kind}-{secrets.token_hex(4)}"
    order = StartTrace(
        name=name,
        kind=body.kind,
        value=body.value,
        duration_s=body.duration_s,
        events_max=body.events_max,
        bytes_max=body.bytes_max,
        payload_bytes=body.payload_bytes,
        by=call.caller.name[:_BY_CHARACTERS_MAX],
    )
    try:
        return _changed(name, await TraceAdmin(await services.client()).start(order))
    except TraceRefusedError as error:
        if error.is_invalid:
            raise invalid(str(error), pointer="/value") from None
        raise ProblemError(CONFLICT, str(error)) from None


async def stop_trace(services: Services, call: Call[TraceArguments, None]) -> TraceChanged:
    """End a trace; what it has is kept."""
    name = call.arguments.trace
    return _changed(name, await TraceAdmin(await services.client()).stop(name))


async def delete_trace(services: Services, call: Call[TraceArguments, None]) -> TraceChanged:
    """End a trace and forget it."""
    name = call.arguments.trace
    return _changed(name, await TraceAdmin(await services.client()).delete(name))


async def read_trace(services: Services, call: Call[EventsArguments, None]) -> Events:
    """Read the events of a trace, those of all front ends in the order of their times."""
    wanted = call.arguments
    after = decode_cursor(wanted.cursor, "trace", dict[str, int]) or {}
    admin = TraceAdmin(await services.client())
    page = await admin.events(wanted.trace, after=after, limit=wanted.limit, with_payloads=True)
    items = [
        Event(front_end=front_end, **{name: getattr(event, name) for name in TraceEvent.__struct_fields__})
        for front_end, event in page.events
    ]
    last = encode_cursor("trace", page.reached)
    return Events(items=items, next=None if page.is_end else last, last=last, problems=page.problems)


async def download_trace(services: Services, call: Call[DownloadArguments, None]) -> Answer:
    """Download a trace as a file: lines for people, or lines of JSON."""
    wanted = call.arguments
    admin = TraceAdmin(await services.client())
    await admin.show(wanted.trace)
    is_text = wanted.format == "text"

    async def stream(sink: Sink) -> None:
        after: dict[str, int] | None = {}
        while after is not None:
            page = await admin.events(wanted.trace, after=after, with_payloads=True)
            lines = [
                text_line(front_end, event).encode() if is_text else json_line(front_end, event)
                for front_end, event in page.events
            ]
            await sink.write(b"".join(lines))
            after = None if page.is_end else page.reached

    name = f"{wanted.trace}.{'txt' if is_text else 'jsonl'}"
    return Answer(
        content_type="text/plain; charset=utf-8" if is_text else "application/jsonl",
        headers=(
            ("Content-Disposition", f'attachment; filename="{name}"'),
            ("X-Content-Type-Options", "nosniff"),
        ),
        stream=stream,
    )


def _trace(name: str, traced: TracedAt) -> Trace:
    states = list(traced.states.values())
    first = states[0]
    return Trace(
        name=name,
        kind=first.kind,
        value=first.value,
        by=first.by,
        started_ms=min(each.started_ms for each in states),
        until_ms=max(each.until_ms for each in states),
        is_running=any(each.is_running for each in states),
        payload_bytes=first.payload_bytes,
        events=sum(each.events for each in states),
        lost=sum(each.lost for each in states),
        skipped=sum(each.skipped for each in states),
        front_ends=traced.states,
    )


def _changed(name: str, traced: TracedAt) -> TraceChanged:
    return TraceChanged(name=name, front_ends=list(traced.states), problems=traced.problems)


_AREA: Final = "traces"

ROUTES: Final = (
    route("GET", "/traces", list_traces, tag=_AREA, role=Role.OPERATOR),
    route("POST", "/traces", start_trace, tag=_AREA, role=Role.OPERATOR, problems=(CONFLICT,)),
    route("GET", "/traces/{trace}", show_trace, tag=_AREA, role=Role.OPERATOR, problems=(NOT_FOUND,)),
    route("DELETE", "/traces/{trace}", delete_trace, tag=_AREA, role=Role.OPERATOR, problems=(NOT_FOUND,)),
    route("POST", "/traces/{trace}/stop", stop_trace, tag=_AREA, role=Role.OPERATOR, problems=(NOT_FOUND,)),
    route("GET", "/traces/{trace}/events", read_trace, tag=_AREA, role=Role.OPERATOR, problems=(NOT_FOUND,)),
    route(
        "GET",
        "/traces/{trace}/download",
        download_trace,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND,),
    ),
)
