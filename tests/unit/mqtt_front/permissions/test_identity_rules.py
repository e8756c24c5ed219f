"""Rules that come with an identity."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.mqtt_front.permissions.identity_rules import rules_of_identity
from iotmq.mqtt_front.permissions.rule import PUBLISH, SUBSCRIBE, Conditions
from iotmq.mqtt_front.permissions.topic_template import template_text

ALLOW: dict[str, Any] = {"permission": "allow", "action": "publish", "topic": "x"}


def test_the_forms_that_there_are() -> None:
    rules = rules_of_identity(
        (
            ALLOW,
            {"permission": "deny", "action": "subscribe", "topics": ["a/#", "b"]},
            ALLOW | {"action": "all", "qos": [0, 1], "retain": False},
            ALLOW | {"action": "pubsub", "qos": 2, "retain": "all"},
            ALLOW | {"qos": "0,2", "retain": "true"},
            ALLOW | {"topic": "d/${clientid}/${username}/${client_attrs.tenant}/%c"},
        )
    )
    assert [rule.name for rule in rules] == [f"identity[{number}]" for number in range(6)]
    assert [rule.is_allow for rule in rules] == [True, False, True, True, True, True]
    assert [rule.actions for rule in rules[:3]] == [PUBLISH, SUBSCRIBE, PUBLISH | SUBSCRIBE]
    assert [template_text(levels) for levels in rules[1].topics] == ["a/#", "b"]
    assert rules[2].conditions == Conditions(qos=frozenset({0, 1}), retain=False)
    assert rules[3].conditions == Conditions(qos=frozenset({2}))
    assert rules[4].conditions == Conditions(qos=frozenset({0, 2}), retain=True)
    assert template_text(rules[5].topics[0]) == "d/%c/%u/%{tenant}/%c"


@pytest.mark.parametrize(
    "changed",
    [
        {"permission": "Allow"},
        {"action": "write"},
        {"topic": 1},
        {"topic": ""},
        {"topic": "a/#/b"},
        {"topic": "${peerhost}/x"},
        {"topic": []},
        {"topic": ["x"] * (limits.MQTT_PERMISSION_TOPICS_MAX + 1)},
        {"qos": 3},
        {"qos": "1,x"},
        {"qos": [True]},
        {"retain": "maybe"},
        {"who": "all"},
    ],
)
def test_one_that_is_none_makes_all_of_them_useless(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"identity\[1\]"):
        rules_of_identity((ALLOW, ALLOW | changed))


def test_an_identity_has_at_most_so_many() -> None:
    many = (ALLOW,) * limits.MQTT_IDENTITY_RULES_MAX
    assert len(rules_of_identity(many)) == len(many)
    with pytest.raises(ValueError, match="at most"):
        rules_of_identity((*many, ALLOW))
