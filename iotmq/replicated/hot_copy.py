"""Make a copy of a data directory while it is in use, for a member whose log has nothing in common with it.

What is immutable is read where it is: the log's files from the oldest position up to the confirmed one at the
time of the copy. The rest is put into a directory of its own: the key-value database by hard links, tables of
`config/` by hard links (they are replaced whole), and the first offsets of the queues. Queues and key index
are not part of it; whoever opens the copy fills them from the log. Nor are accounts: a member has its own.

Files have numbers, and are read by them: no name comes from outside.
"""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from iotmq.errors import StoreError
from iotmq.limits import COPY_FILES_MAX, COPY_PIECE_BYTES_MAX
from iotmq.replication.epochs import EpochStart
from iotmq.store.queues.queue_begins import BEGINS_NAME, encode_begins

if TYPE_CHECKING:
    from iotmq.replicated.member_store import MemberStore

# Beside the log of a master: what its copies have of their own. Nothing in it outlasts the process.
COPIES_DIRECTORY: Final = "copies"
FORMAT: Final = 1


class CopiedFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a copy."""

    name: str
    """The path in the data directory, with slashes."""
    size: int
    """Bytes to be copied, from the start of the file."""
    length: int
    """The length of the file; what is behind `size` is zero."""


class CopyList(msgspec.Struct, frozen=True, kw_only=True):
    """List what a copy has: the answer to the request that begins one."""

    format: int = FORMAT
    oldest: int
    """Position of the first byte of the log."""
    confirmed: int
    """The log ends here, where everything is confirmed."""
    epochs: tuple[EpochStart, ...]
    files: tuple[CopiedFile, ...]


class _Source(NamedTuple):
    path: str
    file: CopiedFile
    # From here on the log is in memory, and stays there.
    hot_bytes: int


class HotCopy:
    """One copy. `prepare`, `read` and `close` take as long as the disk: for threads."""

    def __init__(self, opened: MemberStore, directory: Path) -> None:
        """Begin it, on the store's thread; `directory`, for what it has of its own, must not be there yet.

        Keep the log from `held_position` on until it is closed. Raises StoreError.
        """
        self._opened = opened
        self._directory = directory
        self.held_position = opened.store.min_position
        self._key_values = opened.store.key_values()
        self._sources: list[_Source] = []
        self.total_bytes = 0

    def prepare(self) -> None:
        """Bring the database into it. Raises StoreError, OSError."""
        self._directory.mkdir(parents=True)
        self._key_values.write_copy(self._directory / "kv")

    def list_files(self) -> CopyList:
        """Settle what it has, after `prepare`, on the store's thread. Raises StoreError, OSError."""
        # Later than the database, which has nothing that was not confirmed then.
        store, confirmed = self._opened.store, self._opened.store.confirmed_position
        hot_position = confirmed - store.settings.hot_bytes
        sources = []
        for segment in store.log.segments_between(self.held_position, confirmed):
            start = segment.start_position
            size = min(confirmed, start + segment.allocated_bytes) - start
            file = CopiedFile(f"commitlog/{Path(segment.path).name}", size, segment.size_bytes)
            sources.append(_Source(segment.path, file, hot_position - start))
        (self._directory / BEGINS_NAME).write_bytes(encode_begins(store.queue_begins()))
        own = [self._directory / BEGINS_NAME, *sorted((self._directory / "kv").iterdir())]
        own += self._link_tables()
        for path in own:
            size = path.stat().st_size
            file = CopiedFile(path.relative_to(self._directory).as_posix(), size, size)
            sources.append(_Source(str(path), file, size))
        if len(sources) > COPY_FILES_MAX:
            raise StoreError(f"{len(sources)} files are more than a copy may have, {COPY_FILES_MAX}")
        self._sources = sources
        self.total_bytes = sum(source.file.size for source in sources)
        return CopyList(
            oldest=self.held_position,
            confirmed=confirmed,
            epochs=tuple(start for start in self._opened.log.epochs if start.position < confirmed),
            files=tuple(source.file for source in sources),
        )

    def read(self, number: int, at: int, size: int) -> tuple[bytes, int]:
        """Return a piece of a file, and its CRC-32. ValueError when it has no such piece; OSError."""
        if not 0 <= number < len(self._sources) or not 0 < size <= COPY_PIECE_BYTES_MAX:
            raise ValueError(f"a copy of {len(self._sources)} files has no {size} bytes of file {number}")
        source = self._sources[number]
        if not 0 <= at <= source.file.size - size:
            raise ValueError(f"{source.file.name} has {source.file.size} bytes, none at {at}..{at + size}")
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            data = os.pread(descriptor, size, at)
            if at + size <= source.hot_bytes:
                # Or what nobody else reads pushes out what consumers do; pages that are mapped stay.
                os.posix_fadvise(descriptor, at, size, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        if len(data) != size:
            raise OSError(f"{source.path} ends at {at + len(data)}")
        return data, zlib.crc32(data)

    def close(self) -> None:
        """Delete what it has of its own; raises OSError."""
        if self._directory.exists():
            shutil.rmtree(self._directory)

    def _link_tables(self) -> list[Path]:
        tables = self._opened.store.directory / "config"
        target = self._directory / "config"
        target.mkdir()
        links = []
        for path in sorted(tables.glob("*.json")):
            link = target / path.name
            link.hardlink_to(path)
            links.append(link)
        return links


def remove_copies(directory: Path) -> None:
    """Delete what copies of a former run have left in a data directory; raises OSError."""
    copies = directory / COPIES_DIRECTORY
    if copies.exists():
        shutil.rmtree(copies)
