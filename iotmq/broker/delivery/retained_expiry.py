"""Expire retained messages that were published with a message expiry interval (property MSG_TTL_MS).

Nothing tells the projection that their time is over: they leave when somebody looks them up, and when the
sweep comes to them, which goes through all retained messages, some at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from iotmq.message.properties import TIME_TO_LIVE_MS
from iotmq.message.records.record import decode_record, property_value

# What one step of the sweep looks at: a millisecond of the loop.
SWEEP_RECORDS_MAX: Final = 256
SWEEP_BYTES_MAX: Final = 1024 * 1024
# A sweep that has been through all of them begins anew after so long.
SWEEP_PAUSE_S: Final = 60.0

_NAME: Final = TIME_TO_LIVE_MS.encode()
_MARK: Final = _NAME + b"\x01"
_DIGITS_MAX: Final = 18


def is_expired(record: bytes, now_ms: int) -> bool:
    """Return whether the time of a record is over; it counts from when the record was stored."""
    if _MARK not in record:
        return False
    decoded = decode_record(record)
    value = property_value(decoded.properties, _NAME)
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return False
    return decoded.store_timestamp_ms + int(value) <= now_ms


class Sweep:
    """Where the sweep is. `now_s` is of a monotonic clock."""

    def __init__(self) -> None:
        self.after: bytes | None = None
        """The topic that was looked at last; None at the beginning."""
        self._begins_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Return whether there is something to look at now."""
        return self.after is not None or now_s >= self._begins_s

    def step(self, found: Iterable[tuple[bytes, bytes]], now_s: float) -> Iterable[tuple[bytes, bytes]]:
        """Return the topics and records behind `after` that this step looks at."""
        size = 0
        for number, (topic, record) in enumerate(found, 1):
            yield topic, record
            size += len(record)
            if number == SWEEP_RECORDS_MAX or size >= SWEEP_BYTES_MAX:
                self.after = topic
                return
        self.after = None
        self._begins_s = now_s + SWEEP_PAUSE_S
