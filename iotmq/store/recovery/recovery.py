"""Bringing log and queues into agreement at the start, after a clean stop or after a crash.

The log decides. From a place that is known to be good its records are checked one by one, and what the
bytes that are no record mean depends on where they stand:

- Below the position that was known to be on the disk (`durable_position`) they are *damage*: they are kept
  aside, reported, and covered by markers, and the log goes on with the next record that proves itself.
- Past it, after a crash, they are the *torn tail*: a power cut may have left any of what was written there,
  in any order. None of it was promised, so the log ends before the first gap, without a hole in any queue.
- After a clean stop there is no torn tail. Nor where nobody can say what was on the disk, because the
  checkpoint is missing, damaged, or another broker's: then whatever still proves itself is kept.

The queues keep the entries that were known to be on the disk; whatever came later is taken from the log
again (by the caller: a projection catches up from its `applied_position`). An entry whose record is lost
stays, and leads to a marker: who reads the queue passes over it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from iotmq.files import sync_path
from iotmq.message.records.record import decode_record
from iotmq.store import fail_points
from iotmq.store.files.flushed_position import read_flushed_mark, write_flushed_mark
from iotmq.store.log.queue import FILLER_SIZE
from iotmq.store.log.segment import write_again
from iotmq.store.projections.log_scan import end_of_records, marker_bounds, scan, starts_record
from iotmq.store.recovery.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from iotmq.store.recovery.damage import Damage, DamageKeeper, DamageRepair

if TYPE_CHECKING:
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.log.segment import Segment
    from iotmq.store.projections.catch_up import CatchUpProgress
    from iotmq.store.projections.key_index.key_index import KeyIndex
    from iotmq.store.queues.consume_queue import ConsumeQueue

# Segments checked after a clean stop.
CLEAN_SEGMENTS = 3
# So much of the active file is checked although the checkpoint vouches for it.
CHECKED_AGAIN_BYTES_MAX = 128 << 20
# Clocks of a foreign checkpoint are trusted only this far.
TIMESTAMP_SLACK_MS = 3_000

logger = logging.getLogger("iotmq.store")


class Recovery(NamedTuple):
    """Report the recovery of a start. Positions are bytes of the log."""

    was_clean: bool
    checked_from_position: int
    end_position: int
    # From here on the queues are filled again from the log.
    queues_from_position: int
    # What this start has lost or found lost, in the order of the log.
    damage: tuple[Damage, ...] = ()


def recover(
    log: CommitLog,
    queues: ConsumeQueue,
    checkpoint_path: Path,
    *,
    was_clean: bool,
    sync_file: Callable[[int], object],
    checks_all: bool = False,
    has_tail: bool = False,
    progress: CatchUpProgress | None = None,
) -> tuple[Recovery, DamageRepair]:
    """Check the log, cut off what is not whole, and take the queues back to what can be relied on.

    Afterwards everything in the log is on the disk. The DamageRepair checks what lies before
    `Recovery.checked_from_position`, for whoever has to go through it. Raises OSError.
    """
    checkpoint = read_checkpoint(checkpoint_path)
    durable_position = durable_end(log, checkpoint, read_flushed_mark(checkpoint_path))
    start_position = clean_start(log) if was_clean else crash_start(log, checkpoint, durable_position)
    if checks_all:
        start_position = log.min_position
    keeper = DamageKeeper(checkpoint_path.with_name("commitlog.damage"))
    repair = DamageRepair(log, queues, keeper, sync_file)
    if durable_position is not None:
        log.extend(durable_position)
        durable_position = log.before_blank(durable_position)
    position = start_position
    if durable_position is not None and position < durable_position:
        position = repair.check(position, durable_position, progress)
    if was_clean or durable_position is None:
        ranges, end_position = scan(log, position)
        repair.cover(ranges)
    else:
        end_position = end_of_records(log, position)
    repair.keep_tail(end_position)
    log.end_at(end_position)
    fail_points.reach("recovery-log-checked")
    log.cut()
    fail_points.reach("recovery-log-cut")
    if not was_clean:
        # The last run may have ended because a sync failed: what was found may be in memory only.
        flushed_position = start_position if durable_position is None else durable_position
        for segment in log.segments_between(flushed_position, end_position):
            write_again(
                segment,
                max(0, flushed_position - segment.start_position),
                min(segment.allocated_bytes, end_position - segment.start_position),
            )
    log.checked_position = start_position
    # The last segment too if it is empty: what was cut off must not come back.
    for segment in log.segments_between(start_position, end_position + 1):
        segment.sync(sync_file)
    for segment in log.segment_list()[:-1]:
        log.release_descriptor(segment)
    queues_position = recover_queues(log, queues, repair, was_clean=was_clean, has_tail=has_tail)
    fail_points.reach("recovery-queues-rewound")
    withdraw_claims(checkpoint_path, checkpoint, end_position)
    prepare_files(queues, checkpoint_path, end_position)
    return Recovery(was_clean, start_position, end_position, queues_position, repair.found()), repair


def durable_end(log: CommitLog, checkpoint: Checkpoint | None, mark_position: int | None) -> int | None:
    """Below it the log is known to have been on the disk; None when nobody can say.

    The mark counts only beside a checkpoint of ours: another broker that had the directory since may have
    cut the log, and overwrites the checkpoint's times and not its checksum.
    """
    if checkpoint is None or checkpoint.position is None or log.is_new:
        return 0 if log.is_new else None
    return max(checkpoint.position, mark_position or 0, log.min_position)


def withdraw_claims(checkpoint_path: Path, checkpoint: Checkpoint | None, end_position: int) -> None:
    """Lower the positions in the checkpoint file that are past the end of the log.

    They would become false statements as soon as the log grows past them with other records.
    """
    if checkpoint is None:
        return
    if (read_flushed_mark(checkpoint_path) or 0) > end_position:
        write_flushed_mark(checkpoint_path, end_position)
    if checkpoint.position is not None and checkpoint.position > end_position:
        write_checkpoint(checkpoint_path, checkpoint._replace(position=end_position))


def recover_index(log: CommitLog, index: KeyIndex, checkpoint_path: Path, *, was_clean: bool) -> None:
    """Take the key index back to what can be relied on. After `recover`; raises OSError."""
    checkpoint = read_checkpoint(checkpoint_path)
    index.recover(
        log.min_position,
        log.appended_position,
        was_clean=was_clean,
        timestamp_ms=0 if checkpoint is None else checkpoint.index_timestamp_ms,
        timestamp_at=log.store_timestamp_ms,
    )
    if not starts_record(log, index.applied_position):
        logger.warning("the key index is not that of this log; it is made again")
        index.clear(log.min_position)


def prepare_files(queues: ConsumeQueue, checkpoint_path: Path, end_position: int) -> None:
    """Have the small files that are rewritten in place, so that a stop on a full disk can be a clean one.

    The checkpoint, on the disk before the first append, says what a power cut may not have taken.
    """
    try:
        if queues.read_state() is None:
            queues.write_state((queues.applied_position, 0, 0))
        if not checkpoint_path.exists():
            write_checkpoint(checkpoint_path, Checkpoint(0, 0, 0, end_position))
            sync_path(checkpoint_path.parent)
    except OSError as error:
        logger.warning("cannot write %s: %s", checkpoint_path, error)


def clean_start(log: CommitLog) -> int:
    """After a clean stop only the last few segments are checked."""
    segments = log.segment_list()
    return segments[-min(CLEAN_SEGMENTS, len(segments))].start_position


def crash_start(log: CommitLog, checkpoint: Checkpoint | None, durable_position: int | None) -> int:
    """Start of the last segment that holds nothing, or little, from after what was on the disk."""
    segments = log.segment_list()
    if durable_position is not None:
        return checked_start(segments, durable_position)
    if checkpoint is None:
        return segments[0].start_position
    latest_ms = min(checkpoint.log_timestamp_ms, checkpoint.queue_timestamp_ms) - TIMESTAMP_SLACK_MS
    for segment in reversed(segments):
        if 0 < log.first_store_timestamp_ms(segment) <= latest_ms:
            return segment.start_position
    return segments[0].start_position


def checked_start(segments: list[Segment], position: int) -> int:
    """Where to check from when all before `position` was on the disk: the start of its file if that is near.

    Otherwise `position` itself, which keeps a start after a power cut, when all of it has to come from the
    disk, as short as what was written since the checkpoint. What is before is then checked when it is read,
    like the files before.
    """
    candidates = [segment for segment in segments if segment.start_position <= position]
    if not candidates:
        return segments[0].start_position
    last = candidates[-1]
    is_whole = position <= last.start_position + last.allocated_bytes
    if is_whole and position - last.start_position > CHECKED_AGAIN_BYTES_MAX:
        return position
    return last.start_position


def recover_queues(
    log: CommitLog, queues: ConsumeQueue, repair: DamageRepair, *, was_clean: bool, has_tail: bool = False
) -> int:
    """Take the queues back to the last state known to be on the disk, or to nothing; returns its position.

    After a clean stop they are as far as the log, unless that `has_tail`: records not confirmed yet.
    """
    min_position, end_position = log.min_position, log.appended_position
    remembered = queues.read_state()
    if remembered is None:
        queues.clear(min_position)
        return min_position
    applied_position, count, _ = remembered
    # Before `rewind` these are the ones found on the disk.
    present_count = len(queues.queues())
    if was_clean and not are_whole(queues):
        logger.warning("queue files have been cut; filling all of them again from the log")
    elif was_clean:
        stop_position = min(applied_position, end_position) if has_tail else end_position
        queues.rewind(stop_position, min_position)
        if queues.state() == remembered and applied_position == stop_position:
            return stop_position
        logger.warning("the queue files are not the ones of the last stop; filling them again from the log")
    elif present_count >= count:
        # What markers there say is lost must be taken in.
        position, _ = marker_bounds(log, max(min_position, min(applied_position, end_position)))
        queues.rewind(position, min_position)
        # Not before: of what came later a power cut leaves any file, and not the one before it.
        if not starts_record(log, position):
            logger.warning("the queue files are not those of this log; filling them again from the log")
        elif not are_whole(queues):
            logger.warning("queue files have been cut; filling all of them again from the log")
        elif position == applied_position and is_missing_entries(queues, remembered):
            logger.warning("queue entries are missing; filling all of them again from the log")
        elif not has_torn_end(log, queues):
            if position < applied_position:
                # For the same reason as the checkpoint.
                queues.write_state(queues.state())
            return position
        else:
            logger.warning("a queue file was torn; filling all of them again from the log")
    else:
        logger.warning("queue files are missing; filling all of them again from the log")
    if queues.queues():
        # Before they are gone: they know best what stood where the log is damaged.
        repair.ensure(min_position)
    queues.clear(min_position)
    return min_position


def are_whole(queues: ConsumeQueue) -> bool:
    """Return whether no file but the last of each queue has lost its end."""
    return all(queue.is_whole() for queue in queues.queues())


def is_missing_entries(queues: ConsumeQueue, remembered: tuple[int, int, int]) -> bool:
    """Whether there are fewer than remembered: what stands behind a damaged entry was taken for the future.

    There may be more, of queues that were about to be forgotten.
    """
    _, count, offsets = queues.state()
    return count < remembered[1] or offsets < remembered[2]


def has_torn_end(log: CommitLog, queues: ConsumeQueue) -> bool:
    """Whether a queue ends with an entry that only half reached the disk, and so looks older than it is.

    That takes an entry with its position, or the first half of it, in a disk sector that was lost and its
    size in one that was not: two entries in 128, so looking at their records costs next to nothing.
    """
    for queue in queues.queues():
        offset = queue.max_offset - 1
        if offset < queue.min_offset or not queue.is_entry_split(offset):
            continue
        entry = queue.entry(offset)
        if entry is None or entry[1] == FILLER_SIZE:
            continue
        view = log.read_record(entry[0], log.appended_position)
        if view is None:
            return True
        record = decode_record(view)
        if (record.topic, record.queue_id, record.queue_offset) != (queue.topic, queue.queue_id, offset):
            return True
    return False
