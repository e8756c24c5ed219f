"""Which rules decide for a connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from permissions_site import rule_text

from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.policies import Policies
from iotmq.mqtt_front.permissions.rule import PUBLISH, SUBSCRIBE, Decision, Use
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.mqtt_front.settings.permissions import PermissionSettings

ALLOW_X: Mapping[str, object] = {"permission": "allow", "action": "publish", "topic": "x"}


def policies(tmp_path: Path, text: str | None = None, **settings: str) -> Policies:
    if text is not None:
        (tmp_path / "rules").write_text(text)
        settings["permissions_file"] = str(tmp_path / "rules")
    return Policies(PermissionSettings(**settings))  # type: ignore[arg-type]


def published(policies: Policies, subject: Subject, topic: str) -> Decision:
    return policies.policy_of(subject).may_publish(topic, Use(PUBLISH))


def device(*permissions: Mapping[str, object], user: str = "u") -> Subject:
    return Subject("c", Identity(user=user, permissions=permissions or None))


def test_the_rules_of_an_identity_stand_in_front_of_those_of_the_file(tmp_path: Path) -> None:
    chosen = policies(tmp_path, rule_text("deny", "all", "x", "y") + rule_text("allow", "all", "#"))
    deny_z: Mapping[str, object] = {"permission": "deny", "action": "all", "topic": "z"}
    who = device(ALLOW_X, deny_z)
    assert published(chosen, who, "x") == Decision(True, "identity[0]")
    assert published(chosen, who, "y") == Decision(False, "rules[0]")
    assert published(chosen, who, "z") == Decision(False, "identity[1]")
    assert published(chosen, who, "other") == Decision(True, "rules[1]")
    assert not chosen.policy_of(who).may_subscribe("#", Use(SUBSCRIBE)).is_allowed


def test_an_identity_with_rules_of_its_own_has_no_others_without_a_file(tmp_path: Path) -> None:
    for without_rules in ("own", "everything"):
        chosen = policies(tmp_path, without_rules=without_rules)
        who = device(ALLOW_X)
        assert chosen.is_restricted(who)
        assert published(chosen, who, "x").is_allowed
        assert not published(chosen, who, "u").is_allowed
    # Of no rules nothing is allowed.
    assert chosen.is_restricted(Subject("c", Identity(user="u", permissions=())))


def test_with_one_rule_that_is_none_an_identity_may_do_nothing_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = policies(tmp_path, rule_text("allow", "all", "#"))
    with caplog.at_level(logging.WARNING):
        assert not published(chosen, device(ALLOW_X, {"permission": "deny"}), "x").is_allowed
    assert "identity[1]" in caplog.records[0].detail  # type: ignore[attr-defined]


def test_without_rules_a_client_id_counts_only_where_it_is_proved() -> None:
    who = Subject("u:1", Identity(user="u"))
    settings = PermissionSettings()
    assert [
        published(Policies(settings, are_client_ids_proved=proved), who, topic).is_allowed
        for proved in (False, True)
        for topic in ("d/u/x", "d/u:1/x", "d/u:2/x")
    ] == [True, False, False, True, True, False]


def test_who_was_not_asked_is_restricted_by_a_file_alone(tmp_path: Path) -> None:
    nobody = Subject("c")
    assert not policies(tmp_path).is_restricted(nobody)
    assert published(policies(tmp_path), nobody, "x").is_allowed
    chosen = policies(tmp_path, rule_text("allow", "all", "y"))
    assert chosen.is_restricted(nobody)
    assert not published(chosen, nobody, "x").is_allowed
