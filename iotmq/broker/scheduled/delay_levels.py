"""Delay levels: how long each of them waits, and how a message is stored to wait (wire document 10.1)."""

from __future__ import annotations

import re

from iotmq.broker.tables.topics import SCHEDULE_TOPIC
from iotmq.clock import Clock, SystemClock
from iotmq.errors import ConfigError
from iotmq.message.records.record import property_value
from iotmq.store.log.timer_record import USUAL_DELAYS_MS

_DELAY = b"DELAY"
_REAL_TOPIC = b"REAL_TOPIC"
_REAL_QUEUE_ID = b"REAL_QID"
_DUE_MS = b"TIMER_OUT_MS"

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayLevels:
    """How long each level waits, and how a message is rewritten to wait. Levels count from 1."""

    def __init__(self, text: str, clock: Clock | None = None) -> None:
        """`text` is like `1s 5s 10m 2h`. Raises ConfigError naming the part that is not a duration."""
        self._clock = clock or SystemClock()
        self.delays_ms: list[int] = []
        for part in text.split():
            match = re.fullmatch(r"(\d{1,6})([smhd])", part)
            if match is None:
                raise ConfigError(
                    f"broker.delay_levels: {part!r} is not a duration such as 10s, 5m, 2h or 1d"
                )
            self.delays_ms.append(int(match[1]) * _UNITS_MS[match[2]])

    def __len__(self) -> int:
        return len(self.delays_ms)

    def level_of(self, properties: bytes) -> int:
        """Return the level a message asks for, clamped to the highest; 0 for none or nonsense."""
        value = property_value(properties, _DELAY)
        if value is None or not value.isdigit():
            return 0
        return self.clamp(int(value[:9]))

    def clamp(self, level: int) -> int:
        return max(0, min(level, len(self.delays_ms)))

    def divert(self, topic: str, queue_id: int, properties: bytes, level: int) -> tuple[str, int, bytes]:
        """Topic, queue and properties that make a message wait for `level` (1 or more) and then go on.

        As in records of the original, no separator stands behind the last property.
        """
        waiting = without_properties(properties, _DELAY, _REAL_TOPIC, _REAL_QUEUE_ID, _DUE_MS)
        delay_ms = self.delays_ms[level - 1]
        if level > len(USUAL_DELAYS_MS) or delay_ms != USUAL_DELAYS_MS[level - 1]:
            # Otherwise the log alone could not say when it is due.
            waiting += b"TIMER_OUT_MS\x01%d\x02" % (self._clock.now_ms() + delay_ms)
        waiting += b"DELAY\x01%d\x02REAL_TOPIC\x01%s\x02REAL_QID\x01%d" % (
            level,
            topic.encode(),
            queue_id,
        )
        return SCHEDULE_TOPIC, level - 1, waiting


def without_properties(properties: bytes, *names: bytes) -> bytes:
    """Return the properties but for those named; every pair ends with its separator."""
    prefixes = tuple(name + b"\x01" for name in names)
    kept = [pair for pair in properties.split(b"\x02") if pair and not pair.startswith(prefixes)]
    return b"".join(pair + b"\x02" for pair in kept)
