"""One trace: what it is for, and that it keeps the newest events within its limits."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.mqtt_front.tracing.trace import Trace, TraceOrderError
from iotmq.ports.traces import ReadTrace, StartTrace, TraceEvent


def trace(**fields: Any) -> Trace:
    order = StartTrace(**({"name": "t", "kind": "client", "value": "c"} | fields))
    return Trace(order, now_ms=1_000, skipped=7)


def event(text: str = "", **fields: Any) -> TraceEvent:
    return TraceEvent(number=0, time_ms=5, what="decided", kind="drop", facts={"reason": text}, **fields)


def test_the_newest_events_are_kept_and_numbered_on() -> None:
    kept = trace(events_max=3)
    for number in range(5):
        kept.add(event(str(number)))
        kept.check_invariants()
    found, after = kept.page(ReadTrace(name="t"))
    assert [(each.number, each.facts["reason"]) for each in found] == [(3, "2"), (4, "3"), (5, "4")]
    assert after is None
    state = kept.state(skipped=9)
    assert (state.events, state.lost, state.skipped, state.is_running) == (3, 2, 2, True)


def test_events_are_bounded_by_their_bytes() -> None:
    kept = trace(bytes_max=1024)
    for _ in range(20):
        kept.add(event("x" * 200))
        kept.check_invariants()
    assert 2 <= kept.state(0).events <= 4
    kept.add(event("y" * 2_000))
    kept.check_invariants()
    assert kept.state(0).events == 0, "one that is larger than all of the trace may be is not kept"
    kept.add(event("z"))
    assert [each.number for each in kept.page(ReadTrace(name="t"))[0]] == [22]


def test_pages_follow_each_other_and_have_a_size() -> None:
    kept = trace(bytes_max=limits.MQTT_TRACE_BYTES_MAX)
    for number in range(30):
        kept.add(event(str(number) + "x" * 50_000))
    found, after = kept.page(ReadTrace(name="t", limit=4))
    assert [each.number for each in found] == [1, 2, 3, 4]
    assert after == 4
    numbers = []
    after = 0
    while after is not None:
        found, after = kept.page(ReadTrace(name="t", after=after))
        assert 0 < len(found) <= limits.MQTT_TRACE_PAGE_BYTES_MAX // 50_000
        numbers += [each.number for each in found]
    assert numbers == list(range(1, 31))
    assert kept.page(ReadTrace(name="t", after=30)) == ([], None)
    assert kept.page(ReadTrace(name="t", after=99)) == ([], None)


def test_who_may_not_read_payloads_gets_none() -> None:
    kept = trace()
    kept.add(event(payload="p", properties=[("a", "b")]))
    kept.add(event(payload_base64="cA=="))
    hidden, _ = kept.page(ReadTrace(name="t"))
    assert [(each.payload, each.payload_base64, each.properties) for each in hidden] == [("", "", [])] * 2
    shown, _ = kept.page(ReadTrace(name="t", with_payloads=True))
    assert [each.payload + each.payload_base64 for each in shown] == ["p", "cA=="]


def test_an_end_is_final_and_stops_counting() -> None:
    kept = trace(duration_s=10)
    assert kept.until_ms == 11_000
    kept.end(3_000, 8)
    kept.end(4_000, 100)
    state = kept.state(500)
    assert (state.until_ms, state.skipped, state.is_running) == (3_000, 1, False)


@pytest.mark.parametrize(
    ("value", "address", "is_wanted"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.0/8", "10.9.9.9", True),
        (" 10.1.0.3/16 ", "10.1.2.3", True),
        ("fd00::/8", "fd12::1", True),
        ("fd00::/8", "10.0.0.1", False),
        ("10.0.0.0/8", None, False),
    ],
)
def test_an_address_is_one_or_a_network(value: str, address: str | None, is_wanted: bool) -> None:
    assert trace(kind="address", value=value).is_of_address(address) is is_wanted
    assert not trace(value=value).is_of_address(address), "one of a client has none"


def test_topics_match_as_filters_do() -> None:
    wanted = trace(kind="topic", value="a/+/c")
    assert wanted.is_of_topic("a/b/c")
    assert not wanted.is_of_topic("a/b")
    assert not trace(value="a/b/c").is_of_topic("a/b/c")


@pytest.mark.parametrize(
    ("kind", "value", "what"),
    [
        ("address", "plant-7", "no IP address"),
        ("address", "10.0.0.0/99", "no IP address"),
        ("topic", "a/#/b", "no topic filter"),
        ("topic", "a+", "no topic filter"),
        ("topic", "x" * (limits.MQTT_TOPIC_BYTES_MAX + 1), "no topic filter"),
        ("client", "x" * (limits.MQTT_CLIENT_ID_BYTES_MAX + 1), "a client id has at most"),
    ],
)
def test_a_value_that_is_none_of_its_kind_is_refused(kind: str, value: str, what: str) -> None:
    with pytest.raises(TraceOrderError, match=what):
        trace(kind=kind, value=value)


def test_values_at_their_limits_are_taken() -> None:
    trace(kind="topic", value="x" * limits.MQTT_TOPIC_BYTES_MAX)
    trace(kind="client", value="x" * limits.MQTT_CLIENT_ID_BYTES_MAX)
