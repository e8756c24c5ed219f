"""The checkpoint file: up to where log and queues were known to be on the disk.

4,096 bytes. The format's own part, big-endian: 0 store time (ms) of the last record flushed 8 |
8 store time of the last record with a flushed queue entry 8 | 16 store time of the last record
with a flushed index entry 8. Behind it ours, which other brokers leave alone:
24 magic "iotmqCP1" 8 | 32 position up to which log and queues are on the disk 8 | 40 CRC-32 of bytes 0..40.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from iotmq.store.consume_queue import ConsumeQueue, Queue

CHECKPOINT_BYTES = 4096

_FIELDS = struct.Struct(">qqq8sqI")
_MAGIC = b"iotmqCP1"


class Checkpoint(NamedTuple):
    """Times in milliseconds since 1970, 0 for never; `position` is None when another broker wrote it."""

    log_timestamp_ms: int
    queue_timestamp_ms: int
    index_timestamp_ms: int
    position: int | None


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint at `path`, None when there is none or it is too short."""
    try:
        data = path.read_bytes()[: _FIELDS.size]
    except FileNotFoundError:
        return None
    if len(data) < _FIELDS.size:
        return None
    log_ms, queue_ms, index_ms, magic, position, crc = _FIELDS.unpack(data)
    # Another broker rewrites the times and not the CRC: then only the times count.
    is_ours = magic == _MAGIC and crc == zlib.crc32(data[:-4])
    return Checkpoint(log_ms, queue_ms, index_ms, position if is_ours else None)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Overwrite the checkpoint and wait for the disk; raises OSError. `position` must be set.

    In place: the fields share one disk sector, and one that is torn nevertheless fails its CRC.
    """
    data = _FIELDS.pack(*checkpoint[:3], _MAGIC, checkpoint.position, 0)[:-4]
    data += struct.pack(">I", zlib.crc32(data))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < CHECKPOINT_BYTES:
            os.posix_fallocate(descriptor, 0, CHECKPOINT_BYTES)
        os.pwrite(descriptor, data, 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


class Checkpointer:
    """Syncs the queue files and then writes down how far log and queues are on the disk.

    Two steps around a flush of the log: `begin` notes how far the queues are, `finish` brings exactly
    that to the disk. After a failure it never writes again, because nobody knows any more which queue
    pages reached the disk; the next start then goes back to the last checkpoint that is true.
    """

    def __init__(self, path: Path, queues: ConsumeQueue, *, sync_file: Callable[[int], object]) -> None:
        self.has_failed = False
        self._path = path
        self._queues = queues
        self._sync_file = sync_file
        self._written_position = -1
        # Set by `begin` for `finish`.
        self._state = (0, 0, 0)
        self._dirty: list[Queue] = []
        self._timestamp_ms = 0

    def begin(self, timestamp_ms: int) -> None:
        """Note the state of the queues; `timestamp_ms` is the store time of the last record appended."""
        self._timestamp_ms = timestamp_ms
        self._state = self._queues.state()
        self._dirty += self._queues.take_dirty()

    def finish(self, flushed_position: int) -> None:
        """Sync the queues noted and write the checkpoint; raises OSError."""
        position = min(flushed_position, self._state[0])
        if self.has_failed or (position == self._written_position and not self._dirty):
            return
        dirty, self._dirty = self._dirty, []
        try:
            for queue in dirty:
                queue.sync(self._sync_file)
            self._queues.write_state(self._state)
            timestamp_ms = self._timestamp_ms
            write_checkpoint(self._path, Checkpoint(timestamp_ms, timestamp_ms, timestamp_ms, position))
        except OSError:
            self.has_failed = True
            raise
        self._written_position = position
