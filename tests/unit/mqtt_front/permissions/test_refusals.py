"""How refusals are counted and logged."""

from __future__ import annotations

import logging

import pytest
from front_metrics import number_of
from manual_clock import ManualClock

from iotmq import limits
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.refusals import Refusals
from iotmq.mqtt_front.permissions.topic_template import Subject

NAME = "iotmq_mqtt_permissions_refused_total"
WHO = Subject("c", Identity(user="u"), address="10.0.0.1", listener="tcp")


def test_each_rule_has_a_line_a_second_that_says_who_what_and_which_rule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    audited: list[str] = []
    refusals = Refusals(clock, lambda event, **_: audited.append(event))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            refusals.note(WHO, "publish", "a/b", rule="one")
            refusals.note(WHO, "publish", "a/b", rule="two", detail="why")
        clock.advance(1.0)
        refusals.note(WHO, "publish", "a/c", rule="one")
    lines = [(record.rule, record.topic, getattr(record, "more", 0)) for record in caplog.records]  # type: ignore[attr-defined]
    assert lines == [("one", "a/b", 0), ("two", "a/b", 0), ("one", "a/c", 2)]
    record = caplog.records[1]
    shown = {name: getattr(record, name) for name in ("what", "client", "user", "peer", "listener", "detail")}
    assert shown == {
        "what": "publish",
        "client": "c",
        "user": "u",
        "peer": "10.0.0.1",
        "listener": "tcp",
        "detail": "why",
    }
    assert audited == ["denied"] * 3
    assert number_of(refusals, NAME, what="publish", rule="one") == 4
    assert number_of(refusals, NAME, rule="two") == 3
    assert refusals.count == 7


def test_so_many_rules_are_counted_each_and_all_others_as_one() -> None:
    """MQTT_REFUSING_RULES_MAX."""
    refusals = Refusals(ManualClock(), lambda *_, **__: None)
    for number in range(limits.MQTT_REFUSING_RULES_MAX):
        refusals.note(WHO, "publish", "t", rule=f"rule {number}")
    refusals.note(WHO, "publish", "t", rule="one more")
    refusals.note(WHO, "publish", "t", rule="rule 0")
    assert number_of(refusals, NAME, rule="one more") == 0
    assert number_of(refusals, NAME, rule="others") == 1
    assert number_of(refusals, NAME, rule="rule 0") == 2
    assert len(refusals._counts) == limits.MQTT_REFUSING_RULES_MAX + 1
    assert len(refusals._next_line_s) == limits.MQTT_REFUSING_RULES_MAX + 1
