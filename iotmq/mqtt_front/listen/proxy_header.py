"""Read the PROXY protocol, versions 1 and 2: what a proxy says before the device's bytes.

Version 1 is a line of text of at most 107 bytes:

    PROXY TCP4|TCP6 SOURCE DESTINATION SOURCE_PORT DESTINATION_PORT\\r\\n
    PROXY UNKNOWN ...\\r\\n

Version 2, its numbers big-endian:

    0   12 bytes  signature
    12  1 byte    version (2) in the high half; 0 LOCAL or 1 PROXY in the low one
    13  1 byte    address family (0 none, 1 IPv4, 2 IPv6, 3 Unix) and transport (0 none, 1 stream, 2 datagram)
    14  2 bytes   size of what follows
    16            addresses: 12, 36 or 216 bytes; then TLVs: type (1 byte), size (2 bytes), value

As the specification of HAProxy has it (proxy-protocol.txt, sections 2.1 and 2.2). A connection of the proxy's
own (LOCAL), and one it knows nothing about, are taken for what they are without it.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.errors import IotmqError

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_VERSION_1: Final = b"PROXY "
# The specification has worked out the longest line.
_LINE_BYTES_MAX: Final = 107
_FIXED_BYTES: Final = 16
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_STREAM: Final = 1
# Address family -> size of the addresses.
_ADDRESS_BYTES: Final = {0: 0, 1: 12, 2: 36, 3: 216}
_IPV4: Final = 1
_IPV6: Final = 2
# Types of TLVs that are read; others say nothing to us.
_AUTHORITY: Final = 0x02
_CRC32C: Final = 0x03
_UNIQUE_ID: Final = 0x05
_SSL: Final = 0x20
_SSL_CN: Final = 0x22
_UNIQUE_ID_BYTES_MAX: Final = 128
# Flags of the SSL TLV: by TLS; with a certificate on this connection, or in the session it resumed.
_BY_TLS: Final = 0x01
_WITH_CERTIFICATE: Final = 0x06
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)


class ProxyHeaderError(IotmqError):
    """Report bytes that are not a PROXY header, or not the version they claim."""


class ProxyHeader(NamedTuple):
    """Hold the facts of a PROXY header about a connection."""

    address: str | None = None
    """The device's IP address; None when the proxy does not say, or it came from a Unix socket."""
    port: int = 0
    server_name: str | None = None
    """The host the device asked the proxy for."""
    unique_id: bytes = b""
    """The proxy's name for the connection, as in its own log."""
    certificate_name: str | None = None
    """The common name of a client certificate that the proxy has verified."""

    @property
    def shown_id(self) -> str | None:
        """Return the unique id as text, in hexadecimal digits when it is none; None without one."""
        if not self.unique_id:
            return None
        text = self.unique_id.decode("ascii", "replace")
        return text if text.isascii() and text.isprintable() else self.unique_id.hex()


#: Of a connection without one.
NO_HEADER: Final = ProxyHeader()


class ProxyHeaderReader:
    """Reads one header, however it is cut."""

    def __init__(self) -> None:
        self.header: ProxyHeader | None = None
        """Set when the header is complete."""
        self._data = bytearray()

    def receive_data(self, data: bytes) -> int:
        """Return how many of these bytes belong to the header; all of them while it is not complete.

        ProxyHeaderError when it cannot become a good one any more.
        """
        assert self.header is None, "what follows a header is the device's"
        before = len(self._data)
        self._data += data[: limits.PROXY_HEADER_BYTES_MAX - before]
        held = self._data
        if held.startswith(_VERSION_1[: len(held)]):
            size = self._read_line()
        elif held.startswith(SIGNATURE[: len(held)]):
            size = self._read_block()
        else:
            raise ProxyHeaderError("it begins like no header")
        return len(data) if size is None else size - before

    def _read_line(self) -> int | None:
        """Return the size of a header of version 1; None when more has to come."""
        held = self._data
        end = held.find(b"\n", 0, _LINE_BYTES_MAX)
        if end < 0:
            if len(held) >= _LINE_BYTES_MAX:
                raise ProxyHeaderError(f"a line of more than {_LINE_BYTES_MAX} bytes")
            return None
        line = bytes(held[: end + 1])
        if not line.endswith(b"\r\n"):
            raise ProxyHeaderError("a line that ends without a carriage return")
        self.header = _header_of_line(line[:-2])
        return end + 1

    def _read_block(self) -> int | None:
        """Return the size of a header of version 2; None when more has to come."""
        held = self._data
        # What is wrong is said as soon as it is there.
        if len(held) > 12 and held[12] not in (_LOCAL, _PROXY):
            raise ProxyHeaderError(f"version and command 0x{held[12]:02x}")
        if len(held) > 13 and (held[13] >> 4 not in _ADDRESS_BYTES or held[13] & 15 > 2):
            raise ProxyHeaderError(f"address family and transport 0x{held[13]:02x}")
        if len(held) < _FIXED_BYTES:
            return None
        size = _FIXED_BYTES + int.from_bytes(held[14:16], "big")
        if size > limits.PROXY_HEADER_BYTES_MAX:
            raise ProxyHeaderError(
                f"a header of {size} bytes; at most {limits.PROXY_HEADER_BYTES_MAX} are read"
            )
        if len(held) < size:
            return None
        block = bytes(held[:size])
        self.header = ProxyHeader() if held[12] == _LOCAL else _header_of_block(block)
        return size


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), as in RFC 3720 appendix B.4. A header is short; a library would not pay."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE: Final = _crc_table()


