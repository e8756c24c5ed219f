"""Notice changed files: look at them off the event loop, and report each change once.

Whoever replaces a file (files.replace_file) changes it at once and whole. One that is truncated and written
in place is half a file for a while, which may read as a good one with fewer users or rules. So a file counts
as changed once it has been left alone for a moment, and what was read while it changed is not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

_Content = TypeVar("_Content")

# A changed file has to be left alone for so long.
_SETTLE_S: Final = 0.05


class WatchedFiles:
    """Watch files for changes since the last look; make it before reading them, or a change may be missed."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        # None when the next look is to report a change.
        self._seen: list[tuple[int, int, int] | None] | None = self._looks()

    async def have_changed(self) -> bool:
        """Return whether a file is another one since the last look, or is there or gone since then.

        One that is being written is for the next look.
        """
        seen = await asyncio.to_thread(self._looks)
        if seen == self._seen:
            return False
        await asyncio.sleep(_SETTLE_S)
        if await asyncio.to_thread(self._looks) != seen:
            return False
        self._seen = seen
        return True

    async def read_changed(self, read: Callable[[], _Content]) -> _Content | None:
        """Return what `read` makes of changed files, in a thread. What it raises is raised.

        None when they are as they were, or when they change while they are read, which the next look reports.
        """
        if not await self.have_changed():
            return None
        error: Exception | None = None
        content: _Content | None = None
        try:
            content = await asyncio.to_thread(read)
        except Exception as caught:
            error = caught
        if await asyncio.to_thread(self._looks) != self._seen:
            # Half of one and half of the other: neither it nor what is wrong with it counts.
            self.forget()
            return None
        if error is not None:
            raise error
        return content

    def forget(self) -> None:
        """Have the next look report a change: the files could not be read, which may pass by itself."""
        self._seen = None

    def remember(self) -> None:
        """Remember the present files: this process has written them."""
        self._seen = self._looks()

    def _looks(self) -> list[tuple[int, int, int] | None]:
        return [_look(path) for path in self._paths]


def _look(path: Path) -> tuple[int, int, int] | None:
    """Return the stat fields that change when a file is written anew; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
