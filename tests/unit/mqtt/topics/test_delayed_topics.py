"""`$delayed/SECONDS/TOPIC`: what is taken, and what is refused by name."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID
from iotmq.mqtt.topics.delayed import split_delayed

LONGEST_S = limits.MQTT_DELAY_S_MAX


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("a/b", (0, "a/b")),
        ("$SYS/x", (0, "$SYS/x")),
        ("$delayed", (0, "$delayed")),
        ("$delayedx/5/a", (0, "$delayedx/5/a")),
        ("x/$delayed/5/a", (0, "x/$delayed/5/a")),
        ("$delayed/5/a/b", (5, "a/b")),
        ("$delayed/005/a", (5, "a")),
        ("$delayed/0/a", (0, "a")),
        ("$delayed/5//a", (5, "/a")),
        ("$delayed/5/$SYS/x", (5, "$SYS/x")),
        (f"$delayed/{LONGEST_S}/a", (LONGEST_S, "a")),
    ],
)
def test_topics_and_their_delays(topic: str, expected: tuple[int, str]) -> None:
    assert split_delayed(topic) == expected


@pytest.mark.parametrize(
    ("topic", "wrong"),
    [
        ("$delayed/", "number of seconds"),
        ("$delayed/5", "no topic"),
        ("$delayed/5/", "no topic"),
        ("$delayed//a", "number of seconds"),
        ("$delayed/-1/a", "number of seconds"),
        ("$delayed/1.5/a", "number of seconds"),
        ("$delayed/+1/a", "number of seconds"),
        ("$delayed/1_0/a", "number of seconds"),
        ("$delayed/٣/a", "number of seconds"),
        ("$delayed/a/b", "number of seconds"),
        (f"$delayed/{'1' * 5000}/a", "number of seconds"),
        (f"$delayed/{LONGEST_S + 1}/a", str(LONGEST_S)),
        ("$delayed/5/$delayed/5/a", "once"),
    ],
)
def test_what_is_no_delay_is_refused_by_name(topic: str, wrong: str) -> None:
    with pytest.raises(MqttProtocolError, match=wrong) as raised:
        split_delayed(topic)
    assert raised.value.reason is TOPIC_NAME_INVALID
