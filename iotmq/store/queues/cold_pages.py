"""Release pages that cold reads brought in before they push out the hot tail.

The kernel keeps whatever was read last, so one scan of an old queue would cost everybody else the pages
they work with. Hence a bound of our own: the windows that cold reads fetched stand in a list, and past
`bytes_max` the ones used longest ago are dropped. Windows that were mostly in memory before are somebody
else's and are left alone. A window whose predecessor is in the list belongs to a sequential scan: the
ones behind it are asked for ahead.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from iotmq.store.queues.residency import WINDOW_BYTES, ColdRead, Window

PAGE_BYTES: Final = 4096
# Asked for ahead of a sequential scan: a few times what one pull takes.
AHEAD_WINDOWS: Final = 16


class ColdPages:
    """The windows that cold reads brought in. `load` may run in several threads at a time."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        # Longest unused first.
        self._windows: OrderedDict[tuple[str, int], Window] = OrderedDict()
        self._held_bytes = 0
        self.loads = 0
        self.loaded_bytes = 0
        self.dropped_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Page cache taken by cold reads and not given back yet."""
        return self._held_bytes

    def load(self, plan: ColdRead, end_position: int) -> None:
        """Have in memory what `plan` needs, and drop what was needed longest ago; takes as long as the disk.

        Windows asked for ahead end before `end_position`. Raises OSError when the disk does not give the
        pages; touching them would end the process.
        """
        windows = plan.windows
        # The kernel's own read-ahead would bring in more, megabytes for one page, which nobody gives back.
        for segment in {window.segment for window in windows}:
            segment.page_singly(0)
        fetched = [window for window in windows if _is_mostly_absent(window)]
        ahead = self._ahead_of(windows, end_position)
        for window in (*windows, *ahead):
            window.advise()
        for window in windows:
            window.page_in()
        self._keep(windows, fetched + ahead)

    def forget(self, paths: Collection[str]) -> None:
        """Let go of the windows of files that are being deleted: while one is kept, so are their blocks."""
        with self._lock:
            for key in [key for key, window in self._windows.items() if window.segment.path in paths]:
                size_bytes = self._windows.pop(key).size_bytes
                self._held_bytes -= size_bytes
                self.dropped_bytes += size_bytes

    def _ahead_of(self, windows: Sequence[Window], end_position: int) -> list[Window]:
        """Return the range that a sequential scan reads next, where it is not in memory yet."""
        last = windows[-1]
        before = windows[0].neighbour(-1)
        with self._lock:
            is_scan = before is not None and before.key in self._windows
        if not is_scan:
            return []
        ahead: list[Window] = []
        for step in range(1, AHEAD_WINDOWS + 1):
            window = last.neighbour(step)
            if window is None or window.segment.start_position + window.end_bytes > end_position:
                break
            if _is_mostly_absent(window):
                ahead.append(window)
        return ahead

    def _keep(self, used: Sequence[Window], fetched: Sequence[Window]) -> None:
        dropped: list[Window] = []
        with self._lock:
            for window in fetched:
                if window.key not in self._windows:
                    self._windows[window.key] = window
                    self._held_bytes += window.size_bytes
                    self.loaded_bytes += window.size_bytes
            for window in used:
                if window.key in self._windows:
                    self._windows.move_to_end(window.key)
            self.loads += 1
            # What was just fetched stays, however small the bound is.
            while self._held_bytes > self._bytes_max and len(self._windows) > len(fetched) + len(used):
                _, window = self._windows.popitem(last=False)
                self._held_bytes -= window.size_bytes
                self.dropped_bytes += window.size_bytes
                dropped.append(window)
        for window in dropped:
            window.drop()


def _is_mostly_absent(window: Window) -> bool:
    return window.absent_pages() * PAGE_BYTES * 2 > min(window.size_bytes, WINDOW_BYTES)
