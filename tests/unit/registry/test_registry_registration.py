"""The body of a registration, plain and compressed, whole and damaged."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.errors import RequestError
from iotmq.limits import REGISTRATION_INFLATED_BYTES_MAX, TOPICS_MAX
from iotmq.registry.registration import decode_registration
from iotmq.registry.routes import DataVersion, TopicQueues


def text(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def compressed(
    *topics: bytes, version: bytes = b'{"counter":1,"timestamp":2}', count: int | None = None
) -> bytes:
    number = (len(topics) if count is None else count).to_bytes(4, "big")
    return text(version) + number + b"".join(map(text, topics)) + text(b"[]")


def decode(plain: bytes) -> object:
    return decode_registration(zlib.compress(plain), is_compressed=True, crc=0)


def test_a_json_body_is_read_with_defaults_and_unknown_fields() -> None:
    body = {
        "filterServerList": None,
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 4, "timestamp": 5, "stateVersion": 6, "other": 1},
            "topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 2, "attributes": {}}},
        },
    }
    found = decode_registration(json.dumps(body).encode() + b"\n", is_compressed=False, crc=0)
    assert found.data_version == DataVersion(4, 5, 6)
    assert found.topics == {"T": TopicQueues(2, 16, 6, 0)}


def test_a_compressed_body_is_read() -> None:
    found = decode_registration(
        zlib.compress(compressed(b"T 8 4 6 SINGLE_TAG", b"U 1 1 4 MULTI_TAG {}"), 9),
        is_compressed=True,
        crc=0,
    )
    assert found == (DataVersion(1, 2), {"T": TopicQueues(8, 4, 6), "U": TopicQueues(1, 1, 4)}, 0)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"topicConfigSerializeWrapper":null}'])
def test_a_body_without_topics_has_none(body: bytes) -> None:
    assert decode_registration(body, is_compressed=False, crc=0) == (None, {}, 0)


def test_the_crc_is_that_of_the_body_as_sent() -> None:
    body = zlib.compress(compressed(b"T 8 4 6 SINGLE_TAG"))
    crc = zlib.crc32(body) & 0x7FFFFFFF
    assert decode_registration(body, is_compressed=True, crc=crc).topics
    with pytest.raises(RequestError, match="CRC"):
        decode_registration(body, is_compressed=True, crc=crc ^ 1)


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"\x00\x00\x00",
        b"\xff\xff\xff\xff",
        text(b"{}")[:-1],
        text(b"{}"),
        text(b"no JSON") + bytes(4),
        text(b"{}") + b"\xff\xff\xff\xff",
        compressed(b"T 8 4 6 SINGLE_TAG", count=2)[:-3],
        compressed(b"T"),
        compressed(b"T 8 4"),
        compressed(b"T x 4 6 SINGLE_TAG"),
        compressed(b"\xff 8 4 6 SINGLE_TAG"),
        compressed(b"T " + b"9" * 5_000 + b" 4 6 SINGLE_TAG"),
        compressed(count=TOPICS_MAX + 1),
    ],
)
def test_a_damaged_compressed_body_is_code_1(plain: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        decode(plain)
    assert caught.value.code == 1


def test_what_is_not_compressed_or_cut_off_is_code_1() -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        decode_registration(b"not zlib", is_compressed=True, crc=0)
    with pytest.raises(RequestError, match="cut off"):
        decode_registration(zlib.compress(compressed(b"T 8 4 6 X"))[:-6], is_compressed=True, crc=0)


def test_a_body_may_inflate_to_the_limit_and_no_further() -> None:
    frame = compressed(b"")
    fits = b"T 1 1 6 " + b"x" * (REGISTRATION_INFLATED_BYTES_MAX - len(frame) - 8)
    assert len(compressed(fits)) == REGISTRATION_INFLATED_BYTES_MAX
    decode(compressed(fits))
    with pytest.raises(RequestError, match="inflates past"):
        decode(compressed(fits + b"x"))


@given(st.binary(max_size=100), st.booleans())
def test_any_body_is_read_or_refused(body: bytes, is_compressed: bool) -> None:
    for candidate in (body, zlib.compress(body)):
        try:
            decode_registration(candidate, is_compressed=is_compressed, crc=0)
        except RequestError:
            pass
