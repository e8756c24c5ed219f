"""Bringing log and queues into agreement at the start, after a clean stop or after a crash.

The log decides. From a place that is known to be good its records are checked one by one. Bytes that are
no record are *damage* when anything behind them proves itself, in this segment or a later one, or when the
checkpoint says that they were on the disk: they are kept aside, reported, and covered by markers, and the
log goes on. They are the *torn tail* when nothing is left behind them: then the log ends there.

One thing looks like damage and is none: a process killed inside an append leaves a batch whose first size
is still zero, and whose other records stand there whole. That batch was never acknowledged and is cut off
as if nothing of it were there.

After a power cut a hole may be followed by records that were not promised yet. They are kept all the same:
their senders may have been told that they are stored. The queues then have fillers for what the hole held.

The queues keep the entries that were known to be on the disk; whatever came later is taken from the log
again (by the caller: a projection catches up from its `applied_position`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from iotmq.message.record import decode_record
from iotmq.store import fail_points
from iotmq.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from iotmq.store.damage import Damage, DamageKeeper, losses_between, repair_range
from iotmq.store.segment import write_again

if TYPE_CHECKING:
    from iotmq.store.commit_log import CommitLog
    from iotmq.store.consume_queue import ConsumeQueue
    from iotmq.store.key_index import KeyIndex
    from iotmq.store.segment import Segment

# Segments checked after a clean stop.
CLEAN_SEGMENTS = 3
# So much of the active file is checked although the checkpoint vouches for it.
CHECKED_AGAIN_BYTES_MAX = 128 << 20
# Clocks of a foreign checkpoint are trusted only this far.
TIMESTAMP_SLACK_MS = 3_000
# The size in an entry that stands for an offset without a record.
FILLER_SIZE = 0x7FFFFFFF

logger = logging.getLogger("iotmq.store")


class Recovery(NamedTuple):
    """What a start found. Positions are bytes of the log."""

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
) -> Recovery:
    """Check the log, cut off what is not whole, and take the queues back to what can be relied on.

    Afterwards everything in the log is on the disk. Raises OSError.
    """
    checkpoint = read_checkpoint(checkpoint_path)
    start_position = clean_start(log) if was_clean else crash_start(log, checkpoint)
    if checks_all:
        start_position = log.min_position
    keeper = DamageKeeper(checkpoint_path.with_name("commitlog.damage"))
    damages, end_position = repair_log(
        log, queues, keeper, start_position, checkpoint_path, checkpoint, was_clean=was_clean
    )
    fail_points.reach("recovery-log-checked")
    log.cut()
    fail_points.reach("recovery-log-cut")
    if not was_clean:
        # The last run may have ended because a sync failed: what was found may be in memory only.
        flushed_position = start_position if checkpoint is None else checkpoint.position or start_position
        for segment in log.segments_between(flushed_position, end_position):
            write_again(
                segment,
                max(0, flushed_position - segment.start_position),
                min(segment.allocated_bytes, end_position - segment.start_position),
            )
    queues_position, is_rebuilt = queues_start(log, queues, was_clean=was_clean)
    if queues_position < start_position:
        # Nobody has looked at what the queues are to be filled from.
        ranges, _ = log.scan(queues_position, start_position)
        damages = [repair_range(log, queues, keeper, *each) for each in ranges] + damages
    log.checked_position = min(start_position, queues_position)
    # The last segment too if it is empty: what was cut off must not come back.
    for segment in log.segments_between(log.checked_position, end_position + 1):
        segment.sync(sync_file)
    for segment in log.segment_list()[:-1]:
        log.release_descriptor(segment)
    if is_rebuilt:
        queues.clear(queues_position)
    else:
        rewind_queues(log, queues, queues_position, damages)
    fail_points.reach("recovery-queues-rewound")
    if checkpoint is not None and checkpoint.position is not None and checkpoint.position > end_position:
        # It would become a false statement as soon as the log grows past it with other records.
        write_checkpoint(checkpoint_path, checkpoint._replace(position=end_position))
    prepare_files(queues, checkpoint_path)
    return Recovery(was_clean, start_position, end_position, queues_position, tuple(damages))


def repair_log(
    log: CommitLog,
    queues: ConsumeQueue,
    keeper: DamageKeeper,
    start_position: int,
    checkpoint_path: Path,
    checkpoint: Checkpoint | None,
    *,
    was_clean: bool,
) -> tuple[list[Damage], int]:
    """Check the log from `start_position` on, cover what is damaged, and settle its end; returns both.

    Below the checkpoint's position the log is known to have had records.
    """
    durable_position = 0 if checkpoint is None or checkpoint.position is None else checkpoint.position
    ranges, end_position = scan_back(log, start_position, durable_position)
    if ranges and not was_clean and is_open_batch(log, queues, *ranges[-1], end_position, durable_position):
        end_position, _ = ranges.pop()
        is_torn = False
    else:
        is_torn = True
        if end_position < durable_position and not log.is_new:
            ranges += missing_tail(log, end_position, durable_position)
    for range_start, range_end in ranges:
        if checkpoint is not None and range_start < durable_position < range_end:
            # A start may check from the checkpoint's position on, which must not be inside a marker.
            write_checkpoint(checkpoint_path, checkpoint._replace(position=range_start))
    damages = [repair_range(log, queues, keeper, *each) for each in ranges]
    if ranges:
        end_position = max(end_position, ranges[-1][1])
    if is_torn:
        damages += torn_tail(log, keeper, end_position)
    log.end_at(end_position)
    return damages, end_position


def scan_back(
    log: CommitLog, start_position: int, durable_position: int
) -> tuple[list[tuple[int, int]], int]:
    """Scan from `start_position`, and from further back as long as nothing there proves itself."""
    starts = [
        segment.start_position for segment in log.segment_list() if segment.start_position < start_position
    ]
    step = 1
    while True:
        ranges, end_position = log.scan(start_position)
        if end_position > start_position or not starts or start_position == durable_position:
            return ranges, end_position
        start_position = starts[-step] if step <= len(starts) else starts[0]
        del starts[-step:]
        step *= 2


def is_open_batch(
    log: CommitLog,
    queues: ConsumeQueue,
    hole_start: int,
    hole_end: int,
    end_position: int,
    durable_position: int,
) -> bool:
    """Whether what stands from a hole to the end of the log is the batch the process was killed in.

    Its first size is stored last, so it is zero; behind the hole is nothing but the rest of one batch; and
    no queue has an entry of it, which is made after the append.
    """
    if hole_start < durable_position or any(log.bytes_between(hole_start, hole_end)[:4]):
        return False
    if log.batch_queue(hole_end, end_position) is None:
        return False
    return not losses_between(queues, hole_start, end_position)


def missing_tail(log: CommitLog, end_position: int, durable_position: int) -> list[tuple[int, int]]:
    """The ranges between the end of the records and where the checkpoint says they ended."""
    ranges = [
        (max(end_position, segment.start_position), min(durable_position, segment.end_position))
        for segment in log.segments_between(end_position, durable_position)
    ]
    return ranges + log.extend(durable_position)


def torn_tail(log: CommitLog, keeper: DamageKeeper, end_position: int) -> list[Damage]:
    """Keep and report what is cut off behind the end of the log, but for a batch never finished."""
    torn = []
    for segment in log.segments_between(end_position, 1 << 62):
        start_position = max(end_position, segment.start_position)
        data = log.bytes_between(start_position, segment.end_position)
        # A size of zero: an append that did not come to its end, or nothing at all.
        if any(data[:4]):
            damage = keeper.keep("torn", data, start_position, segment.end_position)
            keeper.report(damage)
            torn.append(damage)
    return torn


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


def prepare_files(queues: ConsumeQueue, checkpoint_path: Path) -> None:
    """Have the small files that are rewritten in place, so that a stop on a full disk can be a clean one."""
    try:
        if queues.read_state() is None:
            queues.write_state((queues.applied_position, 0, 0))
        if not checkpoint_path.exists():
            write_checkpoint(checkpoint_path, Checkpoint(0, 0, 0, 0))
    except OSError as error:
        logger.warning("cannot write %s: %s", checkpoint_path, error)


def clean_start(log: CommitLog) -> int:
    """After a clean stop only the last few segments are checked."""
    segments = log.segment_list()
    return segments[-min(CLEAN_SEGMENTS, len(segments))].start_position


def crash_start(log: CommitLog, checkpoint: Checkpoint | None) -> int:
    """Start of the last segment that holds nothing, or little, from after the checkpoint."""
    segments = log.segment_list()
    if checkpoint is None:
        return segments[0].start_position
    if checkpoint.position is not None:
        return checked_start(segments, checkpoint.position)
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


def queues_start(log: CommitLog, queues: ConsumeQueue, *, was_clean: bool) -> tuple[int, bool]:
    """From where the queues have to be filled again, and whether from nothing."""
    min_position, end_position = log.min_position, log.appended_position
    remembered = queues.read_state()
    if remembered is None:
        return min_position, True
    applied_position, count, offsets = remembered
    # Before `rewind` these are the ones found on the disk.
    present_count = len(queues.queues())
    if was_clean:
        queues.rewind(end_position, min_position)
        if queues.state() == (end_position, count, offsets) and applied_position == end_position:
            return end_position, False
        logger.warning("the queue files are not the ones of the last stop; filling them again from the log")
        return min_position, True
    if present_count >= count:
        position = log.record_start(max(min_position, min(applied_position, end_position)))
        queues.rewind(position, min_position)
        if not has_torn_end(log, queues):
            return position, False
        logger.warning("a queue file was torn; filling all of them again from the log")
    else:
        logger.warning("queue files are missing; filling all of them again from the log")
    return min_position, True


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


def rewind_queues(log: CommitLog, queues: ConsumeQueue, position: int, damages: list[Damage]) -> None:
    """Take the queues back to `position`, and out of them what is lost before it."""
    remembered = queues.read_state()
    queues.rewind(position, log.min_position)
    for damage in damages:
        for loss in damage.lost:
            queue = queues.find_queue(loss.topic, loss.queue_id)
            if queue is not None:
                queues.void(queue, loss.first_offset, loss.last_offset + 1)
    if remembered is not None and position < remembered[0]:
        # For the same reason as the checkpoint.
        queues.write_state(queues.state())
