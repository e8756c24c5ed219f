"""Notice changed files: look at them off the event loop, and report each change once."""

from __future__ import annotations

import asyncio
from pathlib import Path


class WatchedFiles:
    """Watch files for changes since the last look; make it before reading them, or a change may be missed."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        # None when the next look is to report a change.
        self._seen: list[tuple[int, int, int] | None] | None = self._identities()

    async def have_changed(self) -> bool:
        """Return whether a file is another one since the last look, or is there or gone since then."""
        seen = await asyncio.to_thread(self._identities)
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def forget(self) -> None:
        """Have the next look report a change: the files could not be read, which may pass by itself."""
        self._seen = None

    def remember(self) -> None:
        """Remember the present files: this process has written them."""
        self._seen = self._identities()

    def _identities(self) -> list[tuple[int, int, int] | None]:
        return [_identity(path) for path in self._paths]


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return the stat fields that change when a file is written anew; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
