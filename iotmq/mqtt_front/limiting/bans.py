"""Know who is banned: by client id, user, address, network or pattern.

Operations: a look-up for every connection that is accepted, and for every CONNECT. Goals: a hundred thousand
bans cost no more than one; a network no more than there are lengths of prefixes in use. Plan: hash tables of
exact names and addresses; of networks one for each length of a prefix, by the number of the network; the few
patterns one after the other.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from iotmq import limits
from iotmq.credentials.addresses import parsed
from iotmq.mqtt.bans import KINDS, Ban, BanKind
from iotmq.mqtt_front.patterns import Pattern, compile_pattern

_EXACT: Final[tuple[BanKind, ...]] = ("client", "user", "address")
_MAXIMA: Final[dict[BanKind, int]] = {
    "network": limits.MQTT_BANNED_NETWORKS_MAX,
    "client-pattern": limits.MQTT_BANNED_PATTERNS_MAX,
    "user-pattern": limits.MQTT_BANNED_PATTERNS_MAX,
}


class Bans:
    """The bans a front end knows. Times are milliseconds since 1970."""

    def __init__(self) -> None:
        # By kind and value, as `mqtt.bans.normal_value` writes it.
        self._bans: dict[BanKind, dict[str, Ban]] = {kind: {} for kind in KINDS}
        # (4 or 6, length of the prefix) -> its bits as a number -> the ban.
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}
        self._patterns: dict[str, Pattern] = {}
        self.refused_total = 0
        """Bans that were not taken, because there were too many."""
        self.malformed_total = 0
        """Messages at the topics of bans that are none."""

    def __len__(self) -> int:
        return sum(map(len, self._bans.values()))

    def __iter__(self) -> Iterator[Ban]:
        for bans in self._bans.values():
            yield from bans.values()

    @property
    def has_addresses(self) -> bool:
        """Return whether any address is banned."""
        return bool(self._bans["address"] or self._networks)

    def put(self, ban: Ban) -> bool:
        """Take a new ban, or a changed one; False when there are too many. ValueError when it is none."""
        known = self._bans[ban.kind]
        if ban.value not in known and self._is_full(ban.kind):
            self.refused_total += 1
            return False
        if ban.kind == "network":
            network = ipaddress.ip_network(ban.value)
            found = self._networks.setdefault((network.version, network.prefixlen), {})
            found[_bits(network.network_address, network.prefixlen)] = ban
        elif ban.kind not in _EXACT and ban.value not in self._patterns:
            self._patterns[ban.value] = compile_pattern(ban.value)
        known[ban.value] = ban
        return True

    def remove(self, kind: BanKind, value: str) -> None:
        """Forget a ban; an unknown one is passed over."""
        if self._bans[kind].pop(value, None) is None:
            return
        if kind == "network":
            network = ipaddress.ip_network(value)
            key = (network.version, network.prefixlen)
            found = self._networks[key]
            del found[_bits(network.network_address, network.prefixlen)]
            if not found:
                del self._networks[key]
        elif kind not in _EXACT and not any(
            value in self._bans[other] for other in ("client-pattern", "user-pattern")
        ):
            del self._patterns[value]

    def drop_over(self, now_ms: int) -> None:
        """Forget the bans that are over."""
        for ban in [ban for ban in self if ban.is_over(now_ms)]:
            self.remove(ban.kind, ban.value)

    def of_address(self, address: str | None, now_ms: int) -> Ban | None:
        """Return the ban of an address; None when it may connect."""
        if address is None or not self.has_addresses:
            return None
        # The kernel writes addresses of IPv4 as they are kept here.
        ban = _lasting(self._bans["address"].get(address), now_ms)
        if ban is not None or (not self._networks and ":" not in address):
            return ban
        found = parsed(address)
        if found is None:
            return None
        ban = _lasting(self._bans["address"].get(str(found)), now_ms)
        if ban is not None:
            return ban
        for version, length in self._networks:
            if version == found.version:
                networks = self._networks[version, length]
                ban = _lasting(networks.get(_bits(found, length)), now_ms)
                if ban is not None:
                    return ban
        return None

    def of_client(self, client_id: str, now_ms: int) -> Ban | None:
        """Return the ban of a client id."""
        return self._of_name("client", "client-pattern", client_id, now_ms)

    def of_user(self, user: str | None, now_ms: int) -> Ban | None:
        """Return the ban of a user."""
        return None if user is None else self._of_name("user", "user-pattern", user, now_ms)

    def _of_name(self, kind: BanKind, pattern_kind: BanKind, name: str, now_ms: int) -> Ban | None:
        ban = _lasting(self._bans[kind].get(name), now_ms)
        if ban is not None:
            return ban
        for pattern, pattern_ban in self._bans[pattern_kind].items():
            if not pattern_ban.is_over(now_ms) and self._patterns[pattern].fullmatch(name) is not None:
                return pattern_ban
        return None

    def _is_full(self, kind: BanKind) -> bool:
        if kind in _EXACT:
            return sum(len(self._bans[exact]) for exact in _EXACT) >= limits.MQTT_BANS_MAX
        if kind == "network":
            return len(self._bans[kind]) >= _MAXIMA[kind]
        return len(self._bans["client-pattern"]) + len(self._bans["user-pattern"]) >= _MAXIMA[kind]

    def check_invariants(self) -> None:
        """Raise AssertionError when the tables do not agree."""
        assert sum(len(self._bans[exact]) for exact in _EXACT) <= limits.MQTT_BANS_MAX
        networks = {ban.value for found in self._networks.values() for ban in found.values()}
        assert networks == set(self._bans["network"])
        assert self._patterns.keys() == {*self._bans["client-pattern"], *self._bans["user-pattern"]}


def _lasting(ban: Ban | None, now_ms: int) -> Ban | None:
    return None if ban is None or ban.is_over(now_ms) else ban


def _bits(address: IPv4Address | IPv6Address, length: int) -> int:
    return int(address) >> (address.max_prefixlen - length)
