"""Repair a damaged log: keep a copy of the bad bytes, report which records are lost, write markers over them.

`commitlog.damage/` beside the log has two files for every damaged range: `START-END.bin` with a copy of its
bytes, and `START-END.json` with the report. The directory is bounded; ranges past its limits are only logged.
The markers (`log_cover.pyx`) are records themselves, so readers of the log pass over the range.

A repair that a power cut ends early is repeated by the next start, which finds the rest of the range still
damaged. Queue files stay as they are: their entries of lost records point to markers, which readers skip.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iotmq.files import replace_file
from iotmq.store.projections.log_scan import scan, starts_record
from iotmq.store.recovery.log_cover import cover

if TYPE_CHECKING:
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.projections.catch_up import CatchUpProgress
    from iotmq.store.queues.consume_queue import ConsumeQueue

# The log is checked in pieces of about this size.
CHECKED_PIECE_BYTES = 8 << 20
# So much is compared with zeros at a time.
PIECE_BYTES = 65_536
_ZEROS = bytes(PIECE_BYTES)
# Limits of the directory: bytes kept of one range and of all, and the number of ranges with a report.
KEPT_BYTES_MAX = 16 << 20
KEPT_BYTES_TOTAL_MAX = 256 << 20
KEPT_RANGES_MAX = 1000
# Losses, a range of offsets each, in one report and in one log line.
LOSSES_MAX = 1000
LOSSES_LOGGED_MAX = 20

logger = logging.getLogger("iotmq.store")


class Loss(msgspec.Struct, frozen=True, order=True):
    """Offsets of a queue whose records are gone; `last_offset` is one of them."""

    topic: str
    queue_id: int
    first_offset: int
    last_offset: int

    def topic_bytes(self) -> bytes:
        """Return the topic as records have it."""
        return self.topic.encode("utf-8", "surrogateescape")


class Damage(msgspec.Struct, frozen=True):
    """A range of the log whose records are lost.

    `kind`: "damaged" for bytes that were on the disk and are not valid records now, "torn" for an end of the
    log that was cut off, "gap" for queue offsets that are missing though no bytes are damaged. `lost` has
    what is known of the lost records; there may be more. `kept` is the file with the first `kept_bytes` of
    the range, relative to the data directory.
    """

    kind: str
    start_position: int
    end_position: int
    lost: tuple[Loss, ...] = ()
    kept: str = ""
    kept_bytes: int = 0


class DamageRepair:
    """Finds damaged ranges of a log and repairs them. On the thread that owns the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueue,
        keeper: DamageKeeper,
        sync_file: Callable[[int], object],
    ) -> None:
        self._log = log
        self._queues = queues
        self._keeper = keeper
        self._sync_file = sync_file
        self._found: list[Damage] = []
        # What `verify` has checked last below the log's `checked_position`.
        self._checked_from = self._checked_to = -1

    def found(self) -> tuple[Damage, ...]:
        """Return all damage found, in the order of the log."""
        return tuple(sorted(self._found, key=lambda damage: (damage.start_position, damage.end_position)))

    def check(self, start_position: int, stop_position: int, progress: CatchUpProgress | None = None) -> int:
        """Check and repair [start_position, stop_position), all of which was flushed once.

        Returns where the next record starts; raises OSError.
        """
        position = start_position
        while position < stop_position:
            ranges, position = scan(
                self._log, position, stop_position, min(position + CHECKED_PIECE_BYTES, stop_position)
            )
            self.cover(ranges)
            if progress is not None:
                progress("commitlog", position, stop_position)
        return position

    def verify(self, position: int) -> int:
        """Check and repair the next piece of the log for a reader at `position`; return where the piece ends.

        For readers below the log's `checked_position`, such as projections that catch up. Raises OSError.
        """
        log = self._log
        if not self._checked_from <= position < self._checked_to:
            start_position = position
            if position != self._checked_to:
                if not starts_record(log, position):
                    # A wrong position must not make damage of the record that it is inside of.
                    start_position = log.segments_between(position, position + 1)[0].start_position
                self._checked_from = start_position
            ranges, self._checked_to = scan(
                log,
                start_position,
                log.checked_position,
                min(position + CHECKED_PIECE_BYTES, log.checked_position),
            )
            self.cover(ranges)
        reached = self._checked_to
        if reached >= log.checked_position:
            log.checked_position = self._checked_from
        return reached

    def ensure(self, position: int) -> None:
        """Check and repair everything from `position` on; raises OSError."""
        while position < self._log.checked_position:
            position = self.verify(position)

    def cover(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Repair damaged ranges: keep their bytes, report them, write markers over them. Raises OSError."""
        for start_position, end_position in ranges:
            with self._log.bytes_between(start_position, end_position) as data:
                damage = self._keep("damaged", data, start_position, end_position)
            cover(
                self._log,
                start_position,
                end_position,
                [(each.topic_bytes(), each.queue_id, each.first_offset, each.last_offset + 1)
                 for each in damage.lost],
                self._log.last_store_timestamp_ms,
            )  # fmt: skip
        if ranges:
            for segment in self._log.segments_between(ranges[0][0], ranges[-1][1]):
                segment.sync(self._sync_file)

    def keep_tail(self, end_position: int) -> None:
        """Keep and report the bytes behind the end of the log, which are about to be cut off."""
        for segment in self._log.segments_between(end_position, 1 << 62):
            start_position = max(end_position, segment.start_position)
            with self._log.bytes_between(start_position, segment.end_position) as data:
                if not is_blank(data):
                    self._keep("torn", data, start_position, segment.end_position)

    def take_gaps(self) -> None:
        """Report queue offsets that the queues, now level with the log, found missing."""
        for topic, queue_id, first, end, start_position, end_position in self._queues.take_gaps():
            loss = Loss(topic, queue_id, first, end - 1)
            for number, damage in enumerate(self._found):
                is_there = start_position < damage.end_position and damage.start_position < end_position
                if is_there and damage.kind == "damaged":
                    lost = tuple(sorted({*damage.lost, loss}))
                    found = self._found[number] = msgspec.structs.replace(damage, lost=lost)
                    break
            else:
                found = Damage("gap", start_position, end_position, (loss,))
                self._found.append(found)
            self._keeper.report(found)

    def _keep(self, kind: str, data: memoryview, start_position: int, end_position: int) -> Damage:
        """Keep and report a range, with its lost records as the queues have them."""
        kept = self._keeper.keep(kind, data, start_position, end_position)
        damage = msgspec.structs.replace(kept, lost=self._losses_between(start_position, end_position))
        self._keeper.report(damage)
        self._found.append(damage)
        return damage

    def _losses_between(self, start_position: int, end_position: int) -> tuple[Loss, ...]:
        """Find the lost records of a range by the entries of the queues."""
        losses = []
        for queue in self._queues.queues():
            first, end = queue.found_between(start_position, end_position)
            if first < end:
                losses.append(Loss(queue.topic, queue.queue_id, first, end - 1))
        return tuple(sorted(losses))


class DamageKeeper:
    """Keeps copies of damaged bytes and writes the reports, below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The content of the directory: bytes, -1 until they are first needed, and reports.
        self._bytes = -1
        self._count = 0

    def keep(self, kind: str, data: memoryview, start_position: int, end_position: int) -> Damage:
        """Write a copy of a range as far as there is room; a failure is only logged."""
        self._measure()
        # Trailing zeros say nothing about what was lost.
        kept = bytes(data[: max(0, min(KEPT_BYTES_MAX, KEPT_BYTES_TOTAL_MAX - self._bytes))]).rstrip(b"\0")
        if not kept or self._count >= KEPT_RANGES_MAX:
            return Damage(kind, start_position, end_position)
        path = self._path(start_position, end_position, "bin")
        try:
            self.directory.mkdir(exist_ok=True)
            replace_file(path, kept)
        except OSError as error:
            logger.warning("cannot keep the damaged bytes in %s: %s", path, error)
            return Damage(kind, start_position, end_position)
        self._bytes += len(kept)
        return Damage(
            kind,
            start_position,
            end_position,
            kept=f"{self.directory.name}/{path.name}",
            kept_bytes=len(kept),
        )

    def report(self, damage: Damage) -> None:
        """Write a range's report beside its bytes, over a former one, and log it."""
        named = [
            f"{loss.topic}/{loss.queue_id}:{loss.first_offset}..{loss.last_offset}"
            for loss in damage.lost[:LOSSES_LOGGED_MAX]
        ]
        if len(damage.lost) > LOSSES_LOGGED_MAX:
            named.append(f"and {len(damage.lost) - LOSSES_LOGGED_MAX} more queues")
        logger.error(
            "log damage: kind=%s start=%d end=%d bytes=%d kept=%s lost=%s",
            damage.kind,
            damage.start_position,
            damage.end_position,
            damage.end_position - damage.start_position,
            damage.kept or "-",
            ",".join(named) or "unknown",
        )
        self._measure()
        path = self._path(damage.start_position, damage.end_position, "json")
        if not path.exists():
            if self._count >= KEPT_RANGES_MAX:
                return
            self._count += 1
        try:
            self.directory.mkdir(exist_ok=True)
            bounded = msgspec.structs.replace(damage, lost=damage.lost[:LOSSES_MAX])
            replace_file(path, msgspec.json.format(msgspec.json.encode(bounded)) + b"\n")
        except OSError as error:
            logger.warning("cannot write %s: %s", path, error)

    def _path(self, start_position: int, end_position: int, suffix: str) -> Path:
        return self.directory / f"{start_position:020d}-{end_position:020d}.{suffix}"

    def _measure(self) -> None:
        if self._bytes >= 0:
            return
        self._bytes = self._count = 0
        if not self.directory.is_dir():
            return
        for entry in os.scandir(self.directory):
            self._bytes += entry.stat().st_size
            self._count += entry.name.endswith(".json")


def is_blank(data: memoryview) -> bool:
    """Return whether there are only zeros."""
    pieces = (data[at : at + PIECE_BYTES].tobytes() for at in range(0, len(data), PIECE_BYTES))
    return all(piece == _ZEROS[: len(piece)] for piece in pieces)
