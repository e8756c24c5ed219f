"""Count the failed logins of an address within the current minute."""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from iotmq import limits
from iotmq.credentials.addresses import network_of
from iotmq.credentials.window_counts import WindowCounts

logger = logging.getLogger("iotmq.credentials")

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
        self.exceeded_total = 0
        """How often an address, or a user there, had failed so often that it is refused."""
        # Of networks, and of users at networks.
        self._failures: WindowCounts[str | bytes] = WindowCounts(
            window_s=_MINUTE_S, names_max=limits.MQTT_FAILING_ADDRESSES_MAX
        )
        # Users at networks who were right, as digests; the one that was right longest ago comes first.
        self._proven: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def is_exceeded(self, address: str | None, user: str | None, now_s: float) -> bool:
        """Return whether an address, or a user there, has failed too often within this minute."""
        if not self._per_minute_max or address is None:
            return False
        return self._failures.count_of(self._counted(address, user), now_s) >= self._per_minute_max

    def add(self, address: str | None, user: str | None, now_s: float) -> None:
        """A device of the address failed. The log has the address with the last failure that it may have."""
        if not self._per_minute_max or address is None:
            return
        if self._failures.add(self._counted(address, user), now_s) == self._per_minute_max:
            self.exceeded_total += 1
            logger.warning(
                "an address has failed too often, and is refused for a while",
                extra={"address": address, "failures": self._per_minute_max, "within_s": _MINUTE_S},
            )

    def prove(self, address: str | None, user: str | None) -> None:
        """A device of the address was right."""
        if not self._per_minute_max or address is None or user is None:
            return
        proven = _at(network_of(address), user)
        self._proven.pop(proven, None)
        if len(self._proven) >= limits.MQTT_PROVEN_USERS_MAX:
            del self._proven[next(iter(self._proven))]
        self._proven[proven] = None

    def is_proven(self, address: str, user: str) -> bool:
        """Return whether a user was right from an address before."""
        return _at(network_of(address), user) in self._proven

    def _counted(self, address: str, user: str | None) -> str | bytes:
        network = network_of(address)
        if user is not None and self._proven:
            own = _at(network, user)
            if own in self._proven:
                return own
        return network

    def check_invariants(self) -> None:
        self._failures.check_invariants()
        assert len(self._proven) <= limits.MQTT_PROVEN_USERS_MAX


def _at(network: str, user: str) -> bytes:
    """A few bytes for a name of any length; no network has NUL."""
    return hashlib.blake2b(f"{network}\0{user}".encode(), digest_size=_DIGEST_BYTES).digest()
