"""Take a copy of another member's data, and put it in the place of what this one had.

The copy grows in `copy/` of the data directory. Once it is whole and on the disk, the file `copy/swap` says
what is to be done, in two steps that can each be repeated after a crash:

    out    what is there goes to the directory the file names: aside, or into `copy/old` to be deleted
    in     what was copied goes to its place

Without that file a copy was not whole: it is deleted, and everything is as it was. So a crash leaves the old
state, or `finish_copy` at the next start completes the new one. Accounts, damaged bytes that were kept, and
whatever else is in the directory stay where they are.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

from iotmq.errors import StoreCorruptError, StoreError, StoreFullError
from iotmq.files import replace_file, sync_path
from iotmq.limits import COPY_FILES_MAX, COPY_PIECE_BYTES_MAX, REPLICATION_EPOCHS_MAX
from iotmq.replicated.hot_copy import FORMAT, CopyList
from iotmq.replicated.member_file import FILE_NAME, write_file_of_copy
from iotmq.store import fail_points
from iotmq.store.files.lock import DirectoryLock
from iotmq.store.queues.queue_begins import BEGINS_NAME
from iotmq.store.recovery.opening import CHECKPOINT_NAME, locked

COPY_DIRECTORY: Final = "copy"
# Below it what a member had before, in a directory by its incarnation then.
REPLACED_DIRECTORY: Final = "replaced"

_SWAP_NAME: Final = "swap"
_OLD_NAME: Final = "old"
# What a copy takes the place of. The member's file is the last: it says what the log is.
_PARTS: Final = (
    "abort", CHECKPOINT_NAME, "commitlog", "consumequeue", BEGINS_NAME, "index", "index.applied", "kv",
    FILE_NAME,
)  # fmt: skip
_NAMES: Final = re.compile(
    rf"commitlog/\d{{20}}|kv/[A-Za-z0-9][A-Za-z0-9._-]*|config/[A-Za-z0-9]+\.json|{re.escape(BEGINS_NAME)}"
)
# The disk is not filled to the last byte: stores need room to be opened.
_SPARE_BYTES: Final = 64 << 20
_SYNC_BYTES: Final = 32 << 20
_SYNCS_MAX: Final = 4

logger = logging.getLogger("iotmq.replication")


class _Swap(msgspec.Struct, frozen=True):
    """The content of `copy/swap`."""

    step: Literal["out", "in"]
    aside: str
    """Where what was there goes, in the data directory."""


class IncomingCopy:
    """A copy that is being taken. Everything waits for the disk: for a thread, one call at a time."""

    def __init__(self, directory: Path, content: CopyList) -> None:
        """Begin it in a data directory that is locked.

        StoreCorruptError for a list that cannot be one, StoreFullError when there is no room for it; OSError.
        """
        _check(content)
        self.content = content
        self.total_bytes = sum(file.size for file in content.files)
        self.copied_bytes = 0
        self._directory = directory
        self._copy = directory / COPY_DIRECTORY
        if self._copy.exists():
            shutil.rmtree(self._copy)
        self._check_room()
        for name in ("", "commitlog", "kv", "config"):
            (self._copy / name).mkdir()
        # The file that is being written.
        self._number = -1
        self._descriptor = -1
        self._written_bytes = 0
        # Brings what is written to the disk while more is written; so many pieces of it may be on their way.
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="iotmq-copy-sync")
        self._syncs: deque[Future[None]] = deque()
        fail_points.reach("copy-begun")

    def pieces(self, bytes_max: int = COPY_PIECE_BYTES_MAX) -> Iterator[tuple[int, int, int]]:
        """Give number of the file, place in it and size of all pieces, in the order `write` takes them."""
        for number, file in enumerate(self.content.files):
            for at in range(0, file.size, bytes_max):
                yield number, at, min(bytes_max, file.size - at)

    def check(self, number: int, at: int, data: bytes | memoryview, checksum: int) -> None:
        """Check a piece; in any thread. StoreCorruptError when its CRC-32 is another one."""
        if zlib.crc32(data) != checksum:
            raise StoreCorruptError(
                f"{self.content.files[number].name} did not arrive as it was sent, at {at}"
            )

    def write(self, number: int, at: int, pieces: Sequence[bytes | memoryview]) -> None:
        """Take the next pieces of a file, which follow each other; OSError."""
        while self._number < number:
            self._next_file()
        assert (self._number, self._written_bytes) == (number, at)
        _write_all(self._descriptor, pieces, at)
        size = sum(map(len, pieces))
        self._written_bytes += size
        if at // _SYNC_BYTES != self._written_bytes // _SYNC_BYTES:
            self._sync(partial(os.fdatasync, self._descriptor))
        was_below = self.copied_bytes * 2 < self.total_bytes
        self.copied_bytes += size
        if was_below and self.copied_bytes * 2 >= self.total_bytes:
            fail_points.reach("copy-half")

    def install(self) -> Path | None:
        """Put it in the place of what is there, after the last piece. Return where that is now if it is kept.

        It is when something in it may have been confirmed. Raises StoreError, OSError; after a crash see
        `finish_copy`.
        """
        while self._number < len(self.content.files):
            self._next_file()
        self._wait_for_syncs(0)
        assert self.copied_bytes == self.total_bytes
        identity, is_kept = write_file_of_copy(
            self._directory / FILE_NAME,
            self._copy / FILE_NAME,
            confirmed=self.content.confirmed,
            epochs=self.content.epochs,
        )
        for name in ("commitlog", "kv", "config", ""):
            sync_path(self._copy / name)
        fail_points.reach("copy-whole")
        aside = f"{REPLACED_DIRECTORY}/{identity.incarnation}" if is_kept else f"{COPY_DIRECTORY}/{_OLD_NAME}"
        _write_swap(self._copy, _Swap("out", aside))
        return _complete(self._directory)

    def close(self) -> None:
        """Let go of it; what there is of it is deleted when it was not installed. Raises OSError."""
        try:
            self._end_file()
            self._wait_for_syncs(0)
        finally:
            self._syncer.shutdown()
        if self._copy.exists() and not (self._copy / _SWAP_NAME).exists():
            shutil.rmtree(self._copy)

    def _next_file(self) -> None:
        """Finish the file that is being written, on the disk, and begin the next one."""
        self._end_file()
        self._number += 1
        if self._number == len(self.content.files):
            return
        file = self.content.files[self._number]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self._copy / file.name, flags, 0o644)
        self._written_bytes = 0
        if file.size:
            # Blocks at once: finding them piece by piece costs more than writing them.
            os.posix_fallocate(self._descriptor, 0, file.size)
        os.ftruncate(self._descriptor, file.length)

    def _end_file(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._sync(partial(_sync_and_close, descriptor))

    def _sync(self, call: Callable[[], None]) -> None:
        self._syncs.append(self._syncer.submit(call))
        self._wait_for_syncs(_SYNCS_MAX)

    def _wait_for_syncs(self, left: int) -> None:
        while len(self._syncs) > left:
            self._syncs.popleft().result()

    def _check_room(self) -> None:
        stat = os.statvfs(self._directory)
        free_bytes = stat.f_bavail * stat.f_frsize
        if self.total_bytes + _SPARE_BYTES > free_bytes:
            raise StoreFullError(
                f"a copy of the master's data has {self.total_bytes:,} bytes, and the disk of "
                f"{self._directory} has room for {free_bytes:,}: give it room; {REPLACED_DIRECTORY}/ there "
                "has what copies have replaced before"
            )


def finish_copy(directory: Path) -> Path | None:
    """Complete the copy that was being put in place when a run ended; delete one that was not whole.

    At a start, before anything else of the directory is looked at. Return where what was there before is now,
    if it is kept. Raises StoreLockedError, StoreError.
    """
    copy = directory / COPY_DIRECTORY
    if not copy.exists():
        return None
    with locked(directory) as lock:
        kept = _finish(directory)
        lock.release()
    return kept


def lock_directory(directory: Path) -> DirectoryLock:
    """Have a data directory for a copy alone, until `release`. Raises StoreLockedError, StoreError."""
    with locked(directory) as lock:
        return lock


def kept_directories(directory: Path) -> list[Path]:
    """Return the directories that have what copies have replaced, as long as nobody deletes them."""
    try:
        return sorted((directory / REPLACED_DIRECTORY).iterdir())
    except FileNotFoundError:
        return []


def _finish(directory: Path) -> Path | None:
    copy = directory / COPY_DIRECTORY
    if (copy / _SWAP_NAME).exists():
        return _complete(directory)
    logger.warning("a copy that was not whole is deleted: %s", copy)
    shutil.rmtree(copy)
    return None


def _complete(directory: Path) -> Path | None:
    """Do what is left of the two steps."""
    copy = directory / COPY_DIRECTORY
    try:
        swap = msgspec.json.decode((copy / _SWAP_NAME).read_bytes(), type=_Swap)
    except msgspec.DecodeError as error:
        raise StoreCorruptError(f"{copy / _SWAP_NAME} is damaged: {error}") from None
    aside = directory / swap.aside
    if swap.step == "out":
        fail_points.reach("copy-moving-out")
        aside.mkdir(parents=True, exist_ok=True)
        _move(directory, aside, _present(directory), "copy-moving-out")
        sync_path(aside.parent)
        sync_path(directory)
        fail_points.reach("copy-moved-out")
        _write_swap(copy, _Swap("in", swap.aside))
    fail_points.reach("copy-moving-in")
    _move(copy, directory, _present(copy), "copy-moving-in")
    fail_points.reach("copy-moved-in")
    # Last of all: without it what is left of the directory counts as a copy that was not whole.
    (copy / _SWAP_NAME).unlink()
    is_kept = swap.aside.startswith(f"{REPLACED_DIRECTORY}/")
    shutil.rmtree(copy)
    return aside if is_kept else None


def _present(directory: Path) -> list[str]:
    """Return the parts there are."""
    tables = sorted(f"config/{path.name}" for path in (directory / "config").glob("*.json"))
    return [*tables, *(name for name in _PARTS if (directory / name).exists())]


def _move(source: Path, target: Path, names: Iterable[str], place: str) -> None:
    """Move parts, and wait for the disk."""
    (target / "config").mkdir(exist_ok=True)
    for name in names:
        os.rename(source / name, target / name)
        fail_points.reach(place)
    for directory in (target / "config", target, source / "config", source):
        if directory.exists():
            sync_path(directory)


def _write_swap(copy: Path, swap: _Swap) -> None:
    replace_file(copy / _SWAP_NAME, msgspec.json.encode(swap))


def _check(content: CopyList) -> None:
    """Raise StoreError for a list that no master sends: names must not lead out of the directory."""
    if content.format != FORMAT:
        raise StoreError(
            f"the copy has format {content.format}, not {FORMAT}: start the same version on all members"
        )
    names = [file.name for file in content.files]
    positions = [start.position for start in content.epochs]
    problem = None
    if len(names) > COPY_FILES_MAX or len(content.epochs) > REPLICATION_EPOCHS_MAX:
        problem = f"it has {len(names)} files and {len(content.epochs)} epochs"
    elif bad := [name for name in names if _NAMES.fullmatch(name) is None]:
        problem = f"no file can be called {bad[0][:100]!r}"
    elif len(set(names)) != len(names):
        problem = "a name is there twice"
    elif not all(0 <= file.size <= file.length < 2**62 for file in content.files):
        problem = "a file is longer than its length"
    elif not 0 <= content.oldest <= content.confirmed < 2**62:
        problem = f"its log has the positions {content.oldest}..{content.confirmed}"
    elif positions != sorted(set(positions)) or (
        positions and not 0 <= positions[0] <= positions[-1] < content.confirmed
    ):
        problem = "its epochs begin where they cannot"
    elif not _is_whole(content):
        problem = "its log has a hole"
    if problem is not None:
        raise StoreCorruptError(f"what the master sends is no copy: {problem}")


def _is_whole(content: CopyList) -> bool:
    """Return whether the log's files follow on each other, from the oldest position to the confirmed one."""
    position, end = content.oldest, content.oldest
    for file in content.files:
        if file.name.startswith("commitlog/"):
            start = int(file.name.removeprefix("commitlog/"))
            if start != position:
                return False
            position, end = start + file.length, start + file.size
    return end <= content.confirmed <= position


def _sync_and_close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, pieces: Sequence[bytes | memoryview], at: int) -> None:
    left = [memoryview(piece) for piece in pieces]
    while left:
        count = os.pwritev(descriptor, left, at)
        at += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]
