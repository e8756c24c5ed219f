"""Subscriptions nobody asked for, and rewrites: what settings may say, and what a device gets of it."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.config.config import config_from_table
from iotmq.errors import ConfigError
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.sessions.auto_subscriptions import AutoSubscriptions
from iotmq.mqtt_front.settings.topics import AutoSubscriptionSettings

ANN = DeviceNames("device-7", "ann")


def automatic(*settings: dict[str, Any]) -> AutoSubscriptions:
    return AutoSubscriptions(AutoSubscriptionSettings(**wanted) for wanted in settings)


def test_options_are_those_of_a_subscribe() -> None:
    found = automatic(
        {"filter": "a"},
        {"filter": "b/#", "qos": 2, "no_local": True, "retain_as_published": True, "retain_handling": 2},
        {"filter": "$share/g/c", "qos": 1},
    )
    assert found.of(None) == [("a", 0), ("b/#", 0x2E), ("$share/g/c", 1)]
    assert not found.has_names
    assert found
    assert not automatic()


def test_names_of_the_device_are_put_in() -> None:
    found = automatic({"filter": "of/%c/#"}, {"filter": "$exclusive/%u/%c"}, {"filter": "all"})
    assert found.has_names
    assert found.of(ANN) == [("of/device-7/#", 0), ("$exclusive/ann/device-7", 0), ("all", 0)]
    assert found.of(DeviceNames("c", None)) == [("of/c/#", 0), ("all", 0)], "it has no user name"
    assert found.of(DeviceNames("#", "a/b")) == [("all", 0)]
    assert found.refused == 3
    assert automatic({"filter": "%c/g/#"}, {"filter": "%u/#"}).of(DeviceNames("$share", "$SYS")) == []


def test_a_filter_has_a_size_with_the_names_in_it() -> None:
    size = limits.MQTT_TOPIC_BYTES_MAX - 3
    found = automatic({"filter": "%c/" + "x" * size})
    assert len(found.of(DeviceNames("ab", None))) == 1
    assert found.of(DeviceNames("abc", None)) == []
    assert found.refused == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"filter": "a/#/b"},
        {"filter": "%c+"},
        {"filter": "a\n"},
        {"filter": "$share/g"},
        {"filter": "$share/g/a", "no_local": True},
        {"filter": "$exclusive/"},
        {"filter": "$exclusive/$share/g/a"},
        {"filter": "/" * limits.MQTT_TOPIC_LEVELS_MAX},
    ],
)
def test_a_filter_that_is_none_is_named(settings: dict[str, Any]) -> None:
    automatic({"filter": "/" * (limits.MQTT_TOPIC_LEVELS_MAX - 1)})
    with pytest.raises(ConfigError, match=r"mqtt.auto_subscriptions\[1\]"):
        automatic({"filter": "good"}, settings)


REWRITE = {"filter": "a", "pattern": "a", "template": "b"}


@pytest.mark.parametrize(
    ("key", "fitting", "past"),
    [
        (
            "rewrites",
            [REWRITE] * limits.MQTT_REWRITES_MAX,
            [REWRITE] * (limits.MQTT_REWRITES_MAX + 1),
        ),
        (
            "rewrites",
            [REWRITE | {"pattern": "a" * limits.MQTT_REWRITE_PATTERN_CHARACTERS_MAX}],
            [REWRITE | {"pattern": "a" * (limits.MQTT_REWRITE_PATTERN_CHARACTERS_MAX + 1)}],
        ),
        ("rewrites", [REWRITE | {"action": "publish"}], [REWRITE | {"action": "receive"}]),
        (
            "auto_subscriptions",
            [{"filter": "a"}] * limits.MQTT_AUTO_SUBSCRIPTIONS_MAX,
            [{"filter": "a"}] * (limits.MQTT_AUTO_SUBSCRIPTIONS_MAX + 1),
        ),
        ("auto_subscriptions", [{"filter": "a", "qos": 2}], [{"filter": "a", "qos": 3}]),
        (
            "server_reference",
            "x" * limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX,
            "x" * (limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX + 1),
        ),
        ("server_reference", "other:1883 another:1883", "other\n"),
    ],
)
def test_settings_have_limits(key: str, fitting: object, past: object) -> None:
    config_from_table({"mqtt": {key: fitting}})
    with pytest.raises(ConfigError, match=key):
        config_from_table({"mqtt": {key: past}})
