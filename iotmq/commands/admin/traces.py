"""Traces of clients, topics and addresses."""

from __future__ import annotations

import argparse
import getpass

from iotmq.client.admin.devices.trace_text import json_line, text_line
from iotmq.client.admin.devices.traces import TraceAdmin, TracedAt
from iotmq.commands.admin.output import Done, Nothing, Result, Row, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError
from iotmq.ports.traces import StartTrace, TraceKind

_COLUMNS = (
    "name", "kind", "value", "is_running", "until_ms", "front_end", "events", "bytes", "lost", "skipped",
    "by",
)  # fmt: skip


async def start(session: Session, options: argparse.Namespace) -> Result:
    """Begin a trace at all front ends."""
    kind, value = _what(options)
    order = StartTrace(
        name=options.name,
        kind=kind,
        value=value,
        duration_s=max(1, options.duration_ms // 1000),
        events_max=options.events_max,
        bytes_max=options.bytes_max,
        payload_bytes=options.payload_bytes,
        by=getpass.getuser(),
    )
    begun = await TraceAdmin(session.client).start(order)
    return Done(
        f"trace {options.name} runs at {', '.join(begun.states)}{_silent(begun.problems)}; "
        f"`iotmq admin trace show {options.name}` shows it",
        {"name": options.name, "front_ends": list(begun.states), "problems": begun.problems},
    )


async def stop(session: Session, options: argparse.Namespace) -> Result:
    """End a trace; what it has is kept."""
    ended = await TraceAdmin(session.client).stop(options.name)
    return _changed(options.name, "has ended", ended)


async def delete(session: Session, options: argparse.Namespace) -> Result:
    """End a trace and forget it."""
    ended = await TraceAdmin(session.client).delete(options.name)
    return _changed(options.name, "is deleted", ended)


async def list_all(session: Session, options: argparse.Namespace) -> Result:
    """List the traces that front ends know, a row for each front end."""
    found = await TraceAdmin(session.client).all()
    rows: list[Row] = [
        {
            "name": name,
            "kind": state.kind,
            "value": state.value,
            "is_running": state.is_running,
            "until_ms": state.until_ms,
            "front_end": front_end,
            "events": state.events,
            "bytes": state.bytes,
            "lost": state.lost,
            "skipped": state.skipped,
            "by": state.by,
        }
        for name, traced in sorted(found.traces.items())
        for front_end, state in traced.states.items()
    ]
    return Table(rows, columns=_COLUMNS, nothing="there is no trace")


async def show(session: Session, options: argparse.Namespace) -> Result:
    """Write the events of a trace to standard output, a line each."""
    admin = TraceAdmin(session.client)
    after: dict[str, int] | None = {}
    while after is not None:
        page = await admin.events(options.name, after=after, with_payloads=True)
        for front_end, event in page.events:
            as_json = options.is_json or options.has_json_lines
            session.output.write(
                json_line(front_end, event) if as_json else text_line(front_end, event).encode()
            )
        after = None if page.is_end else page.reached
    session.output.flush()
    return Nothing()


def _what(options: argparse.Namespace) -> tuple[TraceKind, str]:
    kinds: tuple[TraceKind, ...] = ("client", "topic", "address")
    given = [(kind, getattr(options, f"of_{kind}")) for kind in kinds if getattr(options, f"of_{kind}")]
    if len(given) != 1:
        raise ClientError("say what is traced: one of --client, --topic and --address")
    return given[0]


def _changed(name: str, what: str, traced: TracedAt) -> Result:
    values = {"name": name, "front_ends": list(traced.states), "problems": traced.problems}
    return Done(f"trace {name} {what} at {', '.join(traced.states)}{_silent(traced.problems)}", values)


def _silent(problems: dict[str, str]) -> str:
    return f"; no answer of {', '.join(sorted(problems))}" if problems else ""
