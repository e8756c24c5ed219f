"""Host addresses as records carry them: the IP address (4 or 16 bytes), then the port as int32."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from iotmq.message.errors import MessageFormatError

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
_PORT_MAX = 65_535


def encode_host(host: str, port: int) -> bytes:
    """An IP address and port in 8 bytes, or in 20 for IPv6. An IPv4 address mapped into IPv6 takes 8.

    Raises ValueError for a name (resolve it first) and for a port outside 0..65535.
    """
    if not 0 <= port <= _PORT_MAX:
        raise ValueError(f"port {port} is not within 0..{_PORT_MAX}")
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4)


def decode_host(encoded: bytes) -> tuple[str, int]:
    """Return the address and port in 8 or 20 bytes; raises MessageFormatError for another size."""
    if len(encoded) == HOST_V4_BYTES:
        return str(IPv4Address(encoded[:-4])), int.from_bytes(encoded[-4:], signed=True)
    if len(encoded) == HOST_V6_BYTES:
        return str(IPv6Address(encoded[:-4])), int.from_bytes(encoded[-4:], signed=True)
    raise MessageFormatError(f"a host has {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {len(encoded)}")