def _header_of_line(line: bytes) -> ProxyHeader:
    if line == b"PROXY UNKNOWN" or line.startswith(b"PROXY UNKNOWN "):
        return ProxyHeader()
    words = line.decode("latin-1").split(" ")
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyHeaderError("a line that is not PROXY TCP4|TCP6 with two addresses and two ports")
    family = ipaddress.IPv4Address if words[1] == "TCP4" else ipaddress.IPv6Address
    try:
        source, _ = family(words[2]), family(words[3])
    except ValueError as error:
        raise ProxyHeaderError(f"an invalid address of {words[1]}") from error
    if "%" in words[2] + words[3]:
        raise ProxyHeaderError("an address with a zone")
    for word in words[4:]:
        if not _PORT.fullmatch(word) or int(word) > 65_535:
            raise ProxyHeaderError("an invalid port")
    return ProxyHeader(_shown(source), int(words[4]))


def _header_of_block(block: bytes) -> ProxyHeader:
    family, transport = block[13] >> 4, block[13] & 15
    if family and transport > _STREAM:
        raise ProxyHeaderError("a connection that is not a stream")
    at = _FIXED_BYTES + _ADDRESS_BYTES[family]
    if at > len(block):
        raise ProxyHeaderError("a header too short for its addresses")
    values = _values(block, at)
    if _CRC32C in values:
        _check_sum(block, values[_CRC32C])
    address, port = None, 0
    if family == _IPV4 and transport:
        address, port = _shown(ipaddress.IPv4Address(block[16:20])), int.from_bytes(block[24:26], "big")
    elif family == _IPV6 and transport:
        address, port = _shown(ipaddress.IPv6Address(block[16:32])), int.from_bytes(block[48:50], "big")
    unique_id = _value(block, values, _UNIQUE_ID)
    if len(unique_id) > _UNIQUE_ID_BYTES_MAX:
        raise ProxyHeaderError(f"a unique id of more than {_UNIQUE_ID_BYTES_MAX} bytes")
    return ProxyHeader(
        address,
        port,
        server_name=_text(_value(block, values, _AUTHORITY)),
        unique_id=unique_id,
        certificate_name=_certificate_name(_value(block, values, _SSL)),
    )


def _shown(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """As a listener of ours would know it: one of IPv4 written as IPv6 is one of IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _values(data: bytes, at: int) -> dict[int, tuple[int, int]]:
    """Type -> (begin, end) of the value of every TLV from `at` on.

    A type that comes twice is refused: two readers might not believe the same one.
    """
    found: dict[int, tuple[int, int]] = {}
    while at < len(data):
        if at + 3 > len(data):
            raise ProxyHeaderError("a TLV cut short")
        kind, size = data[at], int.from_bytes(data[at + 1 : at + 3], "big")
        at += 3
        if at + size > len(data):
            raise ProxyHeaderError("a TLV cut short")
        if kind in found and kind in (_AUTHORITY, _CRC32C, _UNIQUE_ID, _SSL, _SSL_CN):
            raise ProxyHeaderError(f"two TLVs of type 0x{kind:02x}")
        found[kind] = at, at + size
        at += size
    return found


def _value(data: bytes, values: dict[int, tuple[int, int]], kind: int) -> bytes:
    begin, end = values.get(kind, (0, 0))
    return data[begin:end]


def _check_sum(block: bytes, place: tuple[int, int]) -> None:
    """The sum is that of the whole header, with zeros in its own place."""
    begin, end = place
    if end - begin != 4:
        raise ProxyHeaderError("a checksum that has not four bytes")
    if crc32c(block[:begin] + bytes(4) + block[end:]) != int.from_bytes(block[begin:end], "big"):
        raise ProxyHeaderError("the checksum is wrong")


def _certificate_name(ssl: bytes) -> str | None:
    """The common name in an SSL TLV; None unless there was a certificate and the proxy found it good."""
    if not ssl:
        return None
    if len(ssl) < 5:
        raise ProxyHeaderError("a TLV about TLS cut short")
    client, verify_result = struct.unpack_from(">BI", ssl)
    name = _text(_value(ssl, _values(ssl, 5), _SSL_CN))
    if not client & _BY_TLS or not client & _WITH_CERTIFICATE or verify_result:
        return None
    return name


def _text(value: bytes) -> str | None:
    """UTF-8 without control characters, because it goes into logs and names; None for nothing."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise ProxyHeaderError("a TLV with text that is not UTF-8") from error
    if not text.isprintable():
        raise ProxyHeaderError("a TLV with text that has control characters")
    return text or None
