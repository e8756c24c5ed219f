"""What a request for a device gets on its way through the broker, and what stays as it is."""

from __future__ import annotations

from base64 import b64decode

import pytest

from iotmq import limits
from iotmq.broker.questions.device_requests import with_reply_topic
from iotmq.errors import RequestError
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.mqtt.topics.reply import ReplyAddress, read_reply_topic, reply_token
from iotmq.remoting.codes import ResponseCode

ASKING = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "10.0.0.1@77#ü", "TTL": "3000"}
ADDRESS = ReplyAddress("broker-a", "10.0.0.1@77#ü", "c1")
TOKEN = reply_token(ADDRESS)


def prepared(**named: str) -> dict[str, str]:
    return decode_properties(with_reply_topic(encode_properties(named), broker="broker-a"))


def test_a_request_for_a_device_says_where_to_answer() -> None:
    got = prepared(**ASKING, MQTT_TOPIC="dev/1/ask")
    assert got.items() >= {**ASKING, "MQTT_TOPIC": "dev/1/ask"}.items()
    assert read_reply_topic(got["MQTT_RESPONSE_TOPIC"]) == ADDRESS
    assert b64decode(got["MQTT_CORRELATION_DATA"]) == b"c1"
    assert len(got) == 6


def test_the_placeholder_becomes_the_token() -> None:
    got = prepared(**ASKING, MQTT_TOPIC="dev/ü/ask/{reply}", TAGS="t")
    assert got["MQTT_TOPIC"] == f"dev/ü/ask/{TOKEN}"
    assert got["MQTT_RESPONSE_TOPIC"] == f"$reply/{TOKEN}"
    assert got["TAGS"] == "t"


@pytest.mark.parametrize("topic", ["{reply}/x", "a/{reply}x", "a/x{reply}", "a/{REPLY}"])
def test_only_a_whole_last_level_is_a_placeholder(topic: str) -> None:
    assert prepared(**ASKING, MQTT_TOPIC=topic)["MQTT_TOPIC"] == topic


def test_a_response_topic_of_the_senders_own_stays() -> None:
    got = prepared(**ASKING, MQTT_TOPIC="a", MQTT_RESPONSE_TOPIC="mine")
    assert got["MQTT_RESPONSE_TOPIC"] == "mine"
    assert "MQTT_CORRELATION_DATA" not in got
    own = prepared(**ASKING, MQTT_TOPIC="a", MQTT_CORRELATION_DATA="bWluZQ==")
    assert b64decode(own["MQTT_CORRELATION_DATA"]) == b"mine"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"A\x01b",
        encode_properties({"MQTT_TOPIC": "a/{reply}"}),
        encode_properties(ASKING),
        encode_properties({"MQTT_TOPIC": "a/{reply}", "CORRELATION_ID": "c1"}),
        encode_properties({"MQTT_TOPIC": "a/{reply}", "REPLY_TO_CLIENT": "c"}),
        encode_properties({"MQTT_TOPIC": "a/{reply}", "X": "REPLY_TO_CLIENT", "CORRELATION_ID": "c1"}),
        encode_properties({**ASKING, "MQTT_TOPIC": ""}),
        encode_properties({**ASKING, "MQTT_TOPIC": "a", "CORRELATION_ID": "c\0"}),
    ],
)
def test_what_is_no_request_for_a_device_stays_as_it_is(raw: bytes) -> None:
    assert with_reply_topic(raw, broker="broker-a") == raw


def test_properties_without_their_last_separator() -> None:
    raw = encode_properties({**ASKING, "MQTT_TOPIC": "a"})[:-1]
    got = decode_properties(with_reply_topic(raw, broker="broker-a"))
    assert (got["MQTT_TOPIC"], got["MQTT_RESPONSE_TOPIC"]) == ("a", f"$reply/{TOKEN}")


def test_a_topic_at_its_limit_with_the_token_and_past_it() -> None:
    room = limits.MQTT_TOPIC_BYTES_MAX - len(TOKEN) - 1
    assert len(prepared(**ASKING, MQTT_TOPIC="t" * room + "/{reply}")["MQTT_TOPIC"]) == 4_096
    with pytest.raises(RequestError, match="4097 bytes") as raised:
        prepared(**ASKING, MQTT_TOPIC="t" * (room + 1) + "/{reply}")
    assert raised.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_properties_at_their_limit_and_past_it() -> None:
    used = len(with_reply_topic(encode_properties({**ASKING, "MQTT_TOPIC": "a", "F": ""}), broker="broker-a"))
    room = limits.PROPERTIES_BYTES_MAX - used
    assert len(prepared(**ASKING, MQTT_TOPIC="a", F="x" * room)["F"]) == room
    with pytest.raises(RequestError, match="needs to answer"):
        prepared(**ASKING, MQTT_TOPIC="a", F="x" * (room + 1))
