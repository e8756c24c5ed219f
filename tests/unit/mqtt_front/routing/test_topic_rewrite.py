"""Rewriting of topics and filters: which rule, what comes out, what is refused, what a pattern may cost."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt_front.patterns import compile_pattern
from iotmq.mqtt_front.routing.device_names import DeviceNames, names_of_key
from iotmq.mqtt_front.routing.refused_filters import refusals
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.settings.topics import RewriteSettings

NAMES = DeviceNames("device-7", "ann")


def rewrites(*rules: tuple[str, str, str] | tuple[str, str, str, str]) -> TopicRewrites:
    """Rules of (filter, pattern, template, action)."""
    keys = ("filter", "pattern", "template", "action")
    settings: list[dict[str, Any]] = [dict(zip(keys, rule, strict=False)) for rule in rules]
    return TopicRewrites(RewriteSettings(**rule) for rule in settings)


PAGE = rewrites(
    ("y/+/z/#", "^y/(.+)/z/(.+)$", "y/z/$2"),
    ("x/#", "^x/y/(.+)$", "z/y/x/$1"),
    ("x/y/+", r"^x/y/(\d+)$", "z/y/$1"),
)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("y/a/z/b", "y/z/b"),
        ("y/def", "y/def"),
        ("x/1/2", "x/1/2"),
        ("x/y/2", "z/y/2"),
        ("x/y/z", "x/y/z"),
        ("x/y/z/1", "z/y/x/z/1"),
        ("other", "other"),
    ],
)
def test_the_last_rule_whose_filter_matches_decides_even_when_its_pattern_does_not(
    topic: str, name: str
) -> None:
    assert PAGE.published(topic, None) == name
    assert PAGE.subscribed(topic, None) == name


def test_a_new_name_is_not_rewritten_again() -> None:
    rules = rewrites(("a", "^a$", "b"), ("b", "^b$", "c"))
    assert (rules.published("a", None), rules.published("b", None)) == ("b", "c")


def test_rules_are_for_what_they_say() -> None:
    rules = rewrites(("a", "a", "p", "publish"), ("a", "a", "s", "subscribe"))
    assert rules.published("a", None) == "p"
    assert rules.subscribed("a", None) == "s"


def test_of_a_shared_subscription_what_is_shared_is_rewritten() -> None:
    assert PAGE.subscribed("$share/g/x/y/2", None) == "$share/g/z/y/2"
    assert PAGE.subscribed("$share/x/y", None) == "$share/x/y", "the group is not part of the topic"
    assert PAGE.subscribed("$share/", None) == "$share/", "and refused later"
    assert PAGE.subscribed("$exclusive/x/y/2", None) == "$exclusive/z/y/2"
    assert PAGE.subscribed("$exclusive/", None) == "$exclusive/"


def test_filters_with_wildcards_are_rewritten_as_they_stand() -> None:
    rules = rewrites(("x/#", "^x/(.+)$", "z/$1"))
    assert rules.subscribed("x/+/#", None) == "z/+/#"
    assert rules.subscribed("x/#", None) == "z/#"


def test_names_of_the_device_are_put_in_and_tell_devices_apart() -> None:
    rules = rewrites(("up/#", "^up/(.*)$", "in/%c/%u/$1"))
    assert rules.has_names
    assert rules.is_personal("up/x")
    assert not rules.is_personal("down/x")
    assert rules.published("up/x", NAMES) == "in/device-7/ann/x"
    assert rules.subscribed("up/+", NAMES) == "in/device-7/ann/+"
    assert names_of_key(NAMES.key()) == NAMES
    assert names_of_key(DeviceNames("c", None).key()) == DeviceNames("c", None)
    assert DeviceNames("a", "b").key() != DeviceNames("ab", "").key()


def test_what_looks_like_a_placeholder_in_a_name_or_a_topic_is_none() -> None:
    rules = rewrites(("up/#", "^up/(.*)$", "in/%c/$1"))
    assert rules.published("up/%c$1", DeviceNames("%u$1", "ann")) == "in/%u$1/%c$1"


@pytest.mark.parametrize("names", [DeviceNames("#", "a"), DeviceNames("+", "a"), DeviceNames("a/b", "a")])
def test_a_client_id_that_would_choose_more_than_its_level_is_refused(names: DeviceNames) -> None:
    rules = rewrites(("up/#", "^up", "in/%c"))
    with pytest.raises(MqttProtocolError, match="client id"):
        rules.published("up/x", names)
    found = rules.subscriptions((("up/x", 1), ("other", 2)), names)
    assert found[1] == ("other", 2)
    assert refusals(found) == {found[0][0]: 0x8F}
    assert rules.filters_refused == 1


@pytest.mark.parametrize("user_name", [None, "", "a/#"])
def test_a_template_with_a_user_name_is_for_devices_that_have_one(user_name: str | None) -> None:
    rules = rewrites(("up/#", "^up", "in/%u"))
    with pytest.raises(MqttProtocolError, match="user name"):
        rules.published("up/x", DeviceNames("c", user_name))


def test_a_new_name_that_is_none_is_refused() -> None:
    rules = rewrites(("up/#", "^up/(.*)$", "$1"), ("wild/#", "^wild/(.*)$", "$1", "subscribe"))
    with pytest.raises(MqttProtocolError, match="empty"):
        rules.published("up/", None)
    assert rules.subscribed("wild/", None) is None
    assert rules.filters_refused == 1


def test_topics_that_are_to_be_rewritten_have_a_limit() -> None:
    rules = rewrites(("up/#", "^up/(.*)$", "in/$1"))
    longest = "up/" + "x" * (limits.MQTT_REWRITE_TOPIC_BYTES_MAX - 3)
    assert rules.published(longest, None) == "in/" + longest[3:]
    with pytest.raises(MqttProtocolError, match="257 bytes"):
        rules.published(longest + "x", None)
    assert rules.subscribed(longest + "x", None) is None
    assert rules.published("other/" + longest, None) == "other/" + longest, "without a rule there is none"


def test_a_session_older_than_the_rules_can_be_unsubscribed() -> None:
    rules = rewrites(("x/#", "^x/(.+)$", "z/$1"))
    assert rules.unsubscriptions(("x/1", "x/2", "y"), None, {"x/1": 0, "z/2": 0}) == ("x/1", "z/2", "y")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (("a/#/b", "x", "y"), "rewrites[0].filter"),
        (("a", "(", "y"), "not a regular expression"),
        (("a", "(a)", "$2"), r"no group $2"),
        (("a", "(a)", "$0"), r"no group $0"),
        (("a", "a", "b\x01"), "control characters"),
        (("a", "a", "b/#"), "wildcards"),
        (("a", "(?=a)", "b"), "not a regular expression of RE2"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(rule: tuple[str, str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewrites(rule)
    assert "mqtt.rewrites[0]" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "pattern", [r"(a)\1", "(?P<x>a)(?P=x)", "(?=a)b", "(?<!a)b", "+", "a{1001}", "(", "\\"]
)
def test_patterns_that_no_linear_engine_has_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="not a regular expression of RE2"):
        compile_pattern(pattern)


def test_a_pattern_has_a_size_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(count: int) -> bool:
        try:
            compile_pattern(f"\\pL{{{count}}}")
        except ValueError:
            return False
        return True

    with pytest.raises(ValueError, match="too large"):
        compile_pattern(r"\pL{1000}")
    # One more of it does not fit, and did not fit for want of a byte: the engine knows of no other maximum.
    most = bisect_left(range(1, 1000), True, key=lambda count: not fits(count))
    assert 10 < most < 999
    assert fits(most)
    assert not fits(most + 1)
    least = bisect_left(
        range(2 * limits.MQTT_REWRITE_PROGRAM_BYTES_MAX),
        True,
        key=lambda size: _fits_into(monkeypatch, size, lambda: fits(most + 1)),
    )
    assert limits.MQTT_REWRITE_PROGRAM_BYTES_MAX < least < 1.5 * limits.MQTT_REWRITE_PROGRAM_BYTES_MAX
    assert not _fits_into(monkeypatch, least - 1, lambda: fits(most + 1))


def _fits_into(monkeypatch: pytest.MonkeyPatch, size: int, fits: Callable[[], bool]) -> bool:
    with monkeypatch.context() as patched:
        patched.setattr(limits, "MQTT_REWRITE_PROGRAM_BYTES_MAX", max(size, 1))
        return fits()


# Each is exponential, or of a high power, in engines that go back.
@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a*)*x",
        "(?:a|ab)*x",
        "(a?){20}a{20}x",
        "((a+))+x",
        r"(\w|\d)+$x",
        "^(?:a+)+x",
        "(.+)/(.+)/(.+)/(.+)x",
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    found = compile_pattern(pattern)
    began_s = time.process_time()
    for text in (
        "a" * limits.MQTT_REWRITE_TOPIC_BYTES_MAX,
        "a/" * (limits.MQTT_REWRITE_TOPIC_BYTES_MAX // 2),
    ):
        found.search(text)
    assert time.process_time() - began_s < 1, "of processor time; others take hours"


def test_the_slowest_pattern_takes_a_bounded_time_for_the_worst_topic() -> None:
    rules = rewrites(("#", "^(.+)/(.+)/(?:x|y|z)", "$1"), ("$a/#", "^[$a]" + "a?" * 17 + "a" * 17 + "b", "x"))
    for topic in (
        "a" + "/" * (limits.MQTT_REWRITE_TOPIC_BYTES_MAX - 1),
        "a/" * (limits.MQTT_REWRITE_TOPIC_BYTES_MAX // 2),
        "$a/" + "a" * 100,
    ):
        began = time.process_time()
        assert rules.published(topic, None) == topic
        assert time.process_time() - began < 1, "of processor time; others take hours"
