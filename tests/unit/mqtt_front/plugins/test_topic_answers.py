"""What is remembered of answers about topics is bounded, and ends."""

from __future__ import annotations

from iotmq import limits
from iotmq.mqtt_front.plugins.topic_answers import Asked, TopicAnswers


def asked(topic: str, client_id: str = "c") -> Asked:
    return Asked(client_id, "u", "publish", topic)


def test_an_answer_holds_until_its_time() -> None:
    answers = TopicAnswers()
    answers.keep(asked("a"), True, 10.0)
    answers.keep(asked("b"), None, 10.0)
    assert answers.find(asked("a"), 9.9) == (True,)
    assert answers.find(asked("b"), 9.9) == (None,)
    assert answers.find(asked("a"), 10.0) is None
    assert answers.find(asked("a", "d"), 9.9) is None


def test_a_new_answer_takes_the_place_of_the_former() -> None:
    answers = TopicAnswers()
    answers.keep(asked("a"), True, 10.0)
    size = answers.size
    answers.keep(asked("a"), False, 20.0)
    assert answers.find(asked("a"), 15.0) == (False,)
    assert (len(answers), answers.size) == (1, size)
    answers.clear()
    assert (len(answers), answers.size) == (0, 0)


def test_the_oldest_answers_go_when_there_is_no_room() -> None:
    one = TopicAnswers()
    one.keep(asked("t" * 100), True, 1.0)
    answers = TopicAnswers(bytes_max=one.size * 3)
    for number in range(3):
        answers.keep(asked(str(number) * 100), True, 1.0)
    assert len(answers) == 3
    answers.keep(asked("9" * 100), True, 1.0)
    assert answers.find(asked("0" * 100), 0.0) is None
    assert answers.find(asked("1" * 100), 0.0) == (True,)
    assert answers.size == one.size * 3 <= limits.MQTT_PLUGIN_ANSWERS_BYTES_MAX
