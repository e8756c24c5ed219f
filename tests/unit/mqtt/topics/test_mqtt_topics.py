"""Topic names and filters: what is legal, and what matches (MQTT 3.1.1 section 4.7)."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.topics import topics

INVALID = reason_codes.TOPIC_NAME_INVALID
MALFORMED = reason_codes.MALFORMED_PACKET

SIZE_MAX = limits.MQTT_TOPIC_BYTES_MAX
LEVELS_MAX = limits.MQTT_TOPIC_LEVELS_MAX


@pytest.mark.parametrize(
    "raw",
    [
        b"a",
        b"/",
        b"//",
        b"/a",
        b"a/",
        b"$SYS/x",
        b"a b",
        "温度/ℬ/😀".encode(),
        "\ufeffa".encode(),
        "\x80\x9f".encode(),
        "\uffff".encode(),
        b"x" * SIZE_MAX,
        b"/" * (LEVELS_MAX - 1),
    ],
)
def test_legal_topic_names(raw: bytes) -> None:
    assert topics.decode_topic_name(raw).encode() == raw


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", INVALID),
        (b"+", INVALID),
        (b"a/#", INVALID),
        (b"a+b", INVALID),
        (b"x" * (SIZE_MAX + 1), INVALID),
        (b"/" * LEVELS_MAX, INVALID),
        (b"a\0", MALFORMED),
        (b"a\x01b", MALFORMED),
        (b"a\x02b", MALFORMED),
        (b"a\x1f", MALFORMED),
        (b"a\x7f", MALFORMED),
        (b"\xff", MALFORMED),
        (b"\xc0\x80", MALFORMED),
        (b"\xe2\x82", MALFORMED),
        (b"\xed\xa0\x80", MALFORMED),
        (b"\xf4\x90\x80\x80", MALFORMED),
    ],
)
def test_illegal_topic_names(raw: bytes, reason: reason_codes.Reason) -> None:
    with pytest.raises(MqttProtocolError) as raised:
        topics.decode_topic_name(raw)
    assert raised.value.reason == reason
    assert raised.value.code == reason.v5_code


@pytest.mark.parametrize(
    "topic_filter",
    ["#", "+", "/", "+/", "/+", "a/+/b", "a/#", "+/#", "/#", "a//b", "+/+/+", "$SYS/#", "a/+/", "$share/g/f"],
)
def test_legal_filters(topic_filter: str) -> None:
    assert topics.is_valid_filter(topic_filter)
    assert topics.decode_topic_filter(topic_filter.encode()) == topic_filter


@pytest.mark.parametrize(
    "topic_filter", ["a#", "#/", "#/a", "a/#/b", "+a", "a+/b", "a/b+", "++", "##", "a/+#"]
)
def test_misplaced_wildcards(topic_filter: str) -> None:
    assert not topics.is_valid_filter(topic_filter)
    with pytest.raises(MqttProtocolError) as raised:
        topics.decode_topic_filter(topic_filter.encode())
    assert raised.value.reason == MALFORMED


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", MALFORMED),
        (b"\xff", MALFORMED),
        (b"a\0", MALFORMED),
        (b"x" * (SIZE_MAX + 1), INVALID),
        (b"/" * LEVELS_MAX, INVALID),
    ],
)
def test_illegal_filters(raw: bytes, reason: reason_codes.Reason) -> None:
    with pytest.raises(MqttProtocolError) as raised:
        topics.decode_topic_filter(raw)
    assert raised.value.reason == reason


def test_filters_at_the_limits() -> None:
    assert topics.decode_topic_filter(b"x" * SIZE_MAX)
    assert topics.decode_topic_filter(b"/" * (LEVELS_MAX - 2) + b"/#")


# The examples of section 4.7.1 and 4.7.2, and the empty levels of 4.7.3.
MATCHING = [
    ("a", "a"),
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("#", "sport"),
    ("#", "/"),
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/+", "sport/"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+/tennis/#", "x/tennis"),
    ("$SYS/#", "$SYS/monitor/Clients"),
    ("$SYS/#", "$SYS"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ("a/+", "a/$b"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("+", "温"),
]
DIFFERENT = [
    ("a", "A"),
    ("a", "a/"),
    ("a", "/a"),
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("+", "a/b"),
    ("#", "$SYS/monitor"),
    ("+/monitor/Clients", "$SYS/monitor/Clients"),
    ("+", "$a"),
    ("+/#", "$a/b"),
    ("a/#", "ab"),
    ("a/b/#", "a"),
    ("a//b", "a/b"),
]


@pytest.mark.parametrize(("topic_filter", "topic"), MATCHING)
def test_matching(topic_filter: str, topic: str) -> None:
    assert topics.matches(topic_filter, topic)


@pytest.mark.parametrize(("topic_filter", "topic"), DIFFERENT)
def test_not_matching(topic_filter: str, topic: str) -> None:
    assert not topics.matches(topic_filter, topic)
