"""A table of a broker that is written to its file as a whole, now and then, off the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from iotmq.broker.tables.config_files import ConfigFile


class DirtyTable(ABC):
    """`is_dirty` says that the file is behind the table."""

    def __init__(self, path: Path) -> None:
        self._file = ConfigFile(path)
        self.is_dirty = False

    @abstractmethod
    def encode(self) -> bytes:
        """The table as the file holds it."""

    def take_unsaved(self) -> bytes | None:
        """What to pass to `write`, None when the file is up to date; `is_dirty` is taken back by this."""
        if not self.is_dirty:
            return None
        self.is_dirty = False
        return self.encode()

    def write(self, data: bytes) -> None:
        """Write the file and wait for the disk; touches nothing else, so that a thread may do it."""
        self._file.write(data, is_synced=True)
