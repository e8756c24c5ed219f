"""MQTT 5 properties: the reader for rare packets, the compiled one for PUBLISH, and the table by hand."""

from __future__ import annotations

from typing import Any

import mqtt5_oracle
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.framing import encode_variable_integer
from iotmq.mqtt.codec.properties import (
    PROPERTIES,
    WILL,
    Properties,
    encode_properties,
    read_properties,
)
from iotmq.mqtt.codec.publish_properties import decode_publish_properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import PROTOCOL_ERROR, Reason

PUBLISH = 3
TEXT = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), max_size=8)
# Anything that looks like a property, legal or not.
PIECE = st.builds(
    lambda identifier, value: bytes([identifier]) + value,
    st.one_of(st.sampled_from(sorted(mqtt5_oracle.TABLE)), st.integers(0, 255)),
    st.one_of(
        st.binary(max_size=6),
        st.builds(lambda raw: len(raw).to_bytes(2, "big") + raw, st.binary(max_size=5)),
        TEXT.map(lambda text: len(text.encode()).to_bytes(2, "big") + text.encode()),
        st.builds(
            lambda one, two: b"".join(
                len(text.encode()).to_bytes(2, "big") + text.encode() for text in (one, two)
            ),
            TEXT,
            TEXT,
        ),
        st.sampled_from([b"\0", b"\1", b"\2", b"\0\0", b"\0\1", b"\0\0\0\0", b"\0\0\0\7", b"\x80\x00"]),
    ),
)
BODY = st.builds(
    lambda pieces, cut, behind: (
        encode_variable_integer(max(0, len(b"".join(pieces)) - cut)) + b"".join(pieces) + behind
    ),
    st.lists(PIECE, max_size=4),
    st.sampled_from([0, 0, 0, 1, -1]),
    st.sampled_from([b"", b"", b"payload"]),
)
OWNERS = [WILL, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15]


def outcome(read: Any, *arguments: Any) -> Any:
    """What a reader says: a reason when it refuses."""
    try:
        return read(*arguments)
    except MqttProtocolError as error:
        return error.reason


def by_name(properties: Properties) -> dict[str, Any]:
    return {
        row.field: value
        for row in PROPERTIES
        if (value := getattr(properties, row.field)) is not None and value != ()
    }


def read_rare(data: bytes, owner: int) -> tuple[int, dict[str, Any]]:
    reader = FieldReader(data, "packet")
    found = read_properties(reader, owner)
    taken = 0
    while not reader.is_at_end:
        reader.take(1)
        taken += 1
    return len(data) - taken, by_name(found)


@settings(max_examples=600)
@given(BODY, st.sampled_from(OWNERS))
@example(b"\x05\x26\0\1a\0", 3)
@example(b"\x80\x00", 1)
def test_the_reader_for_rare_packets_agrees_with_the_table(data: bytes, owner: int) -> None:
    expected = outcome(mqtt5_oracle.read_properties, data, "W" if owner == WILL else owner)
    assert outcome(read_rare, data, owner) == expected


@settings(max_examples=600)
@given(st.one_of(BODY, st.binary(max_size=20)))
@example(b"\x02\x0b\x01")
@example(b"\x07\x08\0\x04a/+b")
def test_the_compiled_reader_agrees_with_the_table(data: bytes) -> None:
    expected = outcome(mqtt5_oracle.read_properties, data, PUBLISH)
    found = outcome(decode_publish_properties, data)
    if not isinstance(expected, Reason) and "subscription_identifiers" in expected[1]:
        assert found == PROTOCOL_ERROR, "[MQTT-3.3.4-6]"
    else:
        assert found == expected


@given(
    st.builds(
        Properties,
        payload_format=st.one_of(st.none(), st.integers(0, 1)),
        message_expiry_s=st.one_of(st.none(), st.integers(0, 0xFFFFFFFF)),
        content_type=st.one_of(st.none(), TEXT),
        correlation_data=st.one_of(st.none(), st.binary(max_size=20)),
        topic_alias=st.one_of(st.none(), st.integers(1, 65_535)),
        user_properties=st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple),
    )
)
def test_what_is_written_is_what_is_read(properties: Properties) -> None:
    encoded = encode_properties(properties)
    assert read_rare(encoded, PUBLISH) == (len(encoded), by_name(properties))
    assert decode_publish_properties(encoded) == (len(encoded), by_name(properties))
