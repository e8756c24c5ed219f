"""Patterns of remote addresses in access control lists.

As RocketMQ writes them: `192.168.1.7`, `*`, `192.168.*.*`, `192.168.1.10-20`, `192.168.1.{7,9}`, several
addresses separated by commas, and the same with the eight groups of IPv6 (`::` stands for groups of zeros).
Networks such as `10.0.0.0/8` are understood, too. An empty pattern means nobody.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

_EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_PART_MAX: Final = {4: 255, 6: 0xFFFF}
_PARTS: Final = {4: 4, 6: 8}

# One part of an address: ranges it may lie in.
_Part: TypeAlias = tuple[tuple[int, int], ...]


class AddressPattern(NamedTuple):
    """Which remote addresses are meant. `matches` takes an address as sockets give it."""

    text: str
    matches: Callable[[str], bool]


def parse_address_pattern(text: str) -> AddressPattern:
    """The pattern `text` says. ValueError naming it when it says none."""
    stripped = text.strip()
    if not stripped:
        return AddressPattern(text, lambda _: False)
    if stripped in _EVERYBODY:
        return AddressPattern(text, lambda _: True)
    try:
        checks = [_check_of(piece.strip()) for piece in split_patterns(stripped)]
    except ValueError as error:
        raise ValueError(f"invalid address pattern {text!r}: {error}") from None

    def matches(address: str) -> bool:
        parsed = _parse(address)
        return parsed is not None and any(check(parsed) for check in checks)

    return AddressPattern(text, matches)


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def _check_of(piece: str) -> Callable[[_Address], bool]:
    if "/" in piece:
        network = ipaddress.ip_network(piece, strict=False)
        return lambda address: address.version == network.version and address in network
    version = 6 if ":" in piece else 4
    parts = tuple(_part(part, version) for part in _split(piece, version))

    def check(address: _Address) -> bool:
        if address.version != version:
            return False
        numbers = _numbers(address)
        return all(
            any(low <= number <= high for low, high in ranges)
            for number, ranges in zip(numbers, parts, strict=True)
        )

    return check


def split_patterns(text: str) -> list[str]:
    """Return the patterns between commas that stand outside braces."""
    pieces = [""]
    depth = 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def _split(piece: str, version: int) -> list[str]:
    count = _PARTS[version]
    if version == 4:
        parts = piece.split(".")
    else:
        head, gap, tail = piece.partition("::")
        parts = [part for part in head.split(":") if part or not gap]
        behind = [part for part in tail.split(":") if part]
        if gap:
            parts += ["0"] * (count - len(parts) - len(behind))
        parts += behind
    if len(parts) != count:
        raise ValueError(f"{piece!r} has {len(parts)} parts, an address of IPv{version} has {count}")
    return parts


def _part(text: str, version: int) -> _Part:
    maximum = _PART_MAX[version]
    text = text.strip()
    if text == "*":
        return ((0, maximum),)
    words = text[1:-1].split(",") if text.startswith("{") and text.endswith("}") else [text]
    ranges = []
    for word in words:
        first, dash, last = word.strip().partition("-")
        low = _number(first, version)
        high = _number(last, version) if dash else low
        if not low <= high <= maximum:
            raise ValueError(
                f"{word.strip()!r} is not in 0..{maximum:x}" if version == 6 else f"{word!r} is not in 0..255"
            )
        ranges.append((low, high))
    return tuple(ranges)


def _number(text: str, version: int) -> int:
    text = text.strip()
    if not text or len(text) > 4 or not text.isascii() or not text.isalnum():
        raise ValueError(f"invalid part of an address: {text!r}")
    return int(text, 16 if version == 6 else 10)


def _parse(address: str) -> _Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    # A listener on :: shows clients of IPv4 like this.
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped
    return parsed


def _numbers(address: _Address) -> tuple[int, ...]:
    packed = address.packed
    if address.version == 4:
        return tuple(packed)
    return tuple(int.from_bytes(packed[at : at + 2]) for at in range(0, 16, 2))
