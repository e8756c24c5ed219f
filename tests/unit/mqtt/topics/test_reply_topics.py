"""Reply topics: what brokers make of an address, front ends read again, and nothing else is one."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID
from iotmq.mqtt.topics.reply import REPLY_PREFIX, ReplyAddress, read_reply_topic, reply_token

PART = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=60)


@given(PART, PART, PART)
def test_every_address_comes_back_as_it_was(broker: str, client_id: str, correlation_id: str) -> None:
    address = ReplyAddress(broker, client_id, correlation_id)
    token = reply_token(address)
    assert token.isascii()
    assert token.replace("-", "").replace("_", "").isalnum(), "one level of any topic"
    assert read_reply_topic(REPLY_PREFIX + token) == address


@pytest.mark.parametrize("parts", [("", "c", "1"), ("b", "", "1"), ("b", "c", ""), ("b", "c\0d", "1")])
def test_addresses_that_cannot_be_written(parts: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="topic"):
        reply_token(ReplyAddress(*parts))


def token_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "/",
        "x",
        "a b",
        "ü",
        "!!!!",
        token_of(b"b\0c\0" + b"1")[:-1],
        token_of(b"b\0c\0001") + "/more",
        token_of(b"b\0c"),
        token_of(b"b\0c\0001\0"),
        token_of(b"\0c\0001"),
        token_of(b"b\0\0001"),
        token_of(b"b\0c\0"),
        token_of(b"b\0\xff\0001"),
        "A" * 4_000,
    ],
)
def test_topics_no_broker_has_made_are_refused(token: str) -> None:
    with pytest.raises(MqttProtocolError, match="reply topic") as raised:
        read_reply_topic(REPLY_PREFIX + token)
    assert raised.value.reason is TOPIC_NAME_INVALID
