"""Read and write the broker's JSON files under `config/`.

Rules (wire document 5.5): before a file is replaced its content becomes `NAME.bak`; a reader takes
the main file and, when that is missing, empty or broken, the `.bak`. Files written by Java brokers
may hold integer keys without quotes; ours are always valid JSON.

A main file that cannot be read is moved to `NAME.damaged` as soon as its `.bak` has been: otherwise the next
write would make it the `.bak`, and the only good copy would be gone.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from iotmq.errors import RefusedError, RequestError, StoreCorruptError
from iotmq.files import make_directory, replace_file, sync_path
from iotmq.remoting import lenient_json

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ConfigFile:
    """One file and its `.bak`. `write` may be called in any thread, by one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        # Whether the content of the main file is known to be on the disk. Only then may it become the
        # `.bak`: a power cut must not find two contents that were never written.
        self._is_durable = False

    def read(self, shape: type[T]) -> T | None:
        """The content, or that of the `.bak`; None when neither exists, or an empty file is all there is.

        Raises StoreCorruptError when files exist and none can be read: starting with an empty table
        would forget topics or repeat everything consumed.
        """
        problems: list[str] = []
        for path in (self.path, self._backup):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(f"{path} cannot be read: {error.strerror}")
                continue
            try:
                content = _decoded(data, shape)
            except RequestError as error:
                problems.append(f"{path}: {error}")
                continue
            if problems:
                logger.warning("%s; using %s", problems[0], path)
                self._set_aside()
            return content
        if not problems:
            return None
        if self._is_new():
            logger.warning("%s is empty and has no .bak: it counts as new", self.path)
            return None
        raise StoreCorruptError(
            f"{'; '.join(problems)}. "
            f"Put back a copy of {self.path}, or delete it and its .bak to start without what they held"
        )

    def write(self, data: bytes, *, is_synced: bool) -> None:
        """Replace the content by `data`, and keep the former one as `.bak`; raises OSError.

        At no instant are both gone. Without `is_synced` the new content survives the death of the process,
        and a power cut takes at most it: the `.bak` is always one that was on the disk before. With it the
        content is there before its name is, and both are by the return.
        """
        make_directory(self.path.parent)
        replace_file(self.path, data, is_synced=is_synced, written=partial(self._keep_former, is_synced))
        self._is_durable = is_synced

    def _keep_former(self, is_synced: bool) -> None:
        try:
            if is_synced and not self._is_durable:
                sync_path(self.path)
                self._is_durable = True
            if self._is_durable:
                os.replace(self.path, self._backup)
        except FileNotFoundError:
            pass

    def _set_aside(self) -> None:
        """Move a main file that cannot be read away, before the next write makes it the `.bak`."""
        try:
            os.replace(self.path, self.path.with_name(self.path.name + ".damaged"))
        except OSError as error:
            logger.warning("%s stays where it is: %s", self.path, error)

    def _is_new(self) -> bool:
        """Return whether a power cut may leave this of the very first write, made without a sync."""
        return self.path.is_file() and _is_blank(self.path.read_bytes()) and not self._backup.exists()


def _decoded(data: bytes, shape: type[T]) -> T:
    """Of any size: a Java broker wrote it, and it is read once."""
    if _is_blank(data):
        raise RefusedError("it is empty")
    return lenient_json.decode(data, shape, lenient_bytes_max=len(data))


def _is_blank(data: bytes) -> bool:
    """No bytes, or zeros where some should be: what unwritten content looks like after a power cut."""
    return not data.strip(b"\0 \t\r\n")


class DirtyTable(ABC):
    """`is_dirty` says that the file is behind the table."""

    def __init__(self, path: Path) -> None:
        self._file = ConfigFile(path)
        self.is_dirty = False

    @abstractmethod
    def encode(self) -> bytes:
        """Return the table as the file holds it."""

    def take_unsaved(self) -> bytes | None:
        """Return the bytes for `write`, None when the file is up to date, and clear `is_dirty`."""
        if not self.is_dirty:
            return None
        self.is_dirty = False
        return self.encode()

    def write(self, data: bytes) -> None:
        """Write the file and wait for the disk; touches nothing else, so that a thread may do it."""
        self._file.write(data, is_synced=True)


class DataVersion(msgspec.Struct, frozen=True):
    """Counts changes of a table; equal stamps mean equal tables."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the stamp after one more change."""
        return DataVersion(counter=self.counter + 1, timestamp=now_ms)
