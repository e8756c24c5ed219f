"""Many filters at once: some in each turn of the loop."""

from __future__ import annotations

from typing import Any

import pytest
from fake_gateway import FakeLoop

from iotmq import limits
from iotmq.limits import MQTT_SUBSCRIPTIONS_PER_PACKET_MAX
from iotmq.mqtt_front.permissions.decisions import Policy, RulesPolicy
from iotmq.mqtt_front.permissions.filter_decisions import FilterDecisions, Wanted, use_of
from iotmq.mqtt_front.permissions.questions import AskedPolicy, Questions
from iotmq.mqtt_front.permissions.rights import Rights, RulesVersion
from iotmq.mqtt_front.permissions.rule import SUBSCRIBE, Decision, Rule, Use
from iotmq.mqtt_front.permissions.rule_set import clauses_of
from iotmq.mqtt_front.permissions.topic_template import Subject, parse_template


class RunningClock:
    """A clock on which each look takes a tenth of a millisecond."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        self.now_s += 0.000_1
        return self.now_s


class Source:
    def policy_of(self, subject: Subject) -> Policy:
        clauses = clauses_of([Rule("one", True, SUBSCRIBE, (parse_template("a/#"),))])
        return RulesPolicy(subject, clauses.publish, clauses.subscribe)


def test_a_subscribe_with_as_many_filters_as_fit_is_decided_in_turns_and_in_order() -> None:
    loop: Any = FakeLoop()
    questions: Any = None
    decisions = FilterDecisions(loop, questions, RunningClock())
    wanted = [
        Wanted(f"{'a' if number % 3 else 'b'}/{number}", 0)
        for number in range(MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)
    ]
    found: list[list[Decision | None]] = []
    decisions.decide(Rights(Source(), Subject("c"), RulesVersion()), wanted, found.append)
    turns = 1
    while not found:
        assert loop.ready
        loop.turn()
        turns += 1
    assert turns > 50
    (decided,) = found
    assert [decision is not None and decision.is_allowed for decision in decided] == [
        bool(number % 3) for number in range(MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)
    ]
    assert not loop.ready


def test_a_turn_is_as_long_whatever_the_number_of_those_that_go_on() -> None:
    loop: Any = FakeLoop()
    questions: Any = None
    clock = RunningClock()
    decisions = FilterDecisions(loop, questions, clock)
    wanted = [Wanted(f"a/{number}", 0) for number in range(100)]
    found: list[list[Decision | None]] = []
    for _ in range(50):
        decisions.decide(Rights(Source(), Subject("c"), RulesVersion()), wanted, found.append)
    longest_s = 0.0
    while len(found) < 50:
        assert loop.ready
        began_s = clock.now_s
        loop.turn()
        longest_s = max(longest_s, clock.now_s - began_s)
    assert longest_s < 0.005
    assert all(len(each) == 100 for each in found)
    assert not loop.ready


class FailingSource(Source):
    def policy_of(self, subject: Subject) -> Policy:
        class Failing(RulesPolicy):
            def may_subscribe(self, topic_filter: str, use: Use) -> Decision:
                if topic_filter == "a/7":
                    raise ValueError(topic_filter)
                return super().may_subscribe(topic_filter, use)

        clauses = clauses_of([Rule("one", True, SUBSCRIBE, (parse_template("a/#"),))])
        return Failing(subject, clauses.publish, clauses.subscribe)


def test_a_filter_whose_decision_fails_is_refused_and_the_others_are_decided() -> None:
    loop: Any = FakeLoop()
    questions: Any = None
    decisions = FilterDecisions(loop, questions, RunningClock())
    wanted = [Wanted(f"a/{number}", 0) for number in range(30)]
    found: list[list[Decision | None]] = []
    decisions.decide(Rights(FailingSource(), Subject("c"), RulesVersion()), wanted, found.append)
    while not found:
        loop.turn()
    refused = [number for number, each in enumerate(found[0]) if each is None or not each.is_allowed]
    assert refused == [7]


class AskedSource(Source):
    def policy_of(self, subject: Subject) -> Policy:
        return AskedPolicy(super().policy_of(subject))


def test_as_many_filters_are_refused_when_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is there at once does not come within the question."""
    monkeypatch.setattr(limits, "MQTT_PERMISSION_QUESTIONS_MAX", 0)
    loop: Any = FakeLoop()
    decider: Any = object()
    decisions = FilterDecisions(loop, Questions([decider], loop, timeout_s=1.0), RunningClock())
    wanted = [Wanted(f"a/{number}", 0) for number in range(MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)]
    found: list[list[Decision | None]] = []
    decisions.decide(Rights(AskedSource(), Subject("c"), RulesVersion()), wanted, found.append)
    while not found:
        assert loop.ready
        loop.turn()
    (decided,) = found
    assert len(decided) == len(wanted)
    assert {(each.is_allowed, each.rule) for each in decided if each is not None} == {
        (False, "too many questions")
    }


@pytest.mark.parametrize(
    ("wanted", "plain", "use"),
    [
        (Wanted("a/+", 1), "a/+", Use(SUBSCRIBE, 1)),
        (Wanted("$share/g/a/#", 2), "a/#", Use(SUBSCRIBE, 2, is_shared=True)),
        (Wanted("$exclusive/a", 0), "a", Use(SUBSCRIBE, 0, is_exclusive=True)),
        (Wanted("a", 0, is_exclusive=True), "a", Use(SUBSCRIBE, 0, is_exclusive=True)),
        (Wanted("$share/g/$exclusive/a", 0), "$exclusive/a", Use(SUBSCRIBE, 0, is_shared=True)),
        (Wanted("$delayed/5/a", 0), "$delayed/5/a", Use(SUBSCRIBE, 0)),
        (Wanted("$SYS/#", 0), "$SYS/#", Use(SUBSCRIBE, 0)),
        (Wanted("$share/g", 0), None, Use(SUBSCRIBE, 0)),
        (Wanted("$exclusive/$share/g/a", 0), None, Use(SUBSCRIBE, 0)),
        (Wanted("\0008f", 0), None, Use(SUBSCRIBE, 0)),
    ],
)
def test_the_filter_that_a_right_is_needed_for(wanted: Wanted, plain: str | None, use: Use) -> None:
    assert use_of(wanted) == (plain, use)
