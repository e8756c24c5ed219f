"""Files that are read again when they change: looking at them off the event loop, and once per change."""

from __future__ import annotations

import asyncio
from pathlib import Path


class WatchedFiles:
    """Some files as they were when last looked at; make it before reading them, or a change may be missed."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._identities()

    async def have_changed(self) -> bool:
        """Whether a file is another one since the last look, or is there or gone since then."""
        seen = await asyncio.to_thread(self._identities)
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def remember(self) -> None:
        """What is there now was written by this process."""
        self._seen = self._identities()

    def _identities(self) -> list[tuple[int, int, int] | None]:
        return [_identity(path) for path in self._paths]


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written anew; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
