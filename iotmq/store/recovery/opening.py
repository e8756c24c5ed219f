"""Opening a data directory: what is in it, brought into agreement with its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iotmq.files import make_directory, sync_path
from iotmq.store import fail_points
from iotmq.store.files.lock import AbortMark, DirectoryLock
from iotmq.store.log.commit_log import CommitLog
from iotmq.store.projections.key_index.key_index import KeyIndex
from iotmq.store.queues.consume_queue import ConsumeQueue
from iotmq.store.recovery.recovery import Recovery, recover, recover_index
from iotmq.store.recovery.write_state import refusal_of

if TYPE_CHECKING:
    from iotmq.store.projections.catch_up import CatchUpProgress
    from iotmq.store.recovery.damage import DamageRepair
    from iotmq.store.settings import StoreSettings

CHECKPOINT_NAME: Final = "checkpoint"


@dataclass(frozen=True)
class OpenedParts:
    """Hold the opened parts of a directory; the log is whole, queues and index are not level with it yet."""

    abort: AbortMark
    log: CommitLog
    queues: ConsumeQueue
    index: KeyIndex | None
    recovery: Recovery
    # Checks the parts of the log that nobody has looked at in this run.
    repair: DamageRepair


@contextmanager
def locked(directory: Path) -> Iterator[DirectoryLock]:
    """Have `directory`, made when missing, for this process alone; not any more when what follows raises.

    Raises StoreLockedError, and StoreError for what the operating system refuses, in here or in what follows.
    """
    lock: DirectoryLock | None = None
    try:
        make_directory(directory)
        lock = DirectoryLock(directory)
        yield lock
    except BaseException as error:
        if lock is not None:
            lock.release()
        if isinstance(error, OSError):
            raise refusal_of(error)(f"cannot open {directory}: {error}") from error
        raise


def open_parts(
    directory: Path,
    settings: StoreSettings,
    *,
    store_host: bytes,
    sync_file: Callable[[int], object],
    progress: CatchUpProgress | None,
    checks_all: bool,
    has_tail: bool,
) -> OpenedParts:
    """Map what a locked directory has, cut off what is not whole of the log, take the rest back to it.

    `has_tail`: the log may go on behind what its queues have. Other arguments as of `Store.open`. Raises
    StoreCorruptError, OSError.
    """
    abort = AbortMark(directory)
    abort.set()
    fail_points.reach("abort-set")
    log = CommitLog(
        str(directory / "commitlog"),
        segment_bytes=settings.segment_bytes,
        allocation_step_bytes=settings.allocation_step_bytes,
        record_bytes_max=min(settings.record_bytes_max, settings.segment_bytes - 8),
        store_host=store_host,
    )
    queues = ConsumeQueue(str(directory / "consumequeue"), entries_per_file=settings.queue_file_entries)
    # The two directories may be new.
    sync_path(directory)
    checkpoint_path = directory / CHECKPOINT_NAME
    recovery, repair = recover(
        log,
        queues,
        checkpoint_path,
        was_clean=not abort.was_set,
        sync_file=sync_file,
        checks_all=checks_all,
        has_tail=has_tail,
        progress=progress if checks_all else None,
    )
    index = None
    if settings.index_enabled:
        index = KeyIndex(
            str(directory / "index"),
            str(directory / "index.applied"),
            slots=settings.index_slots,
            entries=settings.index_entries,
        )
        recover_index(log, index, checkpoint_path, was_clean=not abort.was_set)
    return OpenedParts(abort, log, queues, index, recovery, repair)
