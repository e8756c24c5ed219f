"""The checkpoint file: up to where log and queues were known to be on the disk.

4,096 bytes. The format's own part, big-endian: 0 store time (ms) of the last record flushed 8 |
8 store time of the last record with a flushed queue entry 8 | 16 store time of the last record
with a flushed index entry 8. Behind it ours, which other brokers leave alone:
24 magic "iotmqCP1" 8 | 32 position up to which log and queues are on the disk 8 | 40 CRC-32 of bytes 0..40.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from iotmq.store import fail_points
from iotmq.store.files.state_record import sealed, unsealed

if TYPE_CHECKING:
    from iotmq.store.projections.key_index.key_index import KeyIndex
    from iotmq.store.queues.consume_queue import ConsumeQueue

CHECKPOINT_BYTES = 4096

_FIELDS = struct.Struct(">qqq8sq")
_MAGIC = b"iotmqCP1"

logger = logging.getLogger("iotmq.store")


class Checkpoint(NamedTuple):
    """Times in milliseconds since 1970, 0 for never; `position` is None when another broker wrote it."""

    log_timestamp_ms: int
    queue_timestamp_ms: int
    index_timestamp_ms: int
    position: int | None


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint at `path`, None when there is none or it is too short."""
    try:
        data = path.read_bytes()[: _FIELDS.size + 4]
    except FileNotFoundError:
        return None
    if len(data) < _FIELDS.size + 4:
        return None
    log_ms, queue_ms, index_ms, magic, position = _FIELDS.unpack_from(data)
    # Another broker rewrites the times and not the CRC: then only the times count.
    is_ours = magic == _MAGIC and unsealed(data) is not None
    return Checkpoint(log_ms, queue_ms, index_ms, position if is_ours else None)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Overwrite the checkpoint and wait for the disk; raises OSError. `position` must be set.

    In place: the fields share one disk sector, and one that is torn nevertheless fails its CRC.
    """
    data = sealed(_FIELDS.pack(*checkpoint[:3], _MAGIC, checkpoint.position))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < CHECKPOINT_BYTES:
            os.posix_fallocate(descriptor, 0, CHECKPOINT_BYTES)
        os.pwrite(descriptor, data, 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


class Checkpointer:
    """Syncs the files of queues and key index, then writes down how far they and the log are on the disk.

    In a thread of its own once started, so that no flush of the log waits for the queues' many files.
    After a failure it never writes again: nobody knows then which queue pages reached the disk, and the
    next start has to go back to the last checkpoint that is true.
    """

    def __init__(
        self,
        path: Path,
        queues: ConsumeQueue,
        index: KeyIndex | None = None,
        *,
        interval_s: float,
        flushed: Callable[[], tuple[int, int]],
        sync_file: Callable[[int], object],
    ) -> None:
        """`flushed` gives the position up to which the log is on the disk, and the store time (ms) there."""
        self.has_failed = False
        self._path = path
        self._queues = queues
        self._index = index
        self._interval_s = interval_s
        self._flushed = flushed
        self._sync_file = sync_file
        # What the file says; None before the first write of this run.
        self._written: Checkpoint | None = None
        # Held by the one that writes.
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iotmq-store-checkpoint", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the checkpoint that may be under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def write(self) -> None:
        """Sync queues and index and write a checkpoint if anything changed; raises OSError.

        Takes as long as the disk. When it returns, every queue entry that was there before the call is on
        the disk, unless a checkpoint has failed. For threads, or after `stop`.
        """
        with self._lock:
            self._write()

    def _write(self) -> None:
        if self.has_failed:
            return
        flushed_position, timestamp_ms = self._flushed()
        # The state comes first: entries made while the queues are synced may or may not be covered.
        state = self._queues.state()
        dirty = self._queues.take_dirty()
        position = min(flushed_position, state[0])
        index = self._index
        index_ms = 0
        if index is not None:
            index_state = index.state()
            # An index that had to stay behind vouches only for what it has.
            index_ms = timestamp_ms if index_state[0] >= position else index.end_timestamp_ms
            dirty_files = index.take_dirty()
        checkpoint = Checkpoint(timestamp_ms, timestamp_ms, index_ms, position)
        if checkpoint == self._written and not dirty and not (index is not None and dirty_files):
            return
        fail_points.reach("checkpoint-begun")
        try:
            self._queues.sync(dirty, self._sync_file)
            fail_points.reach("checkpoint-queues-synced")
            self._queues.write_state(state)
            if index is not None:
                index.sync(dirty_files, self._sync_file)
                index.write_state(index_state)
            fail_points.reach("checkpoint-index-synced")
            write_checkpoint(self._path, checkpoint)
            fail_points.reach("checkpoint-written")
        except OSError:
            self.has_failed = True
            raise
        self._written = checkpoint

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self.write()
            except OSError as error:
                logger.warning("no more checkpoints; a start after a crash will take longer: %s", error)
