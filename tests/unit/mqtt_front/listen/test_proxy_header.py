"""Headers of the PROXY protocol: what they say, and every malformed form, whole and byte by byte."""

from __future__ import annotations

import struct

import crcmod.predefined
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotmq import limits
from iotmq.mqtt_front.listen.proxy_header import (
    SIGNATURE,
    ProxyHeader,
    ProxyHeaderError,
    ProxyHeaderReader,
    crc32c,
)

castagnoli = crcmod.predefined.mkCrcFun("crc-32c")
IPV4 = bytes([192, 0, 2, 1, 198, 51, 100, 2]) + struct.pack(">HH", 56324, 443)
IPV6 = bytes.fromhex("20010db8" + "00" * 11 + "01" + "20010db8" + "00" * 11 + "02") + struct.pack(">HH", 1, 2)
UNIX = b"/from".ljust(108, b"\0") + b"/to".ljust(108, b"\0")


def block(rest: bytes, *, command: int = 0x21, kind: int = 0x11, size: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, kind, len(rest) if size is None else size) + rest


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def ssl(client: int = 0x07, verify: int = 0, *more: bytes) -> bytes:
    return tlv(0x20, struct.pack(">BI", client, verify) + b"".join(more))


def summed(rest: bytes, *, wrong: int = 0) -> bytes:
    """With a checksum behind the rest."""
    blank = block(rest + tlv(3, bytes(4)))
    return blank[:-4] + (castagnoli(blank) ^ wrong).to_bytes(4, "big")


GOOD: dict[bytes, ProxyHeader] = {
    b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n": ProxyHeader("192.0.2.1", 56324),
    b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n": ProxyHeader("255.255.255.255", 65535),
    b"PROXY TCP6 2001:db8::1 ::1 0 1\r\n": ProxyHeader("2001:db8::1", 0),
    b"PROXY TCP6 ::ffff:192.0.2.1 ::1 0 1\r\n": ProxyHeader("192.0.2.1", 0),
    b"PROXY TCP6 " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 65535 65535\r\n": ProxyHeader(
        "ffff:" * 7 + "ffff", 65535
    ),
    b"PROXY UNKNOWN\r\n": ProxyHeader(),
    b"PROXY UNKNOWN " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 65535 65535\r\n": ProxyHeader(),
    b"PROXY UNKNOWN \xff\0what it likes\r\n": ProxyHeader(),
    block(IPV4): ProxyHeader("192.0.2.1", 56324),
    block(IPV6, kind=0x21): ProxyHeader("2001:db8::1", 1),
    block(UNIX, kind=0x31): ProxyHeader(),
    block(b"", kind=0x00): ProxyHeader(),
    block(IPV4, kind=0x10): ProxyHeader(),
    block(b"", command=0x20, kind=0x00): ProxyHeader(),
    block(IPV4, command=0x20): ProxyHeader(),
    block(b"\x01", command=0x20, kind=0x11): ProxyHeader(),
    block(tlv(2, b"example.org"), kind=0x00): ProxyHeader(server_name="example.org"),
    block(IPV4 + tlv(4, b"") + tlv(4, bytes(9)) + tlv(0xEE, b"x") + tlv(1, b"mqtt")): ProxyHeader(
        "192.0.2.1", 56324
    ),
    block(IPV4 + tlv(2, "bücher.example".encode()) + tlv(5, b"\0id")): ProxyHeader(
        "192.0.2.1", 56324, "bücher.example", b"\0id"
    ),
    block(IPV4 + tlv(5, bytes(128))): ProxyHeader("192.0.2.1", 56324, unique_id=bytes(128)),
    block(IPV4 + ssl(7, 0, tlv(0x21, b"TLSv1.3"), tlv(0x22, b"device"))): ProxyHeader(
        "192.0.2.1", 56324, certificate_name="device"
    ),
    block(IPV4 + ssl(5, 0, tlv(0x22, b"in session"))): ProxyHeader(
        "192.0.2.1", 56324, certificate_name="in session"
    ),
    block(IPV4 + ssl(7, 1, tlv(0x22, b"not verified"))): ProxyHeader("192.0.2.1", 56324),
    block(IPV4 + ssl(1, 0, tlv(0x22, b"no certificate"))): ProxyHeader("192.0.2.1", 56324),
    block(IPV4 + ssl(6, 0, tlv(0x22, b"not by TLS"))): ProxyHeader("192.0.2.1", 56324),
    block(IPV4 + ssl(7, 0)): ProxyHeader("192.0.2.1", 56324),
    summed(IPV4): ProxyHeader("192.0.2.1", 56324),
    summed(IPV4 + tlv(2, b"host")): ProxyHeader("192.0.2.1", 56324, "host"),
    block(IPV4 + tlv(4, bytes(limits.PROXY_HEADER_BYTES_MAX - 31))): ProxyHeader("192.0.2.1", 56324),
}

