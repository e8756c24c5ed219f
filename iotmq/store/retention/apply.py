"""Carrying out what retention decides: the log gets a new start, and everything derived from it follows.

In this order, because a crash may come between any two steps: what is derived is brought to the disk past
the new start; readers stop seeing the old segments; the removing thread deletes their files; when they
are gone, queue files and projections are trimmed to the start.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iotmq.errors import StoreError
from iotmq.metrics import Metric, samples, samples_by
from iotmq.store.projections.projection import DurableProjection, Projection, TrimmableProjection
from iotmq.store.queues.queue_begins import QueueBegins
from iotmq.store.retention.decide import (
    NO_LIMIT_POSITION,
    Decision,
    DiskUsage,
    decide,
    is_refusing_at,
    local_hour,
)
from iotmq.store.retention.delete_thread import Remover

if TYPE_CHECKING:
    from iotmq.store.log.segment import Segment
    from iotmq.store.recovery.opening import OpenedParts
    from iotmq.store.retention.decide import Machine
    from iotmq.store.settings import StoreSettings

# Between looks while something waits for one: a refusal to end, a file to be gone.
SOON_S = 1.0

logger = logging.getLogger("iotmq.store")


class _LogSegment:
    """A segment's age, looked up when asked for: the answer is in the next segment's first page."""

    def __init__(self, trimmer: Trimmer, segment: Segment, after: Segment) -> None:
        self._trimmer = trimmer
        self._segment = segment
        self._after = after
        self.end_position = segment.end_position
        self.disk_bytes = segment.allocated_bytes

    @property
    def stored_ms(self) -> int:
        return self._trimmer.stored_ms(self._segment, self._after)


class Trimmer:
    """Looks at ages and disks when it is time to, and trims the store. On the owner's thread."""

    def __init__(
        self,
        parts: OpenedParts,
        projections: Sequence[Projection],
        settings: StoreSettings,
        machine: Machine,
        *,
        forget: Callable[[Collection[str]], None],
        sync_queues: Callable[[QueueBegins], None],
    ) -> None:
        """`forget` is told the paths of files that go, for whoever keeps something of them. `sync_queues`,
        called in a thread with what the queues begin with now, brings their entries to the disk or raises
        OSError."""
        log, queues, clock = parts.log, parts.queues, machine.clock
        # Why appends are to be refused; None while they are not.
        self.refusal: str | None = None
        # The log would begin here if nobody held on to what is before; 0 when nobody is in the way.
        self.wanted_position = 0
        self.remover = Remover(log.min_position, pause_s=settings.delete_pause_ms / 1000)
        self._log = log
        self._queues = queues
        self._projections = projections
        self._settings = settings
        self._clock = clock
        log_directory = Path(log.directory)
        self._directories = _one_per_disk((log_directory, Path(queues.directory), log_directory.parent))
        self._forget = forget
        self._sync_queues = sync_queues
        self._read_usage = machine.read_usage
        self._usages: list[DiskUsage] = []
        self._has_usage_failed = False
        self._is_refusing = False
        self._is_asked = False
        self._protected_count = 0
        self._deleted_queue_files = 0
        # What queue files and projections were trimmed to; below the log's start before the first time.
        self._trimmed_position = -1
        self._failed_trims: set[str] = set()
        self._has_sync_failed = False
        # Store time of the last record by end position, of the segments looked at.
        self._stored_ms: dict[int, int] = {}
        self._due_s = clock.monotonic_s() + settings.retention_delay_ms / 1000
        self._refusal_due_s = self._due_s

    def run(
        self,
        *,
        safe_position: int,
        consumed_position: Callable[[], int | None] | None = None,
        held_position: Callable[[], int | None] | None = None,
        kept_position: Callable[[], int | None] | None = None,
    ) -> None:
        """Do what is due; costs next to nothing when nothing is.

        Nothing at or past `safe_position` is deleted. `consumed_position` gives the position before which
        everything was consumed by some group, None for all of it. `held_position` is asked when something
        is to be deleted: from there on somebody still needs the log, whatever happens. From `kept_position`
        on it stays, too, unless a disk is too full.
        """
        self._trim_derived()
        leaving = self.remover.leaving_paths
        if leaving:
            self._forget(leaving)
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            if self._is_refusing and now_s >= self._refusal_due_s:
                self._refusal_due_s = now_s + SOON_S
                self._look_at_disks()
            return
        self._due_s = now_s + self._settings.retention_interval_ms / 1000
        self._refusal_due_s = now_s + SOON_S
        decision = self._decide(safe_position, consumed_position, kept_position)
        self._note_decision(decision)
        allowed = self._without_held(decision, held_position)
        is_done = allowed.delete_count == 0 or self._delete(allowed)
        if not is_done:
            self._due_s = now_s
        if allowed is not decision:
            # Whoever holds on makes room, seeing `wanted_position`.
            is_done = False
            self._due_s = now_s + SOON_S
        self._is_asked = self._is_asked and (decision.has_more or not is_done)

    def change(self, settings: StoreSettings) -> None:
        """Apply other ages and percentages from now on, and look for files to delete at once."""
        self._settings = settings
        self._due_s = self._clock.monotonic_s()

    def ask(self) -> None:
        """Have the next `run` look, and delete what is past its age at any hour."""
        self._is_asked = True
        self._due_s = self._clock.monotonic_s()

    def stored_ms(self, segment: Segment, after: Segment) -> int:
        """Store time of a segment's last record, as far as known: the next record's is never earlier."""
        stored_ms = self._stored_ms.get(segment.end_position, 0)
        if stored_ms:
            return stored_ms
        stored_ms = self._log.first_store_timestamp_ms(after)
        if stored_ms == 0:
            try:
                stored_ms = int(Path(segment.path).stat().st_mtime * 1000)
            except OSError:
                # Kept rather than deleted for a reason nobody knows.
                return self._clock.now_ms()
        self._stored_ms[segment.end_position] = stored_ms
        return stored_ms

    def metrics(self) -> Iterable[Metric]:
        """Report the metrics of deletions, of what is kept, and of how full the disks are."""
        remover = self.remover
        yield from samples(
            ("iotmq_store_deleted_segments_total", "Log files deleted.", remover.removed_segments),
            ("iotmq_store_deleted_bytes_total", "Bytes of deleted log files.", remover.removed_bytes),
            (
                "iotmq_store_deleted_queue_files_total",
                "Queue files deleted behind the log.",
                self._deleted_queue_files,
            ),
            (
                "iotmq_store_leaving_bytes",
                "Bytes of log files on their way out: to be deleted, or held by a reader.",
                remover.leaving_bytes,
            ),
            (
                "iotmq_store_failed_deletions",
                "1 while the operating system refuses to delete a file.",
                float(remover.problem is not None),
            ),
            (
                "iotmq_store_protected_segments",
                "Log files past their age that are kept because some group has not consumed them.",
                self._protected_count,
            ),
            (
                "iotmq_store_refusing",
                "1 while records are refused because a disk is too full.",
                float(self._is_refusing),
            ),
        )
        ratios = {usage.path: usage.ratio for usage in self._usages}
        text = "Part of the disk in use, 1 for all of it."
        yield from samples_by("path", "iotmq_store_disk_used_ratio", text, ratios)

    def _decide(
        self,
        safe_position: int,
        consumed_position: Callable[[], int | None] | None,
        kept_position: Callable[[], int | None] | None,
    ) -> Decision:
        kept = None if kept_position is None else kept_position()
        now_ms = self._clock.now_ms()
        self._read_usages()
        segments = self._log.segment_list()
        appended_position = self._log.appended_position
        return decide(
            [
                _LogSegment(self, segment, after)
                for segment, after in itertools.pairwise(segments)
                if segment.end_position <= appended_position
            ],
            self._usages,
            self._settings,
            now_ms=now_ms,
            hour=local_hour(now_ms),
            is_refusing=self._is_refusing,
            is_asked=self._is_asked,
            limit_position=safe_position,
            consumed_position=self._kept_from(consumed_position),
            kept_position=NO_LIMIT_POSITION if kept is None else kept,
            leaving_bytes=self.remover.leaving_bytes,
        )

    def _without_held(self, decision: Decision, held_position: Callable[[], int | None] | None) -> Decision:
        """Return the decision, or one that deletes less: what somebody still needs stays."""
        self.wanted_position = 0
        if decision.delete_count == 0 or held_position is None:
            return decision
        segments = self._log.segment_list()
        position = held_position()
        count = decision.delete_count
        if position is not None:
            while count and segments[count - 1].end_position > position:
                count -= 1
        if count == decision.delete_count:
            return decision
        self.wanted_position = segments[decision.delete_count - 1].end_position
        return decision._replace(delete_count=count)

    def _kept_from(self, consumed_position: Callable[[], int | None] | None) -> int:
        """From here on something is still wanted: by a group, or by a projection that stays behind."""
        position = min(
            (projection.applied_position for projection in self._projections), default=NO_LIMIT_POSITION
        )
        if consumed_position is not None and self._settings.protect_unconsumed:
            consumed = consumed_position()
            if consumed is not None:
                position = min(position, consumed)
        return position

    def _read_usages(self) -> None:
        """A disk that does not answer is neither full nor empty: what was known of it stays."""
        try:
            self._usages = [self._read_usage(directory) for directory in self._directories]
            self._has_usage_failed = False
        except OSError as error:
            if not self._has_usage_failed:
                self._has_usage_failed = True
                logger.warning("cannot ask how full the disk is: %s", error)

    def _look_at_disks(self) -> None:
        """Only whether appends may go on."""
        self._read_usages()
        self._note_refusal(is_refusing_at(self._usages, self._settings, is_refusing=self._is_refusing))

    def _note_decision(self, decision: Decision) -> None:
        self._note_refusal(decision.is_refusing)
        if decision.protected_count and not self._protected_count:
            logger.warning(
                "%d log files past their age are kept until the disk is %d %% full: not everything in them "
                "was consumed, or a projection has not seen it",
                decision.protected_count,
                self._settings.disk_force_percent,
            )
        self._protected_count = decision.protected_count

    def _note_refusal(self, is_refusing: bool) -> None:
        settings = self._settings
        if is_refusing:
            fullest = max(self._usages, key=lambda usage: usage.ratio)
            self.refusal = (
                f"the disk of {fullest.path} is {fullest.ratio:.1%} full: past store.disk_full_percent = "
                f"{settings.disk_full_percent} no records are taken, until it is at "
                f"store.disk_force_percent = {settings.disk_force_percent} or less"
            )
            if not self._is_refusing:
                logger.error("%s", self.refusal)
        elif self._is_refusing:
            self.refusal = None
            logger.warning("the disk has room again: records are taken")
        self._is_refusing = is_refusing

    def _delete(self, decision: Decision) -> bool:
        """Return whether the log let go of them; False when it could not just now."""
        end_position = self._log.segment_list()[decision.delete_count - 1].end_position
        if not self._make_durable(end_position):
            return False
        removed = self._log.trim(end_position)
        if not removed:
            return False
        min_position = self._log.min_position
        self._queues.trim(min_position)
        for segment in removed:
            self._stored_ms.pop(segment.end_position, None)
        level = logging.WARNING if decision.reason == "forced" else logging.DEBUG
        logger.log(
            level,
            "deleting %d log files (%s); the log starts at %d now",
            len(removed),
            "the disk is too full to wait for their age" if decision.reason == "forced" else "past their age",
            min_position,
        )
        # Of a queue without records in the log only its files say where its offsets go on.
        begins = QueueBegins(min_position, self._queues.begins())
        self.remover.remove_segments(removed, prepare=partial(self._sync_queues, begins))
        return True

    def _make_durable(self, position: int) -> bool:
        """Return whether a crash would not ask the log for what is before `position`.

        Otherwise the projections that would are told to bring it to the disk; ask again a second later.
        """
        behind = [
            projection
            for projection in self._projections
            if isinstance(projection, DurableProjection)
            and projection.durable_position < min(position, projection.applied_position)
        ]
        for projection in behind:
            try:
                projection.begin_sync()
            except (StoreError, OSError) as error:
                if not self._has_sync_failed:
                    self._has_sync_failed = True
                    logger.warning("nothing is deleted: projection %s: %s", projection.name, error)
                return False
        self._has_sync_failed = False
        return all(
            projection.durable_position >= min(position, projection.applied_position) for projection in behind
        )

    def _trim_derived(self) -> None:
        """Bring queue files and projections behind the start of the log, once its files are gone."""
        position = self.remover.removed_position
        if position == self._trimmed_position:
            return
        self._trimmed_position = position
        paths = self._queues.take_passed_files()
        self._deleted_queue_files += len(paths)
        self._forget(set(paths))
        self.remover.remove_files(paths)
        for projection in self._projections:
            if not isinstance(projection, TrimmableProjection):
                continue
            try:
                leaving = projection.trim(position)
                self._failed_trims.discard(projection.name)
                if leaving is not None:
                    self._forget(set(leaving.paths))
                    self.remover.remove_leaving(leaving)
            except Exception:
                # It holds more than it needs; the next time may do better.
                if projection.name not in self._failed_trims:
                    self._failed_trims.add(projection.name)
                    logger.exception("projection %s could not be trimmed", projection.name)


def _one_per_disk(directories: Iterable[Path]) -> list[Path]:
    disks: dict[int, Path] = {}
    for directory in directories:
        disks.setdefault(directory.stat().st_dev, directory)
    return list(disks.values())
