"""Elements of batches are what the slow way makes."""

from __future__ import annotations

import pytest
from fake_broker import split_batch

from iotmq.client.sending.message_elements import encode_element, split_element
from iotmq.client.transport.message import Message
from iotmq.errors import MessageRefusedError
from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.message.records.record import encode_batch

KEY = "7F0000010001000000010000000A0000"


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b""),
        Message("T", b"body", key="k", tags="t", flag=-7),
        Message("T", b"\x00\xff" * 300, key="ключ", tags="é", flag=2**31 - 1),
        Message("T", b"", keys=["a", "b"]),
        Message("T", b"", key="k", keys=["a", "b"], properties={"x": "y", "é": ""}),
        Message("T", b"", tags="t", wait_stored=False),
        Message("T", b"", key="a\tb"),
        Message("T", b"", key="k", ttl_ms=1),
        Message("T", b"", key="k" * (PROPERTIES_BYTES_MAX - 48)),
    ],
)
def test_an_element_is_what_its_parts_make(message: Message) -> None:
    properties = message.encoded_properties(KEY)
    element = encode_element(message, KEY)
    assert element == encode_batch([(message.body, properties, message.flag)])
    assert split_element(element) == (message.body, properties)


def test_a_body_that_can_change_is_copied() -> None:
    body = bytearray(b"abc")
    element = encode_element(Message("T", memoryview(body)), KEY)  # type: ignore[arg-type]
    body[0] = 0
    assert split_batch(element)[0][0] == b"abc"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("T", 5), "bytes-like"),  # type: ignore[arg-type]
        (Message("T", "text"), "the body of a message is bytes: encode a text"),  # type: ignore[arg-type]
        (Message("T", b"", key=7), "key of a message is a text, not 7"),  # type: ignore[arg-type]
        (Message("T", b"", tags=["a"]), "tags of a message is a text"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_the_wrong_type_is_named(message: Message, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        encode_element(message, KEY)


def test_keys_are_a_list() -> None:
    with pytest.raises(MessageRefusedError, match=r"keys is a list of words, such as \['ab'\]"):
        encode_element(Message("T", b"", keys="ab"), KEY)


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"", key="a\x01b"),
        Message("T", b"", tags="a\x02b"),
        Message("T", b"", key="\ud800"),
        Message("T", b"", properties={"": "x"}),
        Message("T", b"", key="k" * (PROPERTIES_BYTES_MAX - 47)),
        Message("T", b"", ttl_ms=-1),
        Message("T", b"", flag=2**31),
        Message("T", b"", flag=-(2**31) - 1),
    ],
)
def test_what_cannot_be_stored_is_refused(message: Message) -> None:
    with pytest.raises(MessageRefusedError):
        encode_element(message, KEY)
