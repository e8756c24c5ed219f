"""Contexts of requests that messages go on with, with and without a span of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iotmq.console.api.problems import CONFLICT, ProblemError
from iotmq.console.api.route import Call, Caller, Role
from iotmq.console.api.routes.messaging.messages import OnceArguments
from iotmq.console.api.trace_context import traced
from iotmq.console.server.messages import Request
from iotmq.telemetry.tracing import Tracing, begin_tracing, end_tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


def call(traceparent: str, tracestate: str = "") -> Call[OnceArguments, None]:
    arguments = OnceArguments(traceparent=traceparent, tracestate=tracestate)
    caller = Caller("ops", Role.OPERATOR, "127.0.0.1")
    return Call(arguments, None, caller, Request("POST", "/", "", {}, "127.0.0.1"))


@pytest.fixture
def own() -> Iterator[Tracing]:
    own = Tracing()
    begin_tracing(own)
    yield own
    end_tracing(own)


@pytest.mark.parametrize("given", ["", "00", SAMPLED.upper(), f"01-{TRACE}-{PARENT}-01", "\u20ac" * 55])
def test_what_is_no_context_is_left_out(own: Tracing, given: str) -> None:
    with traced(call(given, "a=1"), "t", 1) as carried:
        assert carried == {}
    assert own.waiting_count == 0


def test_without_tracing_it_is_carried_on_as_it_is() -> None:
    for context in (SAMPLED, NOT_SAMPLED):
        with traced(call(context, "a=1"), "t", 1, is_for_devices=False) as carried:
            assert carried == {"traceparent": context, "tracestate": "a=1"}
    with traced(call(SAMPLED), "t", 1) as carried:
        assert carried == {"traceparent": SAMPLED, "MQTT_USER.traceparent": SAMPLED}


def test_a_sampled_one_is_a_span_and_messages_are_its_children(own: Tracing) -> None:
    with traced(call(SAMPLED, "a=1"), "plant/7", 3) as carried:
        pass
    (span,) = own.take(2)
    assert carried["traceparent"] == carried["MQTT_USER.traceparent"] == f"00-{TRACE}-{span.span_id}-01"
    assert (span.trace_id, span.parent_id, span.error) == (TRACE, PARENT, "")
    found = span.attributes
    assert (found["messaging.destination.name"], found["messaging.client.id"]) == ("plant/7", "ops")
    assert found["messaging.message.body.size"] == 3
    with traced(call(NOT_SAMPLED), "t", 1) as carried:
        assert carried["traceparent"] == NOT_SAMPLED
    assert own.waiting_count == 0


def test_a_span_ends_with_what_went_wrong(own: Tracing) -> None:
    with pytest.raises(ProblemError), traced(call(SAMPLED), "t", 1):
        raise ProblemError(CONFLICT, "not now")
    (span,) = own.take(2)
    assert span.error == "not now"


STATES = [("a" * 512, True), ("a" * 513, False), ("a\u20ac", False)]


@pytest.mark.parametrize(("tracestate", "is_kept"), STATES)
def test_a_state_of_at_most_so_many_characters_goes_with_it(tracestate: str, is_kept: bool) -> None:
    with traced(call(NOT_SAMPLED, tracestate), "t", 1) as carried:
        assert (carried.get("tracestate") == tracestate) is is_kept
