"""What devices may do, asked without a device; `iotmq access test` has more cases."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from permissions_site import rule_text

from iotmq.errors import ConfigError
from iotmq.mqtt_front.publish.access_trial import ConfiguredAccess
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.device_access import AccessQuestion, AccessRule


def access(directory: Path, rules: str = "", users: str = "") -> ConfiguredAccess:
    settings: dict[str, object] = {}
    if rules:
        (directory / "permissions.toml").write_text(rules)
        settings["permissions"] = {"permissions_file": str(directory / "permissions.toml")}
    if users:
        (directory / "users").write_text(users)
        settings["authentication"] = {"users_file": str(directory / "users")}
    return ConfiguredAccess(msgspec.convert(settings, MqttSettings))


RULES = (
    "[roles]\npump = ['pump-7']\n"
    + rule_text("deny", "subscribe", "d/%u/secret/#", name='"secret"')
    + rule_text("allow", "all", "d/%u/#", who="{ role = 'pump' }", qos_max="1")
)


def test_rules_are_listed_in_their_order(tmp_path: Path) -> None:
    assert access(tmp_path, RULES).rules() == [
        AccessRule(
            name="secret",
            is_allow=False,
            action="subscribe",
            topics=["d/%u/secret/#"],
            who={},
            conditions={},
        ),
        AccessRule(
            name="rules[1]",
            is_allow=True,
            action="all",
            topics=["d/%u/#"],
            who={"role": "pump"},
            conditions={"qos_max": 1},
        ),
    ]
    assert access(tmp_path).rules() == []


def test_the_rule_that_decides_is_named(tmp_path: Path) -> None:
    found = access(tmp_path, RULES).decide(
        AccessQuestion(client_id="c", user="pump-7", action="subscribe", topic="d/pump-7/x", qos=2)
    )
    assert (found.is_allowed, found.rule, found.topic, found.qos) == (True, "rules[1]", "d/pump-7/x", 1)


@pytest.mark.parametrize("rules", ["no toml", "[[rules]]\npermission = 'maybe'\n"])
def test_a_file_that_cannot_be_used_is_said(tmp_path: Path, rules: str) -> None:
    made = access(tmp_path, rules)
    with pytest.raises(ConfigError):
        made.rules()
    with pytest.raises(ConfigError):
        made.decide(AccessQuestion(client_id="c", action="publish", topic="a"))


def test_users_are_listed_with_their_roles(tmp_path: Path) -> None:
    assert access(tmp_path).users() == {}
    made = access(tmp_path, RULES, users="# none yet\n")
    assert made.users() == {}
    with pytest.raises(ConfigError):
        ConfiguredAccess(
            msgspec.convert({"authentication": {"users_file": str(tmp_path / "gone")}}, MqttSettings)
        ).users()
