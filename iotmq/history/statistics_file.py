"""One file of statistics: blocks with the counts of many names in one step of time, one behind the other.

Layout of a block, numbers big-endian:

    0   4  magic, "iSt1"
    4   4  CRC-32 of what follows in the block
    8   4  size of the block
    12  2  table: 0 topics, 1 groups, 2 client id prefixes
    14  2  columns
    16  8  time: the beginning of the step, in milliseconds since 1970
    24  4  names that are new in this file and table
    28  4  rows
    32     the new names, each two bytes of length and UTF-8: the first of a table and file is its number 1
           rows x 4 bytes: the number of the name of each row; 0 for all names without a row of their own
           rows x columns x 8 bytes: the counts, row by row

A file is only ever appended to. What follows the last whole block was being written when the process or the
machine stopped: readers pass over it, and the next writer cuts it off.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from iotmq import limits
from iotmq.files import make_directory, sync_path
from iotmq.history.block_sums import largest_id
from iotmq.history.questions import COLUMNS, OTHERS, Table

logger = logging.getLogger(__name__)

Counts = tuple[int, ...]
"""The counts of one name: a number for each column."""

TABLES: Final[tuple[Table, ...]] = ("topics", "groups", "clients")
_MAGIC: Final = b"iSt1"
_HEADER: Final = struct.Struct(">4sIIHHqII")
_CHECKED_FROM: Final = 8
_NAME_SIZE: Final = struct.Struct(">H")
_COUNT_MAX: Final = (1 << 64) - 1

_Key = TypeVar("_Key")


class Rows(NamedTuple):
    """The counts of some names in one step."""

    table: Table
    time_ms: int
    counts: Mapping[str, Counts]
    """By name."""


class Block(NamedTuple):
    """A block as it stands in a file."""

    table: Table
    time_ms: int
    ids: memoryview
    """Four bytes for each row."""
    counts: memoryview
    """Eight bytes for each row and column."""

    def row(self, number: int) -> Counts:
        """Return the counts of a row."""
        columns = len(COLUMNS[self.table])
        return struct.unpack_from(f">{columns}Q", self.counts, number * columns * 8)


class Content(NamedTuple):
    """The whole blocks of a file."""

    blocks: list[Block]
    names: Mapping[Table, list[str]]
    """By number; 0 is OTHERS."""
    end: int
    """Size of the blocks in the file."""


class StatisticsFile:
    """Appends to one file. It has as many names as there is room for; others count together."""

    def __init__(self, path: Path, *, names_max: int) -> None:
        """Read what the file has. OSError when it cannot be read."""
        self.path = path
        self._names_max = names_max
        self.content = read_file(path)
        self._ids: dict[Table, dict[str, int]] = {
            table: {name: number for number, name in enumerate(names)}
            for table, names in self.content.names.items()
        }
        self._end = self.content.end

    def append(self, steps: Iterable[Rows], *, is_synced: bool) -> None:
        """Add blocks; OSError leaves the file as it was, or with a part that nobody reads.

        After that this object knows no more how the file is: take another.
        """
        data = b"".join(self._encode(rows) for rows in steps)
        make_directory(self.path.parent)
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size > self._end:
                logger.warning(
                    "the end of a file of statistics was not whole and is cut off",
                    extra={"file": str(self.path), "bytes": size - self._end},
                )
                os.ftruncate(descriptor, self._end)
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], self._end + written)
            if is_synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new and is_synced:
            sync_path(self.path.parent)
        self._end += len(data)

    def _encode(self, rows: Rows) -> bytes:
        ids = self._ids[rows.table]
        names: list[bytes] = []
        # A name without a place counts with the others.
        merged: dict[int, Counts] = {}
        for name, counts in rows.counts.items():
            number = ids.get(name)
            if number is None:
                if len(ids) > self._names_max:
                    number = 0
                else:
                    number = ids[name] = len(ids)
                    encoded = name.encode("utf-8", "replace")
                    names.append(_NAME_SIZE.pack(len(encoded)) + encoded)
            add_to(merged, number, counts)
        columns = len(COLUMNS[rows.table])
        body = b"".join(names)
        body += struct.pack(f">{len(merged)}I", *merged)
        body += struct.pack(f">{len(merged) * columns}Q", *chain.from_iterable(merged.values()))
        header = _HEADER.pack(
            _MAGIC,
            0,
            _HEADER.size + len(body),
            TABLES.index(rows.table),
            columns,
            rows.time_ms,
            len(names),
            len(merged),
        )
        block = bytearray(header + body)
        struct.pack_into(">I", block, 4, zlib.crc32(block[_CHECKED_FROM:]))
        return bytes(block)


def add_to(found: dict[_Key, Counts], key: _Key, counts: Counts) -> None:
    """Add counts to those found under a key; what has no room in a file stays at the largest."""
    former = found.get(key)
    if former is not None:
        counts = tuple(min(one + other, _COUNT_MAX) for one, other in zip(former, counts, strict=True))
    found[key] = counts


class Chosen(NamedTuple):
    """Blocks that are read: of one table, and of a time with both its ends."""

    table: Table
    first_ms: int
    last_ms: int


def read_file(path: Path, chosen: Chosen | None = None) -> Content:
    """Read the whole blocks of a file; none of one that does not exist. OSError when it cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    return decode_blocks(data, chosen)


