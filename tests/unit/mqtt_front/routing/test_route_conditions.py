"""Conditions of routes: comparisons, what is not there, and conditions that exclude each other."""

from __future__ import annotations

import pytest

from iotmq.errors import ConfigError
from iotmq.mqtt_front.routing.route_conditions import condition, contradiction
from iotmq.mqtt_front.routing.route_fields import RoutedMessage

MESSAGE = RoutedMessage(
    "devices/7/state",
    payload=b'{"t": 21.5, "n": 3, "kind": "alarm", "on": true, "null": null, "list": [1], "digits": "30"}',
    properties={"content_type": "application/json", "user_properties": (("level", "5"), ("ok", "true"))},
)


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("{json:t} > 21", True),
        ("{json:t} > 21.5", False),
        ("{json:t} >= 21.5", True),
        ("{json:t}<22", True),
        ("{json:t} <= 2.15e1", True),
        ("{json:n} = 3", True),
        ("{json:n} == 3.0", True),
        ("{json:n} != 3", False),
        ("{json:n} != 4", True),
        ("{json:n} > -1", True),
        ("{json:kind} = 'alarm'", True),
        ('{json:kind} = "alarm"', True),
        ("{json:kind} != 'alarm'", False),
        ("{json:kind} > 'a'", True),
        ("{json:on} = true", True),
        ("{json:on} != false", True),
        ("{json:on} = false", False),
        # Another kind is different, and has no order.
        ("{json:kind} = 5", False),
        ("{json:kind} != 5", True),
        ("{json:kind} < 5", False),
        ("{json:on} = 1", False),
        ("{json:digits} > 20", False),
        ("{json:list} = 1", False),
        ("{json:list} != 1", True),
        # What is not there meets nothing but missing.
        ("{json:none} = 1", False),
        ("{json:none} != 1", False),
        ("{json:null} != 1", False),
        ("{json:none} missing", True),
        ("{json:null} missing", True),
        ("{json:list} exists", True),
        ("{json:none} exists", False),
        # Texts of topics and properties may be numbers.
        ("{1} = 7", True),
        ("{1} > 6.5", True),
        ("{0} > 6", False),
        ("{1} = '7'", True),
        ("{9} missing", True),
        ("{property:level} >= 5", True),
        ("{property:ok} = true", True),
        ("{content_type} = 'application/json'", True),
        ("{response_topic} exists", False),
    ],
)
def test_conditions(text: str, is_met: bool) -> None:
    assert condition(text, "here").is_met(MESSAGE) is is_met


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("json:t > 5", "a condition is"),
        ("{json:t} ~ 5", "a condition is"),
        ("{json:t}", "a condition is"),
        ("{json:t} > five", "not a number"),
        ("{json:t} > 'five", "not a number"),
        ("{json:t} > nan", "not a number"),
        ("{json:t} > 1e999", "not a number"),
        ("{json:t} > true", "no order"),
        ("{json:t} exists 5", "nothing follows"),
        ("{name} = 5", "not known"),
    ],
)
def test_what_is_no_condition_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^mqtt\.routes\[0\]\.when\[0\].*{words}"):
        condition(text, "mqtt.routes[0].when[0]")


@pytest.mark.parametrize(
    "texts",
    [
        ("{json:a} = 1", "{json:a} = 2"),
        ("{json:a} = 'x'", "{json:a} != 'x'"),
        ("{json:a} = 1", "{json:a} > 1"),
        ("{json:a} > 5", "{json:a} < 5"),
        ("{json:a} >= 5", "{json:a} < 5"),
        ("{json:a} < 3", "{json:a} > 7"),
        ("{json:a} missing", "{json:a} > 7"),
        ("{json:a} exists", "{json:a} missing"),
        ("{json:a} > 5", "{json:a} < 'x'"),
        ("{1} = 'x'", "{1} > 5"),
        ("{1} = 5", "{1} = 6"),
        ("{json:on} = true", "{json:on} = false"),
    ],
)
def test_conditions_that_no_message_meets(texts: tuple[str, str]) -> None:
    for pair in (texts, texts[::-1]):
        assert contradiction([condition(text, "here") for text in pair]) is not None


@pytest.mark.parametrize(
    "texts",
    [
        ("{json:a} = 1", "{json:b} = 2"),
        ("{json:a} >= 5", "{json:a} <= 5"),
        ("{json:a} > 3", "{json:a} > 7"),
        ("{json:a} = 1", "{json:a} != 2"),
        ("{json:a} exists", "{json:a} > 2"),
        ("{json:a} != 1", "{json:a} != 2"),
        ("{1} = '5'", "{1} > 3"),
        ("{1} = 5", "{1} > '3'"),
        ("{1} > 5", "{1} < 'x'"),
        ("{json:on} = true", "{json:on} exists"),
    ],
)
def test_conditions_that_a_message_may_meet(texts: tuple[str, str]) -> None:
    for pair in (texts, texts[::-1]):
        assert contradiction([condition(text, "here") for text in pair]) is None
