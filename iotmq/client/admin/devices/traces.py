"""Traces of clients, topics and addresses at all front ends."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from iotmq.client.admin.inspections import Answers, InspectionAdmin
from iotmq.client.transport.client import ClientTransport
from iotmq.errors import ClientError
from iotmq.limits import MQTT_TRACE_PAGE_EVENTS_MAX
from iotmq.ports.inspections import TRACE_CHANGES, TRACES
from iotmq.ports.traces import (
    DeleteTrace,
    ListTraces,
    ReadTrace,
    StartTrace,
    StopTrace,
    TraceAnswer,
    TraceEvent,
    TraceState,
    decode_answer,
    encode_order,
)

_NONE: Final[Mapping[str, int]] = {}


class NoSuchTraceError(ClientError):
    """No front end has a trace of the name."""


class TraceRefusedError(ClientError):
    """Front ends do not begin a trace. `is_invalid`: because of a wrong value, not of what there is."""

    def __init__(self, text: str, *, is_invalid: bool = False) -> None:
        super().__init__(text)
        self.is_invalid = is_invalid


class TracedAt(NamedTuple):
    """Hold the states of one trace by front end, and why others gave no answer."""

    states: dict[str, TraceState]
    problems: dict[str, str]


class TracesAt(NamedTuple):
    """Hold all traces by name, and why some front ends gave no answer."""

    traces: dict[str, TracedAt]
    problems: dict[str, str]


class TracePage(NamedTuple):
    """Hold events of all front ends in the order of their times."""

    events: list[tuple[str, TraceEvent]]
    """Each with the name of its front end."""
    reached: dict[str, int]
    """`after` for what comes behind this page."""
    is_end: bool
    """Whether nothing is behind it now."""
    problems: dict[str, str]


class TraceAdmin:
    """Begin, end and read traces; needs a started client."""

    def __init__(self, client: ClientTransport) -> None:
        self._inspections = InspectionAdmin(client)

    async def start(self, order: StartTrace) -> TracedAt:
        """Begin a trace at every front end.

        TraceRefusedError when one refuses; those that had begun it have ended it then.
        """
        answers, silent = await self._ask(TRACE_CHANGES, order)
        refused = {name: each.problem for name, each in answers.items() if each.problem}
        if refused:
            begun = [name for name, each in answers.items() if not each.problem]
            for name in begun:
                await self._inspections.ask(name, TRACE_CHANGES, encode_order(DeleteTrace(name=order.name)))
            is_invalid = all(answers[front_end].is_invalid for front_end in refused)
            raise TraceRefusedError("; ".join(sorted(set(refused.values()))), is_invalid=is_invalid)
        if not answers:
            why = "; ".join(f"{name}: {text}" for name, text in silent.items())
            raise TraceRefusedError(why or "no front end is connected")
        return TracedAt(_states(answers), silent)

    async def stop(self, name: str) -> TracedAt:
        """End a trace everywhere; what it has is kept. NoSuchTraceError when nobody knows it."""
        return await self._change(name, StopTrace(name=name))

    async def delete(self, name: str) -> TracedAt:
        """End a trace everywhere, and forget it. NoSuchTraceError when nobody knows it."""
        return await self._change(name, DeleteTrace(name=name))

    async def all(self) -> TracesAt:
        """List the traces of all front ends."""
        answers, silent = await self._ask(TRACES, ListTraces())
        found: dict[str, TracedAt] = {}
        for front_end, answer in sorted(answers.items()):
            for state in answer.traces:
                found.setdefault(state.name, TracedAt({}, silent)).states[front_end] = state
        return TracesAt(found, silent)

    async def show(self, name: str) -> TracedAt:
        """Return one trace. NoSuchTraceError when nobody knows it."""
        found = (await self.all()).traces.get(name)
        if found is None:
            raise NoSuchTraceError(f"there is no trace {name}")
        return found

    async def events(
        self,
        name: str,
        *,
        after: Mapping[str, int] = _NONE,
        limit: int = MQTT_TRACE_PAGE_EVENTS_MAX,
        with_payloads: bool = False,
    ) -> TracePage:
        """Read a page of events, oldest first; `after` is that of the page before.

        NoSuchTraceError when nobody knows the trace.
        """

        def order_of(front_end: str) -> bytes:
            known = after.get(front_end, 0)
            return encode_order(ReadTrace(name=name, after=known, limit=limit, with_payloads=with_payloads))

        found = await self._inspections.ask_all_front_ends(TRACES, order_of)
        answers, silent = _decoded(found), found.problems
        if answers and all(each.is_unknown for each in answers.values()):
            raise NoSuchTraceError(f"there is no trace {name}")
        lists = [
            [(event.time_ms, front_end, event) for event in answer.events]
            for front_end, answer in answers.items()
        ]
        # Behind the last event of a list that goes on nothing is known: the page ends there.
        ends = [
            answer.events[-1].time_ms
            for answer in answers.values()
            if answer.next_after is not None and answer.events
        ]
        merged = [
            (front_end, event)
            for time_ms, front_end, event in heapq.merge(*lists, key=itemgetter(0))
            if not ends or time_ms <= min(ends)
        ][:limit]
        reached = dict(after)
        for front_end, event in merged:
            reached[front_end] = event.number
        is_end = not ends and len(merged) == sum(map(len, lists))
        return TracePage(merged, reached, is_end, silent)

    async def _change(self, name: str, order: StopTrace | DeleteTrace) -> TracedAt:
        answers, silent = await self._ask(TRACE_CHANGES, order)
        known = {front_end: each for front_end, each in answers.items() if not each.is_unknown}
        if not known and not silent:
            raise NoSuchTraceError(f"there is no trace {name}")
        return TracedAt(_states(known), silent)

    async def _ask(
        self, inspection: str, order: msgspec.Struct
    ) -> tuple[dict[str, TraceAnswer], dict[str, str]]:
        found = await self._inspections.ask_all_front_ends(inspection, encode_order(order))
        return _decoded(found), found.problems


def _decoded(found: Answers) -> dict[str, TraceAnswer]:
    try:
        return {front_end: decode_answer(body) for front_end, body in found.answers.items()}
    except msgspec.DecodeError as error:
        raise ClientError(f"an answer about traces cannot be read: {error}") from error


def _states(answers: Mapping[str, TraceAnswer]) -> dict[str, TraceState]:
    return {front_end: answer.traces[0] for front_end, answer in sorted(answers.items()) if answer.traces}
