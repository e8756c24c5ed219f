"""Event ids: for each broker the position in its log up to which a reader has everything.

BROKER=POSITION,BROKER=POSITION     names percent-encoded, by name
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

EVENT_ID_CHARACTERS_MAX: Final = 4096
_PART: Final = re.compile(r"([^=,]+)=([0-9]{1,19})", re.ASCII)


def encode_positions(positions: Mapping[str, int]) -> str:
    """Make an event id."""
    return ",".join(f"{quote(name, safe='')}={position}" for name, position in sorted(positions.items()))


def decode_positions(event_id: str) -> dict[str, int]:
    """Read an event id; ValueError for one that was not made here."""
    positions: dict[str, int] = {}
    for part in event_id.split(","):
        found = _PART.fullmatch(part)
        if found is None or int(found[2]) >= 1 << 63:
            raise ValueError("no id of an event of this API")
        positions[unquote(found[1], errors="strict")] = int(found[2])
    return positions
