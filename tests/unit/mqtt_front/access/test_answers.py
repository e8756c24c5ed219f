"""Answers of links that are remembered: until when, how many, and how many bytes."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.mqtt_front.access.answers import Answers, digest
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Denied

YES = Accepted(Identity(user="pump"))


def key(number: int) -> bytes:
    return digest(b"%d" % number)


def test_an_answer_holds_until_its_time() -> None:
    answers = Answers(10)
    answers.keep(key(1), YES, 5.0)
    assert answers.find(key(1), 4.999) is YES
    assert answers.find(key(1), 5.0) is None
    assert answers.find(key(2), 0.0) is None


def test_another_answer_to_the_same_takes_its_place() -> None:
    answers = Answers(10)
    answers.keep(key(1), YES, 5.0)
    answers.keep(key(1), NOT_MINE, 9.0)
    assert answers.find(key(1), 6.0) is NOT_MINE
    assert len(answers) == 1
    answers.check_invariants()


def test_the_oldest_goes_where_there_are_too_many() -> None:
    answers = Answers(2)
    for number in range(3):
        answers.keep(key(number), YES, 5.0)
    assert [answers.find(key(number), 0.0) for number in range(3)] == [None, YES, YES]
    answers.check_invariants()
    none = Answers(0)
    none.keep(key(1), YES, 5.0)
    assert not len(none)


def test_bytes_at_their_maximum_and_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(1_000)
    large = Accepted(Identity(user="a", attributes={"x": "y" * 1_000}))
    answers.keep(key(0), large, 5.0)
    each = answers.size
    assert each > 1_000
    monkeypatch.setattr(limits, "MQTT_ANSWERS_BYTES_MAX", 3 * each)
    for number in range(1, 3):
        answers.keep(key(number), large, 5.0)
    assert len(answers) == 3
    answers.keep(key(3), large, 5.0)
    assert len(answers) == 3
    assert answers.find(key(0), 0.0) is None
    answers.check_invariants()
    monkeypatch.setattr(limits, "MQTT_ANSWERS_BYTES_MAX", each - 1)
    other = Answers(1_000)
    other.keep(key(0), large, 5.0)
    assert not len(other), "one that is too large alone is not remembered"
    other.keep(key(0), Denied(NOT_AUTHORIZED, "x", "why"), 5.0)
    assert len(other) == 1
