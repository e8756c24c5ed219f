"""Settings of bridges by MQTT 3.1.1 whose messages would come back, and those whose would not."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq.errors import ConfigError
from iotmq.mqtt_bridge.checks import check_bridge, echo_of
from iotmq.mqtt_bridge.settings import BridgeSettings, ReceiveRuleSettings, SendRuleSettings


def settings(send: tuple[str, str], received: str, **options: Any) -> BridgeSettings:
    fields = {"name": "b", "address": "mqtt://127.0.0.1", "version": "3.1.1"} | options
    return BridgeSettings(
        **fields,  # type: ignore[arg-type]
        send=(SendRuleSettings(filter=send[0], topic=send[1]),),
        receive=(ReceiveRuleSettings(filter=received),),
    )


@pytest.mark.parametrize(
    ("send", "received", "comes_back"),
    [
        (("#", "{topic}"), "#", True),
        (("#", "{topic}"), "commands/#", True),
        (("devices/#", "{topic}"), "commands/#", False),
        (("devices/#", "{topic}"), "devices/+/state", True),
        (("devices/+/state", "{topic}"), "devices/+/command", False),
        (("devices/#", "sites/{gateway}/{topic}"), "sites/g/#", True),
        (("devices/#", "sites/{gateway}/{topic}"), "sites/other/#", False),
        (("devices/+/+", "up/{1}/{2}"), "down/#", False),
        (("devices/+/+", "up/x{1}/{2}"), "up/a/b", True),
        (("devices/+/state", "up/{1}/{2}"), "up/a/command", False),
        (("devices/#", "up/{1:}"), "up", True),
        (("a/b", "{topic}"), "a/b/c", False),
        (("a/b", "{topic}"), "$share/g/a/+", True),
        (("a/b", "{topic}"), "a/b/#", True),
        (("a/b/c", "{topic}"), "a/b", False),
    ],
)
def test_what_would_come_back(send: tuple[str, str], received: str, comes_back: bool) -> None:
    found = echo_of(settings(send, received), gateway="g")
    assert (found is not None) is comes_back
    if found is not None:
        assert "use MQTT 5" in found


def test_without_the_bit_of_bridges_such_settings_are_refused() -> None:
    check_bridge(settings(("#", "{topic}"), "#"))
    check_bridge(settings(("#", "{topic}"), "#", version="5", bridge_bit=False))
    check_bridge(settings(("up/#", "{topic}"), "down/#", bridge_bit=False))
    with pytest.raises(ConfigError, match=r"bridges\[b\]\.bridge_bit.*use MQTT 5"):
        check_bridge(settings(("#", "{topic}"), "#", bridge_bit=False))
