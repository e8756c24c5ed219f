"""Rules of bridges: which topics they are for, and what those become."""

from __future__ import annotations

import pytest

from iotmq.errors import ConfigError
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt_bridge.settings import ReceiveRuleSettings, SendRuleSettings
from iotmq.mqtt_bridge.topic_maps import ReceiveMap, SendMap


def sent(template: str, topic: str) -> str | None:
    found = SendMap([SendRuleSettings(topic=template)], gateway="g", where="b").find(topic.encode())
    return None if found is None else found.topic.decode()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{topic}", "a/b/c"),
        ("x/{topic}", "x/a/b/c"),
        ("{gateway}/{1}", "g/b"),
        ("{1:}", "b/c"),
        ("{0:}", "a/b/c"),
        ("{2}/{0}", "c/a"),
        ("{7}", None),
        ("{3:}", None),
        ("$SYS/{topic}", None),
    ],
)
def test_templates(template: str, expected: str | None) -> None:
    assert sent(template, "a/b/c") == expected


def test_the_first_rule_that_matches_decides() -> None:
    rules = [
        SendRuleSettings(filter="a/+", topic="one", qos_max=0, retain=False),
        SendRuleSettings(filter="a/#", topic="two", qos_min=1),
    ]
    found = SendMap(rules, gateway="g", where="b")
    assert found.find(b"a/b") == (b"one", 0, 0, False)
    assert found.find(b"a/b/c") == (b"two", 1, 1, True)
    assert found.find(b"b") is None
    assert found.find(b"$SYS/broker") is None, "no wildcard is for it"
    assert found.find(b"\xff") is None or isinstance(found.find(b"\xff"), tuple)


@pytest.mark.parametrize("template", ["{name}", "{1", "a/+/b", "#", "a\nb", "{-1}", "{1:2}", "}"])
def test_templates_that_are_none_are_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=r"send\[0\]\.topic"):
        SendMap([SendRuleSettings(topic=template)], gateway="g", where="b")


@pytest.mark.parametrize("rule", [{"filter": "a/#/b"}, {"filter": "a+"}, {"qos_min": 1, "qos_max": 0}])
def test_rules_that_contradict_themselves_are_refused(rule: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"b\.send\[0\]"):
        SendMap([SendRuleSettings(**rule)], gateway="g", where="b")  # type: ignore[arg-type]


def test_what_comes_gets_its_name_here() -> None:
    rules = [
        ReceiveRuleSettings(filter="$share/group/down/#", topic="{1:}"),
        ReceiveRuleSettings(filter="other", topic="x/{topic}"),
    ]
    found = ReceiveMap(rules, gateway="g", where="b")
    assert not found.is_personal("down/a")
    assert found.published("down/a/b", None) == "a/b"
    assert found.published("other", None) == "x/other"
    for topic in ("none", "down"):
        with pytest.raises(MqttProtocolError):
            found.published(topic, None)


@pytest.mark.parametrize("topic_filter", ["$share/g", "$share//a", "a#", "$share/+/a"])
def test_filters_that_are_none_are_refused(topic_filter: str) -> None:
    with pytest.raises(ConfigError, match=r"receive\[0\]\.filter"):
        ReceiveMap([ReceiveRuleSettings(filter=topic_filter)], gateway="g", where="b")
