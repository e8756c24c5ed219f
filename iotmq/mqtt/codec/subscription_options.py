"""Subscription options: the byte behind each filter of a SUBSCRIBE (MQTT 5 section 3.8.3.1).

Before MQTT 5 it has the QoS alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

# Bits of the byte, for those who keep it as it is.
QOS: Final = 0x03
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08

# Values of retain handling; sending always is what there is before MQTT 5.
SEND_RETAINED: Final = 0
SEND_RETAINED_WHEN_NEW: Final = 1
SEND_NO_RETAINED: Final = 2


class SubscriptionOptions(NamedTuple):
    """Hold the options of a subscription to one filter."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = SEND_RETAINED

    def encode(self) -> int:
        return self.qos | self.no_local << 2 | self.retain_as_published << 3 | self.retain_handling << 4

    @classmethod
    def decode(cls, options: int) -> Self:
        """Decode a byte of `encode`; unknown bits are left out."""
        return cls(
            options & QOS, bool(options & NO_LOCAL), bool(options & RETAIN_AS_PUBLISHED), options >> 4 & 3
        )
