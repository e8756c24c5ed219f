"""The version stamp of a table that registries and slaves compare."""

from __future__ import annotations

import msgspec


class DataVersion(msgspec.Struct, frozen=True):
    """Counts changes of a table; equal stamps mean equal tables."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The stamp after one more change."""
        return DataVersion(counter=self.counter + 1, timestamp=now_ms)
