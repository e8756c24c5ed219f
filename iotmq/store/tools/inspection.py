"""Reading the files of a data directory that nobody has open, and changing none of them.

For tools: what is found is told as it is, damage included, where a start would repair it. Slow and plain,
so that it is a second opinion: nothing here uses the code that wrote the files, except for the record.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.files import data_end
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import check_record
from iotmq.store.files.flushed_position import read_flushed_mark
from iotmq.store.files.lock import DirectoryLock
from iotmq.store.files.state_record import read_state
from iotmq.store.log.queue import FILLER_SIZE
from iotmq.store.recovery.checkpoint import Checkpoint, read_checkpoint

FILE_NAME_DIGITS: Final = 20
QUEUE_ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = QUEUE_ENTRY.size

_HEAD: Final = struct.Struct(">II")
_BLANK_MAGIC: Final = 0xCBD43194
_RECORD_MAGIC_BYTES: Final = b"\xda\xa3\x20\xa7"
_AT_MAGIC: Final = 4
_PIECE_BYTES: Final = 1 << 20
# The second when some queue has had records with a time to live.
_QUEUE_STATE_MAGICS: Final = (b"iotmqCQ1", b"iotmqCQX")
_INDEX_STATE_MAGIC: Final = b"iotmqKI1"


class SegmentFile(NamedTuple):
    """One file of the log."""

    path: Path
    start_position: int
    # As long as the file is; a file that is too short has been cut.
    size_bytes: int
    # Up to the end of its last data; behind it the file is a hole.
    data_bytes: int

    @property
    def end_position(self) -> int:
        """Position of the first byte behind the file."""
        return self.start_position + self.size_bytes


class Found(NamedTuple):
    """A stretch of the log: a record, a blank, or damage; `view` has its bytes."""

    kind: str
    start_position: int
    end_position: int
    view: memoryview
    # What is wrong with damage, else empty.
    problem: str = ""


RECORD: Final = "record"
BLANK: Final = "blank"
DAMAGE: Final = "damage"


class QueueFile(NamedTuple):
    """One file of a queue."""

    path: Path
    first_offset: int
    entry_count: int


class QueueEntry(NamedTuple):
    """Hold the entry of a queue for an offset."""

    offset: int
    position: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Stands for an offset without a record."""
        return self.size == FILLER_SIZE


class QueueFiles:
    """The files of one queue."""

    def __init__(self, topic: str, queue_id: int, files: list[QueueFile]) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self._views: dict[Path, memoryview] = {}

    def entry(self, offset: int) -> QueueEntry | None:
        """Return the entry of an offset; None when there is none (all zero, or no file)."""
        number = bisect_right(self.files, offset, key=lambda file: file.first_offset) - 1
        if number < 0:
            return None
        file = self.files[number]
        view = self._view(file)
        at = (offset - file.first_offset) * QUEUE_ENTRY.size
        if at + QUEUE_ENTRY.size > len(view):
            return None
        position, size, tags_code = QUEUE_ENTRY.unpack_from(view, at)
        if size == 0:
            return None
        return QueueEntry(offset, position, size, tags_code)

    def entries(self, first_offset: int = 0) -> Iterator[QueueEntry]:
        """Yield all entries from an offset on; in each file they end with the first that is empty."""
        for file in self.files:
            offset = max(first_offset, file.first_offset)
            while (entry := self.entry(offset)) is not None and offset < file.first_offset + file.entry_count:
                yield entry
                offset += 1

    def end_offset(self) -> int:
        """Return the offset behind the last entry: entries are the front of the last file that has any."""
        for file in reversed(self.files):
            offsets = range(file.first_offset, file.first_offset + file.entry_count)
            count = bisect_left(offsets, True, key=lambda offset: self.entry(offset) is None)
            if count:
                return file.first_offset + count
        return self.files[0].first_offset if self.files else 0

    def first_offset_at(self, min_position: int) -> int:
        """Return the first offset of a record at or past `min_position`: what a reader may ask for."""
        low = self.files[0].first_offset if self.files else 0
        return low + bisect_left(range(low, self.end_offset()), min_position, key=self._position_up_to)

    def close(self) -> None:
        """Forget the mappings."""
        self._views.clear()

    def _position_up_to(self, offset: int) -> int:
        first = self.files[0].first_offset
        while offset >= first:
            entry = self.entry(offset)
            if entry is not None and not entry.is_filler:
                return entry.position
            # Over what has no file in one step: nothing vouches for the names of files.
            file = self.files[bisect_right(self.files, offset, key=lambda file: file.first_offset) - 1]
            offset = min(offset, file.first_offset + file.entry_count) - 1
        return -1

    def _view(self, file: QueueFile) -> memoryview:
        view = self._views.get(file.path)
        if view is None:
            view = self._views[file.path] = map_file(file.path)
        return view


