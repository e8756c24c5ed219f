"""Trace contexts (W3C Trace Context) of requests: carried on by the messages that they send."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from iotmq.console.api.route import Call
from iotmq.message.properties import MQTT_USER_PREFIX
from iotmq.telemetry.trace_context import read_traceparent
from iotmq.telemetry.tracing import OpenSpan, tracing

# A longer one, or one of other characters, is left out, as the recommendation allows.
_TRACESTATE: Final = re.compile(r"[\x20-\x7e]{1,512}")


@contextmanager
def traced(
    call: Call[Any, Any], destination: str, size_bytes: int, *, is_for_devices: bool = True
) -> Iterator[Mapping[str, str]]:
    """Give the properties with which messages go on with the trace of the request; none where it has none.

    In a process that traces, what is done meanwhile is a span, if the context is sampled. Devices get the
    context as user properties, whether their gateway traces or not.
    """
    traceparent, tracestate = call.arguments.traceparent, call.arguments.tracestate
    context = read_traceparent(traceparent.encode("utf-8", "replace"))
    if context is None:
        # Also what is no context: whoever gets it would have to begin anew.
        yield {}
        return
    tracer = tracing()
    span: OpenSpan | None = None
    if tracer is not None and context[2]:
        span = tracer.asked(traceparent.encode(), call.caller.name, destination, size_bytes)
        traceparent = span.traceparent.decode()
    carried = {"traceparent": traceparent}
    if _TRACESTATE.fullmatch(tracestate):
        carried["tracestate"] = tracestate
    if is_for_devices:
        carried |= {MQTT_USER_PREFIX + name: value for name, value in carried.items()}
    try:
        with nullcontext() if span is None else span.current():
            yield carried
    except BaseException as error:
        if span is not None:
            span.end(str(error) or type(error).__name__)
        raise
    if span is not None:
        span.end()
