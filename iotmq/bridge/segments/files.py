"""Files of a CommitLog on this machine: which there are, where the log ends, and which parts make tasks.

Nothing here writes or locks: the directory may be a copy, a backup, or that of a running broker.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from iotmq.bridge.segments.record_picker import end_of_records, first_store_ms
from iotmq.errors import ConfigError
from iotmq.store.log.segment import NAME_DIGITS

# A part begins where its task finds a record, going through the file from its beginning.
PART_BYTES_MIN: Final = 64 * 1024 * 1024

_SEGMENT_NAME: Final = re.compile(rf"\d{{{NAME_DIGITS}}}", re.ASCII)

Table = TypeVar("Table")


class SegmentFile(NamedTuple):
    """One file of the log: the positions [start_position, end_position) belong to it."""

    path: str
    start_position: int
    end_position: int
    data_bytes: int
    """Bytes up to where the disk has anything of it."""


class SegmentPart(NamedTuple):
    """The work of a task: records of a file that start at bytes [first, limit) of it."""

    file: SegmentFile
    first: int
    limit: int


class LogFiles(NamedTuple):
    """The files of a log in order, and what lacks between them, in words."""

    files: tuple[SegmentFile, ...]
    gaps: tuple[str, ...]


class DataDirectory(NamedTuple):
    """Paths of a log, and of the data directory it belongs to; None for a log alone."""

    log: Path
    data: Path | None


def find_log(path: str) -> DataDirectory:
    """Return where the log of `path` is: a data directory, or a directory of segments.

    ConfigError when there is none.
    """
    split = urlsplit(path)
    if split.scheme not in ("", "file"):
        raise ConfigError(
            f"option path is a directory on this machine, not {path!r}: copy the files, or mount it"
        )
    root = Path(unquote(split.path) if split.scheme else path)
    if not root.is_dir():
        raise ConfigError(
            f"option path: {root} is no directory (on every machine that runs tasks it must be one)"
        )
    log = root / "commitlog"
    found = DataDirectory(log, root) if log.is_dir() else DataDirectory(root, None)
    if not any(_SEGMENT_NAME.fullmatch(name) for name in os.listdir(found.log)):
        raise ConfigError(
            f"option path: {found.log} has no file of a CommitLog (their names are {NAME_DIGITS} digits)"
        )
    if found.data is None and root.name == "commitlog" and (root.parent / "config").is_dir():
        return DataDirectory(root, root.parent)
    return found


def list_segments(log: Path) -> LogFiles:
    """Return the segments in `log`; other files, and empty ones, are none of them."""
    found: list[tuple[int, str, int, int]] = []
    for entry in os.scandir(log):
        if _SEGMENT_NAME.fullmatch(entry.name) and entry.is_file():
            size = entry.stat().st_size
            if size:
                found.append((int(entry.name), entry.path, size, _data_bytes(entry.path, size)))
    found.sort()
    files = []
    gaps = []
    for (start, path, size, data_bytes), following in itertools.zip_longest(found, found[1:]):
        end = start + size if following is None else min(start + size, following[0])
        files.append(SegmentFile(path, start, end, min(data_bytes, end - start)))
        if following is not None and end < following[0]:
            gaps.append(f"{log}: no file has the positions {end} to {following[0] - 1}")
    return LogFiles(tuple(files), tuple(gaps))


def up_to_the_end(files: Sequence[SegmentFile]) -> list[tuple[SegmentFile, int]]:
    """Return each file with the byte up to which it is read.

    The last ones end behind the last record that proves itself: what stands behind it was torn by a power
    cut, or is being written. The others are read to their end.
    """
    ends = [(file, file.end_position - file.start_position) for file in files]
    while ends:
        file = ends[-1][0]
        with mapped(file) as view:
            end = end_of_records(view[: file.data_bytes], start_position=file.start_position)
        if end:
            ends[-1] = (file, end)
            break
        ends.pop()
    return ends


def stored_from(files: Sequence[tuple[SegmentFile, int]], timestamp_ms: int) -> list[tuple[SegmentFile, int]]:
    """Leave out the files at the beginning that were full before a time: store times do not run backwards."""
    first = 0
    for index, (file, _end) in enumerate(files[1:], start=1):
        with mapped(file) as view:
            begun_ms = first_store_ms(view, start_position=file.start_position)
        if begun_ms is None or begun_ms >= timestamp_ms:
            break
        first = index
    return list(files[first:])


def split_parts(files: Sequence[tuple[SegmentFile, int]], parts_min: int) -> list[SegmentPart]:
    """Return parts of about equal size, at least `parts_min` where the files are large enough for so many."""
    total = sum(end for _file, end in files)
    part_bytes = max(PART_BYTES_MIN, -(-total // parts_min))
    parts = []
    for file, end in files:
        count = max(1, round(end / part_bytes))
        edges = [end * n // count for n in range(count + 1)]
        parts += [SegmentPart(file, a, b) for a, b in itertools.pairwise(edges)]
    return parts


@contextmanager
def mapped(file: SegmentFile) -> Iterator[memoryview]:
    """The bytes of a segment, as many as its file has, until the block ends."""
    with open(file.path, "rb") as source:
        size = min(os.fstat(source.fileno()).st_size, file.end_position - file.start_position)
        if not size:
            yield memoryview(b"")
            return
        with mmap.mmap(source.fileno(), size, prot=mmap.PROT_READ) as mapping:
            mapping.madvise(mmap.MADV_SEQUENTIAL)
            with memoryview(mapping) as view:
                yield view


def deleted_topics(data: Path) -> dict[str, int]:
    """Return the topics deleted by the broker of a data directory: records below the position are gone."""
    found = _read(data / "config" / "deletedTopics.json", _DeletedTopics)
    return {} if found is None else {name: entry.position for name, entry in found.deleted_topics.items()}


def known_topics(data: Path) -> set[str]:
    """Return the topics that a data directory knows of; none when it has nothing but the log."""
    found = _read(data / "config" / "topics.json", _Topics)
    names = set() if found is None else set(found.topic_config_table)
    queues = data / "consumequeue"
    return names | {path.name for path in queues.iterdir() if path.is_dir()} if queues.is_dir() else names


class _DeletedTopic(msgspec.Struct):
    position: int


class _DeletedTopics(msgspec.Struct, rename="camel"):
    deleted_topics: dict[str, _DeletedTopic] = {}


class _Topics(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, msgspec.Raw] = {}


def _read(path: Path, kind: type[Table]) -> Table | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"option path: {path} is damaged: {error}") from None


def _data_bytes(path: str, size: int) -> int:
    """Return where the last data of a sparse file ends; its size where the system cannot say."""
    with open(path, "rb") as file:
        end = 0
        try:
            while end < size:
                end = os.lseek(file.fileno(), os.lseek(file.fileno(), end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.EINVAL, errno.ENOTSUP):
                raise
            if error.errno != errno.ENXIO:
                return size
    return end
