"""The ids that name records by this broker's address and their position (wire document 6.3)."""

from __future__ import annotations

import sys
from array import array
from typing import Final

from iotmq.limits import HEADER_BYTES_MAX

# An answer without its ids, with room to spare.
_ANSWER_BYTES_MAX: Final = 65_536


class OffsetMessageIds:
    """Writes ids for one store host: 8 bytes of address and port, or 20."""

    def __init__(self, store_host: bytes) -> None:
        self._store_host = store_host
        self._prefix = store_host.hex().upper()

    @property
    def store_host(self) -> bytes:
        return self._store_host

    @property
    def joined_max(self) -> int:
        """Return how many ids surely fit the header of an answer."""
        return (HEADER_BYTES_MAX - _ANSWER_BYTES_MAX) // (2 * len(self._store_host) + 17)

    def one(self, position: int) -> str:
        return f"{self._prefix}{position:016X}"

    def joined(self, positions: list[int]) -> str:
        """Return the ids of a batch with commas between, without a step of Python per record."""
        if len(self._store_host) != 8:
            return ",".join(map(self.one, positions))
        ids = array("Q", self._store_host * (2 * len(positions)))
        numbers = array("Q", positions)
        if sys.byteorder == "little":
            numbers.byteswap()
        ids[1::2] = numbers
        return ids.tobytes().hex(",", 16).upper()
