"""What may wait for a kept session."""

from __future__ import annotations

from typing import Literal

import msgspec

QueuePolicy = Literal["drop-oldest", "refuse-new"]
"""What a session past its number of messages or bytes does not get."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """0 is no limit."""

    messages_max: int = 0
    bytes_max: int = 0
    age_s_max: int = 0
    policy: QueuePolicy = "drop-oldest"

    @property
    def has_any(self) -> bool:
        return bool(self.messages_max or self.bytes_max or self.age_s_max)
