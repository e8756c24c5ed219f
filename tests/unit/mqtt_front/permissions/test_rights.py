"""What a connection remembers of its rights."""

from __future__ import annotations

import pytest

from iotmq.mqtt_front.permissions.decisions import EVERY_SIZE, EVERYTHING_FITS, Policy, Rooms, RulesPolicy
from iotmq.mqtt_front.permissions.rights import Rights, RulesVersion
from iotmq.mqtt_front.permissions.rule import Decision
from iotmq.mqtt_front.permissions.topic_template import Subject

REFUSED, ALLOWED, UNKNOWN = range(3)


class Source:
    def __init__(self) -> None:
        self.asked: list[Subject] = []

    def policy_of(self, subject: Subject) -> Policy:
        self.asked.append(subject)
        return RulesPolicy(subject, (), ())


def test_a_target_is_known_once_it_was_learned_and_each_qos_and_flag_has_its_own_answer() -> None:
    rights = Rights(Source(), Subject("c"), RulesVersion())
    assert rights._ask(5, 0, 0) == UNKNOWN
    assert rights.policy
    names = ("", "one", "two", "three", "four", "five")
    refusals = tuple(Decision(False, name) for name in names)
    rights._learn(5, Rooms((EVERY_SIZE, 0, 11, 1, 0, 0), refusals))
    assert [rights._ask(5, flags, 10) for flags in range(6)] == [ALLOWED, 0, ALLOWED, 0, 0, 0]
    assert [rights._ask(5, 2, size) for size in (10, 11)] == [ALLOWED, REFUSED]
    assert [rights._ask(5, 3, size) for size in (0, 1)] == [ALLOWED, REFUSED]
    assert rights.refusing(5, 1).rule == "one"
    assert rights._ask(6, 0, 0) == UNKNOWN


def test_another_version_of_the_rules_or_another_identity_makes_everything_unknown() -> None:
    source = Source()
    version = RulesVersion()
    rights = Rights(source, Subject("c"), version)
    first = rights.policy
    assert rights.policy is first
    rights._learn(1, EVERYTHING_FITS)
    rights.note_decided()
    version.number += 1
    assert rights.is_outdated
    assert rights._ask(1, 0, 0) == UNKNOWN
    assert rights.policy is not first
    assert rights._ask(1, 0, 0) == UNKNOWN
    rights._learn(1, EVERYTHING_FITS)
    rights.note_decided()
    assert not rights.is_outdated
    rights.change(Subject("other"))
    assert rights.is_outdated, "what is under way was decided for another one"
    assert rights._ask(1, 0, 0) == UNKNOWN
    assert rights.policy
    assert [subject.client_id for subject in source.asked] == ["c", "c", "other"]


def test_what_is_remembered_is_bounded_and_a_device_with_few_topics_needs_little() -> None:
    rights = Rights(Source(), Subject("c"), RulesVersion())
    assert rights._slots == 0
    assert rights.policy
    for target in range(1, 4):
        rights._learn(target, EVERYTHING_FITS)
    assert rights._slots == 4
    for target in range(1, 1_000):
        rights._learn(target, Rooms((target,) * 6, (Decision(False, f"rule {target}"),) * 6))
        assert rights._ask(target, 5, target - 1) == ALLOWED
        assert rights._ask(target, 5, target) == REFUSED
        assert rights.refusing(target, 5).rule == f"rule {target}"
    assert rights._slots == 64
    known = [target for target in range(1, 1_000) if rights._ask(target, 0, 0) != UNKNOWN]
    assert 48 < len(known) <= 64
    assert known[-1] == 999


@pytest.mark.parametrize("step", [1, 2, 64, 100, 128, 1_000, 1 << 32])
def test_a_device_with_a_dozen_topics_knows_them_all_whatever_their_ids(step: int) -> None:
    rights = Rights(Source(), Subject("c"), RulesVersion())
    assert rights.policy
    targets = range(7, 7 + 12 * step, step)
    for _ in range(2):
        for target in targets:
            rights._learn(target, EVERYTHING_FITS)
    assert [rights._ask(target, 0, 0) for target in targets] == [ALLOWED] * 12
