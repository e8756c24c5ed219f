"""Contexts as the W3C has them, and spans that wait for the exporter."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq import limits
from iotmq.telemetry.trace_context import read_traceparent
from iotmq.telemetry.tracing import Tracing, begin_tracing, end_tracing, tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{PARENT}-01".encode()


def read_slowly(value: bytes) -> tuple[str, str, bool] | None:
    """The same, obviously."""
    found = re.fullmatch(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", value)
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return found[1].decode(), found[2].decode(), bool(int(found[3], 16) & 1)


@pytest.mark.parametrize(
    "value",
    [
        CONTEXT,
        CONTEXT[:-1] + b"0",
        CONTEXT[:-2] + b"ff",
        CONTEXT.upper(),
        CONTEXT[:-1],
        CONTEXT + b"-",
        b"01" + CONTEXT[2:],
        CONTEXT.replace(TRACE.encode(), b"0" * 32),
        CONTEXT.replace(PARENT.encode(), b"0" * 16),
        CONTEXT.replace(b"-", b"_"),
        b"",
    ],
)
def test_a_context_is_one_of_version_0(value: bytes) -> None:
    assert read_traceparent(value) == read_slowly(value)


@given(st.integers(0, len(CONTEXT) - 1), st.binary(min_size=1, max_size=2))
def test_a_context_with_other_bytes_in_it_is_read_as_the_w3c_says(place: int, other: bytes) -> None:
    value = CONTEXT[:place] + other + CONTEXT[place + len(other) :]
    assert read_traceparent(value) == read_slowly(value)


def test_so_many_spans_wait_and_further_ones_are_counted() -> None:
    own = Tracing()
    for _ in range(limits.SPANS_WAITING_MAX):
        own.delivered(CONTEXT, "screen", 1, time.time_ns())
    assert (own.waiting_count, own.dropped_total) == (limits.SPANS_WAITING_MAX, 0)
    own.delivered(CONTEXT, "screen", 1, time.time_ns())
    assert (own.waiting_count, own.dropped_total) == (limits.SPANS_WAITING_MAX, 1)
    values = {(metric.name, *(value for _, value in metric.labels)): metric.value for metric in own.metrics()}
    assert values["iotmq_telemetry_dropped_spans_total",] == 1
    assert values["iotmq_telemetry_spans_total", "deliver"] == limits.SPANS_WAITING_MAX + 1
    assert len(own.take(limits.SPANS_PER_EXPORT_MAX)) == limits.SPANS_PER_EXPORT_MAX
    assert own.waiting_count == limits.SPANS_WAITING_MAX - limits.SPANS_PER_EXPORT_MAX


def test_a_span_of_a_message_ends_with_what_went_wrong() -> None:
    own = Tracing()
    span = own.received(CONTEXT, None, b"\xff/t" + b"x" * 300, "telemetry", 1, 3)
    span.end("the broker has refused it")
    (ended,) = own.take(2)
    assert (ended.trace_id, ended.parent_id, ended.error) == (TRACE, PARENT, "the broker has refused it")
    assert span.traceparent == f"00-{TRACE}-{ended.span_id}-01".encode()
    assert len(str(ended.attributes["iotmq.mqtt.topic"])) == 256
    assert ended.attributes["messaging.client.id"] == ""


def test_without_a_context_a_trace_begins() -> None:
    own = Tracing()
    first, second = (own.received(None, "pump", b"t", "telemetry", 0, 3) for _ in range(2))
    assert first.trace_id != second.trace_id
    assert read_traceparent(first.traceparent) == (first.trace_id, first.span_id, True)


def test_a_record_of_a_machine_whose_clock_is_ahead_took_no_time() -> None:
    own = Tracing()
    start_ns = time.time_ns() + 10**12
    assert own.stored(CONTEXT, b"telemetry", 3, start_ns)[2] == 0
    (ended,) = own.take(1)
    assert ended.start_ns == ended.end_ns == start_ns


def test_a_process_traces_from_its_begin_to_its_end() -> None:
    own = Tracing()
    assert tracing() is None
    begin_tracing(own)
    assert tracing() is own
    end_tracing(own)
    assert tracing() is None
