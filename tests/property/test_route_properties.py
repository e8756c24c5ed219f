"""Routes against their slow, obvious twin: a walk over all of them with `matches`, and JSON read by json."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from iotmq.mqtt.topics.topics import matches
from iotmq.mqtt_front.routing.checksum_names import checksum_of
from iotmq.mqtt_front.routing.route_fields import RoutedMessage, placeholder
from iotmq.mqtt_front.routing.routes import Router, Target
from iotmq.mqtt_front.settings.routes import ChecksumSettings, RouteSettings

LEVEL = st.sampled_from(["", "a", "b", "$s", "é"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=3).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), max_size=3))
    if not levels or draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "+"


CONDITIONS = st.lists(
    st.sampled_from(
        ["{0} = 'a'", "{1} exists", "{json:x} > 1", "{json:y.0} missing", "{content_type} = 't'"]
    ),
    max_size=2,
    unique=True,
)


def holds(condition: str, topic: str, document: Any, properties: dict[str, object]) -> bool:
    """What each of these conditions says, in plain Python."""
    levels = topic.split("/")
    if condition == "{0} = 'a'":
        return levels[0] == "a"
    if condition == "{1} exists":
        return len(levels) > 1
    if condition == "{json:x} > 1":
        value = document.get("x") if isinstance(document, dict) else None
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 1
    if condition == "{json:y.0} missing":
        value = document.get("y") if isinstance(document, dict) else None
        if isinstance(value, dict):
            return value.get("0") is None
        return not (isinstance(value, list) and value and value[0] is not None)
    return properties.get("content_type") == "t"


DOCUMENT = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "x": st.one_of(st.integers(0, 3), st.booleans(), st.text(max_size=2), st.none()),
            "y": st.one_of(
                st.lists(st.one_of(st.none(), st.integers(0, 1)), max_size=2),
                st.dictionaries(st.just("0"), st.one_of(st.none(), st.integers(0, 1))),
                st.integers(),
            ),
        },
    ),
    st.integers(),
    st.lists(st.integers(), max_size=2),
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(filters(), CONDITIONS), max_size=8),
    TOPIC,
    st.one_of(DOCUMENT, st.just("not JSON")),
    st.sampled_from([{}, {"content_type": "t"}]),
)
def test_the_first_route_that_matches_decides(
    routes: list[tuple[str, list[str]]], topic: str, document: Any, properties: dict[str, object]
) -> None:
    router = Router(
        [
            RouteSettings(filter=topic_filter, topic=f"T{number}", when=tuple(conditions))
            for number, (topic_filter, conditions) in enumerate(routes)
        ],
        default_topic="mqtt",
    )
    payload = b"{" if document == "not JSON" else json.dumps(document).encode()
    expected = next(
        (
            f"T{number}"
            for number, (topic_filter, conditions) in enumerate(routes)
            if matches(topic_filter, topic)
            and all(holds(each, topic, document, properties) for each in conditions)
        ),
        "mqtt",
    )
    plan = router.plan(topic)
    assert (plan if isinstance(plan, Target) else plan.decide(payload, properties)).topic == expected


ALL_TOPICS = ["/".join(levels) for levels in (
    [(one,) for one in ("a", "b", "$s", "")]
    + [(one, two) for one in ("a", "b", "$s", "") for two in ("a", "b", "")]
    + [(one, two, three) for one in ("a", "b", "$s") for two in ("a", "b") for three in ("a", "b", "")]
) if "/".join(levels)]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(filters(), min_size=1, max_size=6))
def test_a_route_that_is_never_used_is_none_that_a_topic_finds(names: list[str]) -> None:
    router = Router(
        [RouteSettings(filter=name, topic=f"T{number}") for number, name in enumerate(names)],
        default_topic="mqtt",
    )
    unreachable = {int(warning.split("[")[1].split("]")[0]) for warning in router.warnings}
    used = {int(target[1:]) for topic in ALL_TOPICS if (target := router.resolve(topic).topic) != "mqtt"}
    assert not unreachable & used


NAMES = st.sampled_from(["a", "b", "0", "1"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("xy", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=300)
@given(ANY, st.lists(NAMES, min_size=1, max_size=3))
def test_json_paths(document: Any, path: list[str]) -> None:
    expected = document
    for step in path:
        if isinstance(expected, dict):
            expected = expected.get(step)
        elif isinstance(expected, list) and step.isdecimal() and int(step) < len(expected):
            expected = expected[int(step)]
        else:
            expected = None
    message = RoutedMessage("t", payload=json.dumps(document).encode())
    assert placeholder("json:" + ".".join(path), "here").read(message) == expected


def slow_crc(
    data: bytes, *, width: int, polynomial: int, initial: int, is_reversed: bool, xor_out: int
) -> int:
    """A CRC bit by bit, as the catalogues define it."""
    register = initial
    for byte in data:
        if is_reversed:
            byte = int(f"{byte:08b}"[::-1], 2)
        for bit in range(7, -1, -1):
            is_carried = (register >> (width - 1) & 1) ^ (byte >> bit & 1)
            register = (register << 1 & (1 << width) - 1) ^ (polynomial if is_carried else 0)
    if is_reversed:
        register = int(f"{register:0{width}b}"[::-1], 2)
    return register ^ xor_out


@settings(max_examples=300)
@given(st.data(), st.sampled_from([8, 16, 24, 32, 64]), st.booleans(), st.binary(max_size=40))
def test_checksums(data: st.DataObject, width: Any, is_reversed: bool, payload: bytes) -> None:
    number = st.integers(0, (1 << width) - 1)
    polynomial = data.draw(number.filter(bool))
    initial, xor_out = data.draw(number), data.draw(number)
    declared = checksum_of(
        ChecksumSettings(
            width=width,
            polynomial=hex(polynomial),
            initial=hex(initial),
            xor_out=hex(xor_out),
            reversed=is_reversed,
        ),
        "here",
    )
    expected = slow_crc(
        payload,
        width=width,
        polynomial=polynomial,
        initial=initial,
        is_reversed=is_reversed,
        xor_out=xor_out,
    )
    assert declared.compute(payload) == expected
    order: Any = "little" if is_reversed else "big"
    assert declared.wrong_in(payload + expected.to_bytes(width // 8, order)) == ""
