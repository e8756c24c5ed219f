"""Count the failed logins of an address within the current minute."""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Final

from iotmq import limits

_MINUTE_S: Final = 60.0
_DIGEST_BYTES: Final = 16


class FailedAttempts:
    """Counts by address; of IPv6 by network of 64 bits, because one host has that many addresses.

    A user who was right from an address before has a count of its own there: devices that share an address
    with one that guesses are let in, and who guesses at their passwords from there is counted all the same.
    """

    def __init__(self, per_minute_max: int) -> None:
        """0 counts nothing."""
        self._per_minute_max = per_minute_max
        # Network, or user at a network -> (when its minute began, failures in it); the one that failed first
        # comes first.
        self._failures: dict[str | bytes, tuple[float, int]] = {}
        # Users at networks who were right, as digests; the one that was right longest ago comes first.
        self._proven: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def is_exceeded(self, address: str | None, user: str | None, now_s: float) -> bool:
        """Return whether an address, or a user there, has failed too often within this minute."""
        if not self._per_minute_max or address is None:
            return False
        began_s, count = self._failures.get(self._counted(address, user), (now_s, 0))
        return count >= self._per_minute_max and now_s - began_s < _MINUTE_S

    def add(self, address: str | None, user: str | None, now_s: float) -> None:
        """A device of the address failed."""
        if not self._per_minute_max or address is None:
            return
        counted = self._counted(address, user)
        began_s, count = self._failures.get(counted, (now_s, 0))
        if now_s - began_s >= _MINUTE_S:
            del self._failures[counted]
            began_s, count = now_s, 0
        if counted not in self._failures and len(self._failures) >= limits.MQTT_FAILING_ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[counted] = (began_s, count + 1)

    def prove(self, address: str | None, user: str | None) -> None:
        """A device of the address was right."""
        if not self._per_minute_max or address is None or user is None:
            return
        proven = _at(_network(address), user)
        self._proven.pop(proven, None)
        if len(self._proven) >= limits.MQTT_PROVEN_USERS_MAX:
            del self._proven[next(iter(self._proven))]
        self._proven[proven] = None

    def _counted(self, address: str, user: str | None) -> str | bytes:
        network = _network(address)
        if user is not None and self._proven:
            own = _at(network, user)
            if own in self._proven:
                return own
        return network

    def check_invariants(self) -> None:
        assert len(self._failures) <= limits.MQTT_FAILING_ADDRESSES_MAX
        assert len(self._proven) <= limits.MQTT_PROVEN_USERS_MAX
        assert all(count > 0 for _, count in self._failures.values())


def _at(network: str, user: str) -> bytes:
    """A few bytes for a name of any length; no network has NUL."""
    return hashlib.blake2b(f"{network}\0{user}".encode(), digest_size=_DIGEST_BYTES).digest()


def _network(address: str) -> str:
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return found.packed[:8].hex()