class QueueState(NamedTuple):
    """Hold the state of the queues at the last checkpoint."""

    applied_position: int
    queue_count: int
    offset_sum: int


class IndexState(NamedTuple):
    """Hold the state of the key index at the last checkpoint; `next_entry` is of the last file."""

    applied_position: int
    file_count: int
    last_file: int
    next_entry: int


class ClosedStore:
    """A data directory nobody has open; nobody can open it before `close`. A context manager."""

    def __init__(self, directory: Path) -> None:
        """Raises StoreLockedError, which names the lock, and StoreError when this is no data directory."""
        self.directory = directory
        if not (directory / "commitlog").is_dir():
            raise StoreError(f"{directory} is not a data directory: it has no commitlog/")
        self._lock: DirectoryLock | None = None
        try:
            self._lock = DirectoryLock(directory)
        except OSError as error:
            # On a read-only disk nobody else can open it either.
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise StoreError(f"cannot lock {directory}: {error}") from error
        # The file that iotmq.replicated keeps there.
        self.is_replicated = (directory / "replication").exists()
        self.was_clean = not (directory / "abort").exists()
        self.segments = log_files(directory / "commitlog")
        self._views: dict[int, memoryview] = {}

    def __enter__(self) -> ClosedStore:
        return self

    def __exit__(self, *_arguments: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others open the directory."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def min_position(self) -> int:
        """Return where the log begins."""
        return self.segments[0].start_position if self.segments else 0

    def stretches(self, from_position: int = 0) -> Iterator[Found]:
        """The log from the file that holds `from_position` on: records, blanks and damage without a gap.

        It ends where only zeros follow. A gap between two files is not told here.
        """
        last_number = self._last_with_data()
        for number, segment in enumerate(self.segments[: last_number + 1]):
            if segment.end_position > from_position:
                yield from segment_stretches(segment, is_last=number == last_number)

    def record_at(self, position: int) -> memoryview | None:
        """Return the record at a position if it proves itself."""
        for segment in self.segments:
            if segment.start_position <= position < segment.start_position + segment.data_bytes:
                view = self._views.get(segment.start_position)
                if view is None:
                    view = self._views[segment.start_position] = map_file(segment.path)
                at = position - segment.start_position
                try:
                    return view[at : at + check_record(view, at, position=position)]
                except MessageFormatError:
                    return None
        return None

    def queues(self) -> list[QueueFiles]:
        """Return every queue that has files, by topic and queue id."""
        found = []
        root = self.directory / "consumequeue"
        for topic in sorted(root.iterdir()) if root.is_dir() else []:
            if not topic.is_dir():
                continue
            directories = [path for path in topic.iterdir() if path.name.isdecimal() and path.is_dir()]
            for directory in sorted(directories, key=lambda path: int(path.name)):
                files = [
                    QueueFile(path, int(path.name) // ENTRY_BYTES, path.stat().st_size // ENTRY_BYTES)
                    for path in position_files(directory)
                ]
                if files:
                    found.append(QueueFiles(topic.name, int(directory.name), files))
        return found

    def queue_state(self) -> QueueState | None:
        """Read `consumequeue/.applied`; None when it cannot be relied on."""
        path = str(self.directory / "consumequeue" / ".applied")
        state = read_state(path, *_QUEUE_STATE_MAGICS, count=3)
        return None if state is None else QueueState(*state.numbers)

    def index_state(self) -> IndexState | None:
        """Read `index.applied`; None when it cannot be relied on."""
        state = read_state(str(self.directory / "index.applied"), _INDEX_STATE_MAGIC, count=4)
        return None if state is None else IndexState(*state.numbers)

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, None when there is none."""
        return read_checkpoint(self.directory / "checkpoint")

    def durable_position(self) -> int | None:
        """Below it the log is known to have been on the disk; None when nothing says so."""
        checkpoint = self.checkpoint()
        if checkpoint is None or checkpoint.position is None:
            return None
        return max(checkpoint.position, read_flushed_mark(self.directory / "checkpoint") or 0)

    def _last_with_data(self) -> int:
        """Return the last file that has something in it; files made ahead are empty."""
        for number in range(len(self.segments) - 1, -1, -1):
            data_bytes = self.segments[number].data_bytes
            if data_bytes and first_not_zero(map_file(self.segments[number].path), 0, data_bytes) is not None:
                return number
        return -1


def segment_stretches(segment: SegmentFile, *, is_last: bool) -> Iterator[Found]:
    """Yield the records, blanks and damage of one file, in order and without a gap.

    After damage it goes on with the next record that proves itself: lengths, magic, CRC and its own
    position. Zeros up to the end of the last file are no damage but the end of the log.
    """
    view = map_file(segment.path)
    position = segment.start_position
    while position < segment.end_position:
        at = position - segment.start_position
        found = _sound_stretch(segment, view, at)
        if isinstance(found, Found):
            yield found
            position = found.end_position
            continue
        if is_last and first_not_zero(view, at, segment.data_bytes) is None:
            return
        next_at = _next_sound(segment, view, at + 1)
        if next_at is None:
            # Nothing behind it proves itself: up to the last byte that is not zero, or the whole file.
            end = last_not_zero(view, at, segment.data_bytes) if is_last else segment.size_bytes
            next_at = max(at + 1, end)
            yield Found(DAMAGE, position, segment.start_position + next_at, view[at:next_at], found)
            return
        yield Found(DAMAGE, position, segment.start_position + next_at, view[at:next_at], found)
        position = segment.start_position + next_at


def log_files(directory: Path) -> list[SegmentFile]:
    """Return the files of the log, lowest first."""
    segments = []
    for path in position_files(directory):
        size_bytes = path.stat().st_size
        segments.append(SegmentFile(path, int(path.name), size_bytes, data_end(path, size_bytes)))
    return segments


def position_files(directory: Path) -> list[Path]:
    """Return the files of a directory that are named by a position, lowest first."""
    return sorted(
        path
        for path in directory.iterdir()
        if len(path.name) == FILE_NAME_DIGITS and path.name.isdecimal() and path.is_file()
    )


def map_file(path: Path) -> memoryview:
    """A file's bytes; nothing can be written through it. Raises StoreCorruptError when it cannot be read."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise StoreCorruptError(f"cannot read {path}: {error}") from error


def first_not_zero(view: memoryview, start: int, end: int) -> int | None:
    """Return where the first byte of [start, end) is that is not zero."""
    for at in range(start, end, _PIECE_BYTES):
        piece = bytes(view[at : min(end, at + _PIECE_BYTES)])
        left = len(piece.lstrip(b"\0"))
        if left:
            return at + len(piece) - left
    return None


def last_not_zero(view: memoryview, start: int, end: int) -> int:
    """Behind the last byte of [start, end) that is not zero; `start` when all are."""
    while end > start:
        at = max(start, end - _PIECE_BYTES)
        kept = len(bytes(view[at:end]).rstrip(b"\0"))
        if kept:
            return at + kept
        end = at
    return start


def _sound_stretch(segment: SegmentFile, view: memoryview, at: int) -> Found | str:
    """Return the record or blank at a byte of a file; what is wrong when there is none."""
    position = segment.start_position + at
    if len(view) - at >= _HEAD.size:
        size, magic = _HEAD.unpack_from(view, at)
        if magic == _BLANK_MAGIC and size == segment.size_bytes - at:
            return Found(BLANK, position, segment.end_position, view[at:])
    try:
        size = check_record(view, at, position=position)
    except MessageFormatError as error:
        return str(error)
    if at + size > segment.size_bytes - _HEAD.size:
        return "the record ends on the last 8 bytes of the file"
    return Found(RECORD, position, position + size, view[at : at + size])


def _next_sound(segment: SegmentFile, view: memoryview, at: int) -> int | None:
    """Return where the next record or blank of a file is, from a byte on; None when there is none."""
    mapping = view.obj
    assert isinstance(mapping, mmap.mmap)
    magic_at = at + _AT_MAGIC
    while (found := mapping.find(_RECORD_MAGIC_BYTES, magic_at, segment.data_bytes)) >= 0:
        if isinstance(_sound_stretch(segment, view, found - _AT_MAGIC), Found):
            return found - _AT_MAGIC
        magic_at = found + 1
    magic_at = at + _AT_MAGIC
    blank_magic = _BLANK_MAGIC.to_bytes(4, "big")
    while (found := mapping.find(blank_magic, magic_at, segment.data_bytes)) >= 0:
        if isinstance(_sound_stretch(segment, view, found - _AT_MAGIC), Found):
            return found - _AT_MAGIC
        magic_at = found + 1
    return None
