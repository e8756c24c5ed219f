"""Call back when the log is on the disk up to a position."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class FlushedWaiters:
    """Callbacks by the position they wait for. Belongs to the store's owner thread."""

    def __init__(self) -> None:
        # (position, number, callback): of equal positions the first comes first.
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, position: int, callback: Callable[[], None]) -> None:
        """Call back once `take` is told of `position` or a later one."""
        self._number += 1
        heapq.heappush(self._waiting, (position, self._number, callback))

    def take(self, flushed_position: int) -> list[Callable[[], None]]:
        """Remove and return the callbacks whose wait is over, earliest position first."""
        taken: list[Callable[[], None]] = []
        while self._waiting and self._waiting[0][0] <= flushed_position:
            taken.append(heapq.heappop(self._waiting)[2])
        return taken

    def take_all(self) -> list[Callable[[], None]]:
        """Remove and return every callback: nothing more will be flushed."""
        taken = [callback for _, _, callback in sorted(self._waiting, key=lambda entry: entry[:2])]
        self._waiting.clear()
        return taken
