"""How often devices of an address failed to prove who they are within the current minute."""

from __future__ import annotations

import ipaddress
from typing import Final

from iotmq import limits

_MINUTE_S: Final = 60.0


class FailedAttempts:
    """Counts by address; of IPv6 by network of 64 bits, because one host has that many addresses."""

    def __init__(self, per_minute_max: int) -> None:
        """0 counts nothing."""
        self._per_minute_max = per_minute_max
        # Network -> (when its minute began, failures in it); the one that failed first comes first.
        self._failures: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def is_exceeded(self, address: str | None, now_s: float) -> bool:
        """Whether the address has failed too often in this minute."""
        if not self._per_minute_max or address is None:
            return False
        began_s, count = self._failures.get(_network(address), (now_s, 0))
        return count >= self._per_minute_max and now_s - began_s < _MINUTE_S

    def add(self, address: str | None, now_s: float) -> None:
        """A device of the address failed."""
        if not self._per_minute_max or address is None:
            return
        network = _network(address)
        began_s, count = self._failures.get(network, (now_s, 0))
        if now_s - began_s >= _MINUTE_S:
            del self._failures[network]
            began_s, count = now_s, 0
        if network not in self._failures and len(self._failures) >= limits.MQTT_FAILING_ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[network] = (began_s, count + 1)


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
