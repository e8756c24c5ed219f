"""Properties as text pairs, hosts as bytes, and compressed bodies."""

from __future__ import annotations

import zlib

import pytest

from iotmq.limits import INFLATED_BODY_BYTES_MAX
from iotmq.message.bodies import compress_body, inflate_body
from iotmq.message.compression import Compression
from iotmq.message.errors import BodyTooLargeError, MessageFormatError
from iotmq.message.hosts import decode_host, encode_host
from iotmq.message.properties import KEYS, TAGS, decode_properties, encode_properties


def test_each_pair_is_ended() -> None:
    assert encode_properties({TAGS: "TagA", KEYS: "k1"}) == b"TAGS\x01TagA\x02KEYS\x01k1\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("raw", "pairs"),
    [
        (b"", {}),
        (b"A\x011\x02B\x012\x02", {"A": "1", "B": "2"}),
        (b"A\x011\x02B\x012", {"A": "1", "B": "2"}),
        (b"\x02\x02A\x011\x02\x02", {"A": "1"}),
        (b"A\x01\x02", {"A": ""}),
        (b"A\x02\x01x\x02B\x012", {"B": "2"}),
        (b"A\x011\x02A\x012", {"A": "2"}),
        (b"A\x01x\x01y\x02", {"A": "x\x01y"}),
        (b"A\x01\xff\x02", {"A": "\ufffd"}),
        ("温度\x01高\x02".encode(), {"温度": "高"}),
    ],
)
def test_decoding_is_lenient(raw: bytes, pairs: dict[str, str]) -> None:
    assert decode_properties(raw) == pairs


@pytest.mark.parametrize(
    "pairs", [{"": "x"}, {"A\x01": "x"}, {"A\x02": "x"}, {"A": "x\x01y"}, {"A": "x\x02TAGS\x01forged"}]
)
def test_pairs_the_format_cannot_hold_are_refused(pairs: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="property"):
        encode_properties(pairs)


@pytest.mark.parametrize(
    ("host", "port", "encoded"),
    [
        ("127.0.0.1", 10911, "7f00000100002a9f"),
        ("0.0.0.0", 0, "0000000000000000"),
        ("255.255.255.255", 65_535, "ffffffff0000ffff"),
        ("::1", 1883, "0000000000000000000000000000000100" + "00075b"),
    ],
)
def test_hosts_are_address_and_port(host: str, port: int, encoded: str) -> None:
    assert encode_host(host, port).hex() == encoded
    assert decode_host(bytes.fromhex(encoded)) == (host, port)


def test_an_ipv4_address_mapped_into_ipv6_is_stored_as_ipv4() -> None:
    assert encode_host("::ffff:10.0.0.1", 1) == encode_host("10.0.0.1", 1)


@pytest.mark.parametrize(("host", "port"), [("localhost", 1), ("", 1), ("1.2.3.4", -1), ("1.2.3.4", 65_536)])
def test_hosts_that_are_no_addresses_are_refused(host: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"port|address"):
        encode_host(host, port)


@pytest.mark.parametrize("size", [0, 7, 9, 19, 21])
def test_host_bytes_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(MessageFormatError, match=f"not {size}"):
        decode_host(bytes(size))


def test_a_body_is_compressed_when_that_makes_it_shorter() -> None:
    body, sys_flag = compress_body(b"abc" * 1000)
    assert len(body) < 100
    assert sys_flag == 0x301
    assert inflate_body(body, sys_flag) == b"abc" * 1000
    assert compress_body(b"abc") == (b"abc", 0)


@pytest.mark.parametrize("sys_flag", [1, 0x301])
def test_older_senders_leave_the_method_out(sys_flag: int) -> None:
    assert inflate_body(zlib.compress(b"abc"), sys_flag) == b"abc"


def test_a_plain_body_stays_as_it_is() -> None:
    assert inflate_body(b"\x78\x9c", 0x300) == b"\x78\x9c"


@pytest.mark.parametrize(("method", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_inflated_size_limit(method: Compression, flag: int) -> None:
    body, sys_flag = compress_body(bytes(INFLATED_BODY_BYTES_MAX), method)
    assert sys_flag == flag
    assert inflate_body(body, sys_flag) == bytes(INFLATED_BODY_BYTES_MAX)
    with pytest.raises(BodyTooLargeError, match="inflates past 4194304 bytes"):
        inflate_body(compress_body(bytes(INFLATED_BODY_BYTES_MAX + 1), method)[0], sys_flag)


@pytest.mark.parametrize(
    ("body", "sys_flag", "reason"),
    [
        (b"not zlib", 1, "damaged"),
        (b"", 1, "cut off"),
        (zlib.compress(b"abc")[:-1], 1, "cut off"),
        (zlib.compress(b"abc"), 0x101, "damaged"),
        (zlib.compress(b"abc"), 0x201, "damaged"),
        (zlib.compress(b"abc"), 0x401, "an unknown way"),
    ],
)
def test_bodies_that_cannot_be_inflated(body: bytes, sys_flag: int, reason: str) -> None:
    with pytest.raises(MessageFormatError, match=reason):
        inflate_body(body, sys_flag)
