"""Placeholders of routes: values of topics, devices, properties and JSON, and texts made of them."""

from __future__ import annotations

import json

import pytest

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.routing.route_fields import (
    InvalidJsonError,
    RoutedMessage,
    Template,
    placeholder,
    read_json,
    text_of,
)

MESSAGE = RoutedMessage(
    "devices/7/state",
    DeviceNames("pump", "ann"),
    payload=b'{"a": {"b": [{"c": 1.5}, "x"], "0": "zero"}, "t": true, "n": null}',
    properties={
        "content_type": "text/plain",
        "response_topic": "answers/1",
        "correlation_data": b"\x00\x01\xff",
        "user_properties": (("site", "north"), ("unit", "C"), ("site", "south")),
    },
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{topic}", "devices/7/state"),
        ("{0}.{2}", "devices.state"),
        ("{9}", ""),
        ("{client_id}@{user}", "pump@ann"),
        ("{content_type}", "text/plain"),
        ("{response_topic}", "answers/1"),
        ("{correlation_data}", "AAH/"),
        ("{property:unit}", "C"),
        ("{property:site}", "south"),
        ("{property:other}", ""),
        ("{json:a.b.0.c}", "1.5"),
        ("{json:a.b.1}", "x"),
        ("{json:a.0}", "zero"),
        ("{json:t}", "true"),
        ("{json:n}", ""),
        ("{json:a}", ""),
        ("{json:a.b}", ""),
        ("{json:a.b.2}", ""),
        ("{json:a.b.-1}", ""),
        ("{json:t.x}", ""),
        ("<{json:a.b.1}>", "<x>"),
    ],
)
def test_templates(template: str, text: str) -> None:
    assert Template(template, "here").expand(MESSAGE) == text


def test_of_a_device_that_nobody_knows_there_are_no_names() -> None:
    assert Template("[{client_id}{user}]", "here").expand(RoutedMessage("a")) == "[]"


def test_the_payload_is_read_once_and_only_when_it_is_asked_for() -> None:
    message = RoutedMessage("a", payload=b"{")
    assert Template("{topic}", "here").expand(message) == "a"
    assert message.invalid_json == ""
    assert Template("{json:x}{json:y}", "here").expand(message) == ""
    assert "no JSON" in message.invalid_json


@pytest.mark.parametrize(
    "text", ["", "name", "json:", "json:a..b", "property:", "json", "128", "-1", "json:."]
)
def test_what_is_unknown_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^mqtt\.routes"):
        placeholder(text, "mqtt.routes[0].key")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\x01b\x02c\0d", "a\ufffdb\ufffdc\ufffdd"),
        (5, "5"),
        (-0.25, "-0.25"),
        (1e30, "1e30"),
        (False, "false"),
        (1 << 100, "1267650600228229401496703205376"),
        ([], ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_texts_of_values(value: object, text: str) -> None:
    assert text_of(value) == text


def test_digits_without_end_leave_nothing() -> None:
    assert text_of(10**5_000) == ""


def test_a_value_has_a_length() -> None:
    longest = "é" * (limits.MQTT_ROUTE_VALUE_BYTES_MAX // 2)
    assert text_of(longest) == longest
    assert text_of(longest + "x") == "", "one byte more"
    assert text_of("x" * (limits.MQTT_ROUTE_VALUE_BYTES_MAX + 1)) == ""


def test_a_payload_that_is_read_has_a_size() -> None:
    size_max = limits.MQTT_ROUTE_JSON_BYTES_MAX
    longest = b'"' + b"x" * (size_max - 2) + b'"'
    assert read_json(longest, size_max=size_max) == "x" * (size_max - 2)
    with pytest.raises(InvalidJsonError, match=r"mqtt\.json_bytes_max"):
        read_json(longest + b" ", size_max=size_max)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\xff",
        b'"\xff"',
        b"nan",
        b"[1,]",
        b'{"a": 1} x',
        b"[" * 60_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'"\\ud800"',
    ],
)
def test_what_is_no_json_says_so(payload: bytes) -> None:
    with pytest.raises(InvalidJsonError):
        read_json(payload, size_max=1 << 20)


@pytest.mark.parametrize("payload", [b"9" * 50_000, b"1e999", b"1" + b"0" * 400, b"-0", b"1.0e-400"])
def test_numbers_of_any_size_harm_nobody(payload: bytes) -> None:
    try:
        value = read_json(payload, size_max=1 << 20)
    except InvalidJsonError:
        return
    text_of(value)
    assert json.loads(payload) is not None


def test_separators_in_a_template_are_refused() -> None:
    with pytest.raises(ConfigError, match="separate"):
        Template("a\x01", "here")