def first_time(path: Path) -> int | None:
    """Return the time of a file's first block; None without one. OSError when it cannot be read."""
    with path.open("rb") as file:
        data = file.read(_HEADER.size)
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        return None
    time_ms: int = _HEADER.unpack(data)[5]
    return time_ms


def decode_blocks(data: bytes, chosen: Chosen | None = None) -> Content:
    """Read blocks up to the first that is not whole. Of those not chosen only names are looked at."""
    names: dict[Table, list[str]] = {table: [OTHERS] for table in TABLES}
    blocks: list[Block] = []
    view = memoryview(data)
    wanted = None if chosen is None else TABLES.index(chosen.table)
    at = 0
    while at + _HEADER.size <= len(data):
        magic, checksum, size, table, columns, time_ms, names_count, rows = _HEADER.unpack_from(data, at)
        if magic != _MAGIC or not _HEADER.size <= size <= min(
            limits.STATISTICS_BLOCK_BYTES_MAX, len(data) - at
        ):
            break
        is_chosen = chosen is None or (table == wanted and chosen.first_ms <= time_ms <= chosen.last_ms)
        if is_chosen or (table == wanted and names_count):
            if zlib.crc32(view[at + _CHECKED_FROM : at + size]) != checksum:
                break
            block = _decode(view[at : at + size], (table, columns, time_ms, names_count, rows), names)
            if block is None:
                break
            if is_chosen:
                blocks.append(block)
        at += size
    return Content(blocks, names, at)


def _decode(
    data: memoryview, header: tuple[int, int, int, int, int], names: Mapping[Table, list[str]]
) -> Block | None:
    """Decode a block whose checksum is right; None for one of another version."""
    number, columns, time_ms, names_count, rows = header
    if number >= len(TABLES) or columns != len(COLUMNS[TABLES[number]]):
        return None
    table = TABLES[number]
    at = _HEADER.size
    fresh: list[str] = []
    for _ in range(names_count):
        if at + _NAME_SIZE.size > len(data):
            return None
        (size,) = _NAME_SIZE.unpack_from(data, at)
        at += _NAME_SIZE.size
        fresh.append(bytes(data[at : at + size]).decode("utf-8", "replace"))
        at += size
    if at + rows * (4 + 8 * columns) != len(data):
        return None
    ids, counts = data[at : at + 4 * rows], data[at + 4 * rows :]
    if largest_id(ids) >= len(names[table]) + len(fresh):
        return None
    names[table] += fresh
    return Block(table, time_ms, ids, counts)
