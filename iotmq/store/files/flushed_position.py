"""Write down the flushed position after every flush, at next to no cost.

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
from pathlib import Path

from iotmq.store.files.state_record import decode_state, encode_state

MARK_AT_BYTES = 512

_MAGIC = b"iotmqFM1"
_MARK_BYTES = len(encode_state(_MAGIC, 0))


def read_flushed_mark(path: Path) -> int | None:
    """The position in the checkpoint file at `path`; None when there is none or it does not prove itself."""
    try:
        with path.open("rb") as file:
            file.seek(MARK_AT_BYTES)
            state = decode_state(file.read(_MARK_BYTES), _MAGIC, count=1)
    except FileNotFoundError:
        return None
    return state.numbers[0] if state is not None and state.numbers[0] >= 0 else None


def write_flushed_mark(path: Path, position: int) -> None:
    """Overwrite the position in an existing checkpoint file and wait for the disk; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, encode_state(_MAGIC, position), MARK_AT_BYTES)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


class FlushedPosition:
    """The mark of an open store. Any thread moves it forward."""

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
        """Move the flushed position: records below `position` are on the disk."""
        if self._mapping is None or position <= self._position:
            return
        self._position = position
        self._mapping[MARK_AT_BYTES : MARK_AT_BYTES + _MARK_BYTES] = encode_state(_MAGIC, position)

    def move_back(self, position: int) -> None:
        """Move it back, on the disk, before the log is cut at `position`; raises OSError.

        Otherwise a start would take what is missing for damage.
        """
        self._position = min(self._position, position)
        if self._mapping is not None:
            self._mapping[MARK_AT_BYTES : MARK_AT_BYTES + _MARK_BYTES] = encode_state(_MAGIC, self._position)
            self._mapping.flush()
