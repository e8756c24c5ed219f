"""Whether all topics of a filter are allowed: what is told, and the limit of the work."""

from __future__ import annotations

import time

import pytest

from iotmq import limits
from iotmq.mqtt_front.permissions.containment import all_allowed


def decide(wanted: str, *rules: str, **options: int):  # type: ignore[no-untyped-def]
    """Rules that begin with - deny."""
    parts = [(rule.removeprefix("-").split("/"), not rule.startswith("-")) for rule in rules]
    return all_allowed(wanted.split("/"), parts, **options)


def test_the_witness_is_a_topic_of_the_filter_that_is_refused_and_the_rule_is_the_one_that_does() -> None:
    assert decide("a/+", "-a/b", "a/+") == (False, 0, "a/b", True)
    assert decide("a/#", "a/+/#", "a/+") == (False, None, "a", True)
    assert decide("#", "a/#").witness == "x"
    assert decide("x/+", "x/x").witness == "x/x1", "a level that no rule has"


@pytest.mark.parametrize(
    ("wanted", "rules"),
    [
        # What others allow that they should not: a permission for one level taken for all, and a beginning
        # of a level for the level.
        ("a/#", ["a/+"]),
        ("#", ["+"]),
        ("dev/10/cmd", ["dev/1/#"]),
        ("abc", ["a/#"]),
        ("+/secret", ["-a/secret", "#"]),
        ("$SYS/#", ["#"]),
        ("$SYS/x", ["+/x"]),
    ],
)
def test_what_is_wider_than_the_rules_is_refused(wanted: str, rules: list[str]) -> None:
    assert not decide(wanted, *rules).is_allowed


@pytest.mark.parametrize(
    ("wanted", "rules"),
    [
        ("a/#", ["a/#"]),
        ("a/+/c", ["a/#"]),
        ("a/#", ["a", "a/+", "a/+/+/#"]),
        ("#", ["#"]),
        ("#", ["+/#", "-$SYS/#", "-+/secret"]),
        ("b/+", ["-a/+", "+/+"]),
        ("a/b", ["-a/+/c", "-a", "a/#"]),
        ("$SYS/#", ["$SYS/#"]),
    ],
)
def test_what_the_rules_cover_together_is_allowed(wanted: str, rules: list[str]) -> None:
    assert decide(wanted, *rules).is_allowed


def hard_rules(count: int) -> list[str]:
    """Each level may be any of two things that differ, so the walk has to tell 2 ** count ways apart."""
    rules = []
    for at in range(count):
        levels = ["+"] * count
        levels[at] = "a"
        rules.append("-" + "/".join(levels) + "/z")
    return [*rules, "/".join(["+"] * count) + "/#", "#"]


def test_the_work_of_a_decision_is_limited_and_past_it_the_filter_is_refused_and_that_is_said() -> None:
    wanted = "/".join(["+"] * 14) + "/y"
    rules = hard_rules(14)
    took_s = []
    for _ in range(5):
        begin_s = time.thread_time()
        verdict = decide(wanted, *rules)
        took_s.append(time.thread_time() - begin_s)
        assert (verdict.is_allowed, verdict.is_decided) == (False, False)
    assert min(took_s) < 0.5, "some milliseconds, on a busy machine"
    assert decide(wanted, *rules, work_max=10_000_000).is_allowed


def test_the_last_step_that_is_allowed_is_taken() -> None:
    rules = hard_rules(4)
    wanted = "+/+/+/+/y"
    enough = next(
        work
        for work in range(limits.MQTT_PERMISSION_WORK_MAX)
        if decide(wanted, *rules, work_max=work).is_decided
    )
    assert enough > 20
    assert decide(wanted, *rules, work_max=enough).is_allowed
    assert not decide(wanted, *rules, work_max=enough - 1).is_decided


def test_a_hundred_rules_of_one_kind_are_compared_well_within_the_limit() -> None:
    rules = [f"-site/{number}/secret/#" for number in range(99)] + ["site/#"]
    assert decide("site/+/open/#", *rules).is_allowed
    assert not decide("site/#", *rules).is_allowed
    assert decide("site/7/+", "site/7/+", *rules).is_allowed
