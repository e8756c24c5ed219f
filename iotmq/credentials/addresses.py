"""Say which addresses count as one, and as which number an address is looked up."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address


def parsed(address: str) -> IPv4Address | IPv6Address | None:
    """Return an address, that of IPv4 also where IPv6 has it inside; None for text that is none."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def network_of(address: str) -> str:
    """Return the name under which an address is counted.

    Of IPv6 that is its network of 64 bits, because one host has that many addresses.
    """
    if ":" not in address:
        return address
    found = parsed(address)
    if found is None:
        return address
    return str(found) if isinstance(found, IPv4Address) else found.packed[:8].hex()
