"""Settings of bridges: what is refused, and by which name."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.config.config import config_from_table
from iotmq.errors import ConfigError
from iotmq.mqtt_bridge.bridge import Bridge
from iotmq.mqtt_bridge.connection import BridgeCounts, RefusingSink
from iotmq.mqtt_bridge.settings import BridgeSettings, ReceiveRuleSettings, SendRuleSettings

ONE = {"name": "b", "address": "mqtt://127.0.0.1:1883", "send": [{}]}


@pytest.mark.parametrize(
    ("key", "most", "one"),
    [
        ("send", limits.BRIDGE_RULES_MAX, {}),
        ("receive", limits.BRIDGE_RULES_MAX, {"filter": "a"}),
        ("broker_topics", limits.BRIDGE_BROKER_TOPICS_MAX, "t"),
    ],
)
def test_lists_have_a_maximum(key: str, most: int, one: Any) -> None:
    config_from_table({"bridges": [ONE | {key: [one] * most}]})
    with pytest.raises(ConfigError, match=key):
        config_from_table({"bridges": [ONE | {key: [one] * (most + 1)}]})


def test_bridges_and_their_connections_have_a_maximum() -> None:
    config_from_table({"bridges": [ONE] * limits.BRIDGES_MAX})
    with pytest.raises(ConfigError, match="bridges"):
        config_from_table({"bridges": [ONE] * (limits.BRIDGES_MAX + 1)})
    config_from_table({"bridges": [ONE | {"connections": limits.BRIDGE_CONNECTIONS_MAX}]})
    with pytest.raises(ConfigError, match="connections"):
        config_from_table({"bridges": [ONE | {"connections": limits.BRIDGE_CONNECTIONS_MAX + 1}]})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"address": "http://x"}, "address"),
        ({"address": "mqtt://user:secret@x"}, "user_name"),
        ({"address": "mqtt://x/topic"}, "address"),
        ({"address": "ws://x"}, "mqtt, mqtts or unix"),
        ({"send": ()}, "send, receive or both"),
        ({"version": "3.1.1", "password": "p"}, "user_name"),
        (
            {"version": "3.1.1", "connections": 2, "receive": (ReceiveRuleSettings(filter="a"),)},
            "one connection",
        ),
        ({"send": (SendRuleSettings(filter="a#"),)}, "filter"),
    ],
)
def test_bridges_that_cannot_be_are_refused(settings: dict[str, Any], named: str) -> None:
    fields = {"name": "b", "address": "mqtt://127.0.0.1", "send": (SendRuleSettings(),)} | settings
    with pytest.raises(ConfigError, match=named):
        Bridge(
            BridgeSettings(**fields),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            lambda: ("mqtt",),
            gateway="g",
            sink=(RefusingSink(), BridgeCounts()),
            clock=None,  # type: ignore[arg-type]
        )


def test_the_password_is_no_text_to_be_shown() -> None:
    from iotmq.config.setting_text import toml_document

    config = config_from_table({"bridges": [ONE | {"user_name": "u", "password": "very secret"}]})
    assert "very secret" not in toml_document(config)
