"""How far the log was on the disk when the process ended, written down after every flush at next to no cost.

The checkpoint's position is seconds old when a process is killed, and a start has to know more precisely
what was on the disk: bytes before that are damaged when they are no records, bytes behind may be what a
power cut leaves. So the position stands in the checkpoint file as well, in its second sector (512 bytes),
which other brokers leave alone: magic "iotmqFM1" 8 | position 8 | CRC-32 of those 4.

It is stored into a mapping and never synced: after a killed process the page cache has the last one, after
a power cut the disk has some earlier one, and what was flushed once stays flushed.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

MARK_AT_BYTES = 512

_MARK = struct.Struct(">8sqI")
_MAGIC = b"iotmqFM1"
_CHECKED_BYTES = _MARK.size - 4


def read_flushed_mark(path: Path) -> int | None:
    """The position in the checkpoint file at `path`; None when there is none or it does not prove itself."""
    try:
        with path.open("rb") as file:
            file.seek(MARK_AT_BYTES)
            data = file.read(_MARK.size)
    except FileNotFoundError:
        return None
    if len(data) < _MARK.size:
        return None
    magic, position, crc = _MARK.unpack(data)
    is_ours = magic == _MAGIC and crc == zlib.crc32(data[:_CHECKED_BYTES]) and position >= 0
    return position if is_ours else None


def write_flushed_mark(path: Path, position: int) -> None:
    """Overwrite the position in an existing checkpoint file and wait for the disk; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, _encoded(position), MARK_AT_BYTES)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


class FlushedMark:
    """The mark of an open store. Any thread moves it; only forward."""

    def __init__(self, path: Path) -> None:
        """Without the file, or one as long as ours are, there is no mark: it takes a disk with room."""
        self._position = -1
        self._mapping: mmap.mmap | None = None
        try:
            with path.open("r+b") as file:
                # Blocks first: a store into a mapping cannot be refused.
                os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
                self._mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        except OSError:
            self._mapping = None

    def move(self, position: int) -> None:
        """What is below `position` is on the disk."""
        if self._mapping is None or position <= self._position:
            return
        self._position = position
        self._mapping[MARK_AT_BYTES : MARK_AT_BYTES + _MARK.size] = _encoded(position)


def _encoded(position: int) -> bytes:
    data = _MARK.pack(_MAGIC, position, 0)[:_CHECKED_BYTES]
    return data + struct.pack(">I", zlib.crc32(data))