BAD: dict[bytes, str] = {
    b"\x10\x0c\0\x04MQTT": "begins like no header",
    b"PROXX TCP4": "begins like no header",
    b"proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n": "begins like no header",
    b"PROXY\tTCP4 1.2.3.4 1.2.3.4 1 1\r\n": "begins like no header",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n": "without a carriage return",
    b"PROXY \r\n": "that is not PROXY TCP4",
    b"PROXY UNKNOWNX\r\n": "that is not PROXY TCP4",
    b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n": "that is not PROXY TCP4",
    b"PROXY tcp4 1.2.3.4 1.2.3.4 1 1\r\n": "that is not PROXY TCP4",
    b"PROXY TCP4\r\n": "that is not PROXY TCP4",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n": "that is not PROXY TCP4",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n": "that is not PROXY TCP4",
    b"PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n": "that is not PROXY TCP4",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n": "that is not PROXY TCP4",
    b"PROXY TCP4 1.2.3 1.2.3.4 1 1\r\n": "an invalid address",
    b"PROXY TCP4 1.2.3.256 1.2.3.4 1 1\r\n": "an invalid address",
    b"PROXY TCP4 01.2.3.4 1.2.3.4 1 1\r\n": "an invalid address",
    b"PROXY TCP4 1.2.3.4 ::1 1 1\r\n": "an invalid address",
    b"PROXY TCP4 \xb2.2.3.4 1.2.3.4 1 1\r\n": "an invalid address",
    b"PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n": "an invalid address",
    b"PROXY TCP6 ::1 ::x 1 1\r\n": "an invalid address",
    b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n": "zone",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n": "an invalid port",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 01\r\n": "an invalid port",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 1\r\n": "an invalid port",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 1\r\n": "an invalid port",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 \xb2 1\r\n": "an invalid port",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 \r\r\n": "an invalid port",
    b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n": "a line of more than 107 bytes",
    SIGNATURE[:-1] + b"X": "begins like no header",
    block(IPV4, command=0x11): "version and command 0x11",
    block(IPV4, command=0x31): "version and command 0x31",
    block(IPV4, command=0x22): "version and command 0x22",
    block(IPV4, kind=0x41): "address family and transport 0x41",
    block(IPV4, kind=0x13): "address family and transport 0x13",
    block(IPV4, command=0x20, kind=0x1F): "address family and transport 0x1f",
    block(IPV4, kind=0x12): "not a stream",
    block(IPV6, kind=0x22): "not a stream",
    block(IPV4[:-1]): "too short for its addresses",
    block(b""): "too short for its addresses",
    block(IPV6[:-1], kind=0x21): "too short for its addresses",
    block(UNIX[:-1], kind=0x31): "too short for its addresses",
    block(IPV4 + b"\x04"): "a TLV cut short",
    block(IPV4 + b"\x04\0"): "a TLV cut short",
    block(IPV4 + b"\x04\0\x01"): "a TLV cut short",
    block(IPV4 + tlv(2, b"a") + tlv(2, b"b")): "two TLVs of type 0x02",
    block(IPV4 + tlv(2, b"\xff")): "not UTF-8",
    block(IPV4 + tlv(2, b"a\nb")): "control characters",
    block(IPV4 + tlv(3, bytes(3))): "not four bytes",
    block(IPV4 + tlv(5, bytes(129))): "a unique id of more than 128",
    block(IPV4 + tlv(0x20, bytes(4))): "about TLS cut short",
    block(IPV4 + ssl(7, 0, b"\x22\0\x05four")): "a TLV cut short",
    block(IPV4 + ssl(7, 0, tlv(0x22, b"a"), tlv(0x22, b"b"))): "two TLVs of type 0x22",
    block(IPV4 + ssl(7, 1, tlv(0x22, b"\xff"))): "not UTF-8",
    summed(IPV4, wrong=1): "the checksum is wrong",
    summed(IPV4 + tlv(2, b"host"), wrong=1 << 31): "the checksum is wrong",
    block(b"", size=limits.PROXY_HEADER_BYTES_MAX - 15): "at most 4096 are read",
    block(b"", size=65_535): "at most 4096 are read",
}


def at_once(data: bytes) -> tuple[ProxyHeader | None, int]:
    """The header and how many bytes it has."""
    reader = ProxyHeaderReader()
    used = reader.receive_data(data)
    return reader.header, used


def by_bytes(data: bytes) -> tuple[ProxyHeader | None, int]:
    reader = ProxyHeaderReader()
    for at in range(len(data)):
        assert reader.receive_data(data[at : at + 1]) == 1
        if reader.header is not None:
            return reader.header, at + 1
    return None, len(data)


@pytest.mark.parametrize("data", GOOD)
def test_headers(data: bytes) -> None:
    for behind in (b"", b"\x10\x0c\0\x04MQTT", b"\r\n", bytes(limits.PROXY_HEADER_BYTES_MAX)):
        assert at_once(data + behind) == (GOOD[data], len(data))
        assert by_bytes(data + behind) == (GOOD[data], len(data))


@pytest.mark.parametrize("data", BAD)
def test_what_is_no_header(data: bytes) -> None:
    for behind in (b"", bytes(200)):
        with pytest.raises(ProxyHeaderError, match=BAD[data]):
            at_once(data + behind)
        with pytest.raises(ProxyHeaderError, match=BAD[data]):
            by_bytes(data + behind)


@pytest.mark.parametrize("data", GOOD)
def test_a_header_cut_short_is_waited_for(data: bytes) -> None:
    for size in range(min(len(data), 300)):
        assert at_once(data[:size]) == (None, size)


@pytest.mark.slow
@pytest.mark.parametrize("data", [data for data in GOOD if len(data) < 300])
def test_every_changed_byte_is_a_header_or_an_error(data: bytes) -> None:
    for at in range(min(len(data), 80)):
        for value in (0, 0x0A, 0x20, 0x7F, 0xFF, data[at] ^ 1):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            outcomes = []
            for read in (at_once, by_bytes):
                try:
                    outcomes.append(str(read(changed)))
                except ProxyHeaderError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]


@settings(max_examples=200)
@given(st.binary(max_size=300), st.integers(0, 300))
def test_however_a_block_is_cut(rest: bytes, cut: int) -> None:
    data = block(rest)
    reader = ProxyHeaderReader()
    outcomes = []
    try:
        used = reader.receive_data(data[:cut])
        if reader.header is None:
            used += reader.receive_data(data[cut:])
        outcomes.append(str((reader.header, used)))
    except ProxyHeaderError as error:
        outcomes.append(str(error))
    try:
        outcomes.append(str(at_once(data)))
    except ProxyHeaderError as error:
        outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=300))
def test_the_sum_is_the_one_of_castagnoli(data: bytes) -> None:
    assert crc32c(data) == castagnoli(data)
