"""The store: one data directory, its log, the queues derived from it, and the threads that serve them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from iotmq.clock import Clock, SystemClock
from iotmq.errors import StoreError
from iotmq.metrics import Metric, samples
from iotmq.store import fail_points
from iotmq.store.checks.check import check_store
from iotmq.store.checks.index_check import check_index
from iotmq.store.files.flushed_position import FlushedPosition
from iotmq.store.files.lock import DirectoryLock
from iotmq.store.log.allocation import AheadAllocator
from iotmq.store.log.commit_log import Appended, CommitLog
from iotmq.store.log.flush import Flusher
from iotmq.store.log.queue import Queue
from iotmq.store.projections.catch_up import CatchUpProgress
from iotmq.store.projections.dispatch import Dispatch
from iotmq.store.projections.projection import Projection
from iotmq.store.projections.projections import Projections
from iotmq.store.queues.queue_begins import BEGINS_NAME, BeginsFile, QueueBegins
from iotmq.store.reader import StoreReader
from iotmq.store.recovery.checkpoint import Checkpointer
from iotmq.store.recovery.opening import CHECKPOINT_NAME, OpenedParts, locked, open_parts
from iotmq.store.recovery.write_state import WriteState, is_of_one_queue
from iotmq.store.replication.flushed_waiters import FlushedWaiters
from iotmq.store.replication.raw import append_raw, start_at
from iotmq.store.replication.tail import cut_log, is_boundary, number_on
from iotmq.store.retention.apply import Trimmer
from iotmq.store.retention.decide import DiskUsage, Machine, read_disk_usage
from iotmq.store.settings import StoreSettings

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from iotmq.store.kv.kv import KeyValueStore
    from iotmq.store.kv.timer_index import TimerIndex

P = TypeVar("P", bound=Projection)

logger = logging.getLogger("iotmq.store")


class Store(StoreReader):
    """A data directory opened for appending and reading. One thread owns it and calls everything here.

    Records become readable when they are *confirmed*: as durable as `settings.flush` promises, and in
    their queue. Under async flush that is before `append` returns; under sync flush the flush thread
    calls `on_flushed`, and the owner's call of `advance` confirms. A store that was opened with
    `confirmed_limit` confirms nothing past it: `raise_confirmed_limit`, then `advance`.
    """

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        parts: OpenedParts,
        machine: Machine,
        *,
        lock: DirectoryLock,
        confirmed_limit: int | None,
    ) -> None:
        """Use `Store.open`."""
        log, queues, index = parts.log, parts.queues, parts.index
        checkpoint_path = directory / CHECKPOINT_NAME
        projections: list[Projection] = [] if index is None else [index]
        dispatch = Dispatch(
            log, queues, projections, parts.recovery.queues_from_position, parts.repair.verify
        )
        # Topic -> the position its readers begin at, of those told to `hide_topic`.
        self._hidden: dict[str, int] = {}
        super().__init__(
            parts,
            dispatch,
            Projections(log, queues, dispatch, settings, directory=directory, verify=parts.repair.verify),
            settings,
            clock=machine.clock,
            hidden=self._hidden,
        )
        self.directory = directory
        self.settings = settings
        self.recovery = parts.recovery
        # Called in the flush thread after flushed_position moved or a flush failed; set by the owner.
        self.on_flushed: Callable[[], None] | None = None
        # Called when something was appended here, once for a run; set by the owner.
        self.on_appended: Callable[[], None] | None = None
        # The position before which some group has consumed everything, None for all; asked by `retain`.
        self.consumed_position: Callable[[], int | None] | None = None
        # The position from which on the log must not be deleted, None for none; asked by `retain`.
        self.held_position: Callable[[], int | None] | None = None
        # The position from which on the log is kept until a disk is too full, None for none.
        self.kept_position: Callable[[], int | None] | None = None
        self._is_sync = settings.flush == "sync"
        # Nothing from there on is confirmed; None without replication.
        self._confirmed_limit = confirmed_limit
        # An append is confirmed by a later call of `advance` only.
        self.confirms_later = self._is_sync or confirmed_limit is not None
        self._sync_file = machine.sync_file
        self._lock = lock
        self._abort = parts.abort
        self._repair = parts.repair
        self._queues = queues
        self._is_closed = False
        self._flushed_mark = FlushedPosition(checkpoint_path)
        self._flusher = Flusher(
            log,
            settings,
            sync_file=machine.sync_file,
            on_flushed=self._flushed,
            mark=self._flushed_mark.move,
        )
        self._refusals = WriteState(machine.clock, self._flusher)
        self._checkpointer = Checkpointer(
            checkpoint_path,
            queues,
            index,
            interval_s=settings.checkpoint_interval_ms / 1000,
            flushed=self._flusher.flushed,
            sync_file=machine.sync_file,
        )
        self._begins = BeginsFile(directory / BEGINS_NAME)
        self._allocator = AheadAllocator(log.make_room_ahead)
        self._trimmer = Trimmer(
            parts,
            projections,
            settings,
            machine,
            forget=self._cold_pages.forget,
            sync_queues=self._sync_queues,
        )
        self._flushed_waiters = FlushedWaiters()
        # Positions to hide up to again once everything before the first number is in its queue, in order.
        self._late_hides: list[tuple[int, Mapping[str, int]]] = []
        # Bound once: append is called for every batch.
        self._append = log.append
        self._run_dispatch = self._dispatch.run
        # Taken back while many appends follow each other, after which `advance` dispatches all of them.
        self.is_dispatching = True

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: StoreSettings,
        *,
        store_host: bytes,
        clock: Clock | None = None,
        sync_file: Callable[[int], object] = os.fdatasync,
        read_usage: Callable[[Path], DiskUsage] = read_disk_usage,
        progress: CatchUpProgress | None = None,
        checks_all: bool = False,
        confirmed_limit: int | None = None,
    ) -> Store:
        """Open `directory`, made when missing, and bring everything in it into agreement.

        `store_host` (8 or 20 bytes) is the broker's advertised address, which records carry; `sync_file`
        is what brings a file descriptor's data to the disk, `read_usage` asks how full a directory's disk
        is, `progress` is told how far projections are that have to go through the log. With
        `checks_all` every record of the log is checked, not only the newest. `confirmed_limit` is for a log
        that is replicated: a position that was confirmed in a former run, and past which nothing is shown
        before `raise_confirmed_limit` allows it. Raises
        StoreLockedError when another process has the directory, StoreCorruptError, StoreFullError, and
        StoreError for other refusals of the operating system.
        """
        with locked(directory) as lock:
            parts = open_parts(
                directory,
                settings,
                store_host=store_host,
                sync_file=sync_file,
                progress=progress,
                checks_all=checks_all,
                has_tail=confirmed_limit is not None,
            )
            store = cls(
                directory,
                settings,
                parts,
                Machine(clock or SystemClock(), sync_file, read_usage),
                lock=lock,
                confirmed_limit=confirmed_limit,
            )
            store._bring_level(progress)
        return store

    @property
    def appended_position(self) -> int:
        """End of the log."""
        return self._log.appended_position

    @property
    def flushed_position(self) -> int:
        """Below it everything is on the disk."""
        return self._flusher.flushed_position

    @property
    def min_position(self) -> int:
        """Position of the first byte that is still stored."""
        return self._log.min_position

    @property
    def gone_position(self) -> int:
        """The log's files before it are deleted for good: a crash can take the log's start back to here."""
        return self._trimmer.remover.removed_position

    @property
    def failure(self) -> str | None:
        """Return why the store takes no more records until it is opened again; None while it does."""
        return self._refusals.failure

    @property
    def refusal(self) -> str | None:
        """Return why no records are taken although nothing is broken.

        A disk is too full; None while they are.
        """
        return self._trimmer.refusal

    @property
    def append_refusal(self) -> str | None:
        """Return why no records are taken just now, for whatever reason; None while they are."""
        return self._refusals.reason or self.refusal

    def queue(self, topic: str, queue_id: int) -> Queue:
        """The handle of a queue, made on first use and kept; StoreError for a name that cannot be stored."""
        return self._queues.queue(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return the handle of a queue if there is one."""
        return self._queues.find_queue(topic, queue_id)

    def queues(self) -> list[Queue]:
        """Return every queue there is."""
        return self._queues.queues()

    def hide_topics(self, positions: Mapping[str, int]) -> None:
        """Let all queues of topics begin at positions not past the log's end: what is before is hidden.

        Not remembered: to be said again after each start. Offsets go on, so that none ever means two records.
        """
        self._hidden.update(positions)
        self._hide(positions)
        end_position = max(positions.values(), default=0)
        if end_position > self.confirmed_position:
            # What is on its way to the queues belongs to it; flushed does not mean that it is there already.
            self._late_hides.append((end_position, positions))

    def remove_queues(self, topics: Collection[str]) -> set[str]:
        """Forget the queues of those topics that the log has no records of any more; returns which.

        Nobody may have a handle of them in use. Raises StoreError when the files cannot be deleted.
        """
        gone_position = self.gone_position
        queues = [queue for queue in self._queues.queues() if queue.topic in topics]
        kept = {queue.topic for queue in queues if queue.watched or not queue.is_behind(gone_position)}
        try:
            self._queues.remove([queue for queue in queues if queue.topic not in kept])
        except OSError as error:
            raise StoreError(f"queue files cannot be deleted: {error}") from error
        removed = set(topics) - kept
        for topic in removed:
            self._hidden.pop(topic, None)
        self._begins.forget(removed)
        return removed

    def append(
        self,
        queue: Queue,
        elements: Buffer,
        *,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_position: int = 0,
        batch_properties: bytes = b"",
    ) -> Appended:
        """Append one record for each element of a batch body, all or none.

        Each gets its own properties followed by `batch_properties`. Raises MessageFormatError for a
        broken batch, RecordTooLargeError, StoreFullError (try again later), StoreReadOnlyError.
        """
        if self._refusals.current is not None or self._flusher.failure is not None:
            self._refusals.check()
        try:
            appended = self._append(
                queue,
                elements,
                store_timestamp_ms=self._store_time_ms(),
                born_timestamp_ms=born_timestamp_ms,
                born_host=born_host,
                sys_flag=sys_flag,
                reconsume_times=reconsume_times,
                prepared_position=prepared_position,
                batch_properties=batch_properties,
            )
        except OSError as error:
            if is_of_one_queue(error, self._queues.directory):
                raise self._refusals.of_one_queue(error) from error
            raise self._refusals.of_allocation(error) from error
        self.end_appends()
        if self.is_dispatching and not self.confirms_later:
            self._run_dispatch(self._log.appended_position)
        return appended

    @property
    def log(self) -> CommitLog:
        """The log, for compiled code that appends many batches between `begin_appends` and `end_appends`."""
        return self._log

    def begin_appends(self) -> int:
        """The store time for appends made through `log`; -1 while they may be refused: `append` knows."""
        if self._refusals.current is not None or self._flusher.failure is not None:
            return -1
        return self._store_time_ms()

    def end_appends(self) -> None:
        """Do for what was appended what follows an append: room ahead, and flushing where that was promised.

        Where it was not, `advance` dispatches it; until then no queue has it.
        """
        if self._log.is_room_low:
            self._allocator.request()
        if self._is_sync:
            self._flusher.request()
        if self.on_appended is not None:
            self.on_appended()

    def advance(self) -> int:
        """Confirm what the durability promise now allows; returns `confirmed_position`."""
        end_position = self._flusher.flushed_position if self._is_sync else self._log.appended_position
        if self._confirmed_limit is not None:
            end_position = min(end_position, self._confirmed_limit)
        if end_position > self.confirmed_position:
            self._run_dispatch(end_position)
            while self._late_hides and self._late_hides[0][0] <= self.confirmed_position:
                self._hide(self._late_hides.pop(0)[1])
        if self._flushed_waiters:
            self._call_flushed_waiters()
        return self.confirmed_position

    @property
    def is_replicated(self) -> bool:
        """Return whether others say what is confirmed (`confirmed_limit`)."""
        return self._confirmed_limit is not None

    def raise_confirmed_limit(self, position: int) -> None:
        """Let `advance` confirm what is before `position`; a lower one than before changes nothing."""
        assert self._confirmed_limit is not None, "the store was opened without a limit"
        self._confirmed_limit = max(self._confirmed_limit, position)

    def cut(self, position: int) -> None:
        """Remove the log from `position` on, for good: no crash after the return brings any of it back.

        Nothing of it was confirmed, so that no queue and no projection has it; offsets that its records had
        are given out again. Waits for the disk. Raises ValueError when `position` is confirmed already, or
        no record ends there; StoreReadOnlyError when the disk does not take it, and then the store takes no
        more records until it is opened again.
        """
        confirmed_position = self.confirmed_position
        if not confirmed_position <= position <= self.appended_position or not is_boundary(
            self._log, confirmed_position, position
        ):
            raise ValueError(
                f"the log, confirmed up to {confirmed_position}, cannot be cut at position {position}"
            )
        if position == self.appended_position:
            return
        # A sync of what is removed would move the flushed position past the end.
        self._flusher.stop()
        self._flusher.flush()
        self._refusals.check()
        try:
            fail_points.reach("cut-begun")
            self._flushed_mark.move_back(position)
            fail_points.reach("cut-announced")
            cut_log(self._log, position, self._sync_file)
            fail_points.reach("cut-done")
        except OSError as error:
            raise self._refusals.of_cut(error) from error
        number_on(self._log, self._queues, confirmed_position, position)
        self._late_hides = [(min(end, position), hides) for end, hides in self._late_hides]
        self._flusher.start_again(position)
        for callback in self._flushed_waiters.take_all():
            callback()

    def catch_up(self) -> None:
        """Give what is confirmed to projections that fell behind it, say because their disk refused; once."""
        self._run_dispatch(self.confirmed_position)

    def request_flush(self) -> None:
        """Have everything appended so far flushed soon."""
        self._flusher.request()

    def retain(self) -> None:
        """Do what retention finds due; to be called about every second.

        Lets go of log files past their age and of what was derived from them, and sees to it that a disk
        too full refuses appends in time. Files are deleted in a thread.
        """
        if self._is_closed:
            return
        if self._projections.is_behind:
            # A database opened again after a full disk; nobody may append before something is deleted.
            self.catch_up()
        self._trimmer.run(
            safe_position=min(self._flusher.flushed_position, self.confirmed_position),
            consumed_position=self.consumed_position,
            held_position=self.held_position,
            kept_position=self.kept_position,
        )
        self._refusals.follow_disk(self._trimmer.refusal)

    @property
    def wanted_position(self) -> int:
        """Return where retention would have the log begin if `held_position` let it; 0 when it does."""
        return self._trimmer.wanted_position

    def taking_moved(self) -> AbstractContextManager[None]:
        """In here a disk past its watermark refuses no appends: copies of what holds old files back.

        They are what lets these files go. A disk that is really full still refuses.
        """
        return nullcontext() if self._is_closed else self._refusals.lifted()

    def change_retention(self, settings: StoreSettings) -> None:
        """Go by the ages and percentages of other settings from now on; nothing else of them counts."""
        self.settings = msgspec.structs.replace(
            self.settings,
            retention_hours=settings.retention_hours,
            delete_hour=settings.delete_hour,
            disk_delete_percent=settings.disk_delete_percent,
            disk_force_percent=settings.disk_force_percent,
            disk_full_percent=settings.disk_full_percent,
            protect_unconsumed=settings.protect_unconsumed,
        )
        self._trimmer.change(self.settings)

    def delete_expired(self) -> None:
        """Delete what is past its age now, whatever the hour; a pass may not do all of it at once."""
        self._trimmer.ask()
        self.retain()

    def when_flushed(self, position: int, callback: Callable[[], None]) -> None:
        """Call `callback` once, from `advance` (or now), when everything below `position` is on the disk.

        Also when that will not happen any more, after a failed flush or from `close`: look at
        `flushed_position`. Asks for no flush; `request_flush` does.
        """
        if position <= self.flushed_position or self._flusher.failure is not None or self._is_closed:
            callback()
        else:
            self._flushed_waiters.add(position, callback)

    def append_raw(self, position: int, data: Buffer) -> int:
        """Append bytes of another store's log at `position`, which must be `appended_position`; the new one.

        Whole records and blanks are taken, all or none of them. What is left of `data` behind the returned
        position is the beginning of one more (at most as long as the largest record and 8 bytes): give it
        again, with the bytes that follow it. Both logs must have the same `segment_bytes`. Offsets and
        times stay what they were; projections, flush and confirmation are as with `append`.

        Raises ValueError for a wrong position, StoreCorruptError for bytes that are no record or do not
        belong there, StoreFullError, StoreReadOnlyError.
        """
        if self._refusals.current is not None or self._flusher.failure is not None:
            self._refusals.check()
        try:
            end_position = append_raw(self._log, self._queues, position, data)
        except OSError as error:
            raise self._refusals.of_allocation(error) from error
        if self._log.is_room_low:
            self._allocator.request()
        if end_position > position:
            if self._is_sync:
                self._flusher.request()
            elif not self.confirms_later:
                self._run_dispatch(end_position)
        return end_position

    def queue_begins(self) -> QueueBegins:
        """Return where the queues begin now: a copy of the log needs it for those without records in it."""
        return QueueBegins(self.min_position, self._queues.begins())

    def start_at(self, position: int) -> None:
        """Let an empty log begin at `position`, where the oldest file of the log to be copied begins.

        Before any projection is added. Raises ValueError when there are records.
        """
        start_at(self._log, position)
        self._begins.clear()
        self._queues.clear(position)
        if self._index is not None:
            self._index.clear(position)
        self._flusher.start_at(position)
        self._dispatch.start_at(position)

    def take_dispatched(self) -> list[Queue]:
        """Return the watched queues that got records confirmed since the last call."""
        return self._queues.take_dispatched()

    def add_projection(self, projection: Projection) -> None:
        """Let `projection` catch up with what is confirmed, and keep it up to date from then on.

        Raises StoreCorruptError when it is ahead of the log and cannot go back, and whatever its `apply`
        raises while it catches up.
        """
        self._projections.add(projection, None)

    def add_key_value_projection(
        self, make: Callable[[KeyValueStore], P], *, progress: CatchUpProgress | None = None
    ) -> P:
        """Make a projection in `key_values` and add it.

        A database that turns out to be damaged is moved aside, and all there is in it starts over from the
        log. Raises StoreError, when the machine and not the data is at fault.
        """
        return self._projections.add_key_value(make, progress)

    def key_values(self) -> KeyValueStore:
        """Return the database of projections that are kept as keys and values, opened by the first call.

        Raises StoreError. The store closes it, after `sync` of the projections that have one.
        """
        return self._projections.key_values()

    def timers(self, *, progress: CatchUpProgress | None = None) -> TimerIndex:
        """Return the messages that wait for a time, kept from the first call on. Raises StoreError."""
        return self._projections.timers(progress)

    def write_checkpoint(self) -> None:
        """Sync queues and index and note how far they are, so that the next start begins there; OSError.

        Done every `store.checkpoint_interval_ms` anyway.
        """
        self._checkpointer.write()

    def close(self) -> None:
        """Bring everything to the disk and let go of the directory. Views handed out stay valid."""
        if self._is_closed:
            return
        self._is_closed = True
        self._refusals.close()
        self._allocator.stop()
        self._trimmer.remover.stop()
        self._checkpointer.stop()
        self._flusher.stop()
        try:
            self._flusher.flush()
            fail_points.reach("close-flushed")
            self.advance()
            self._projections.close()
            self._log.remove_segments_ahead()
            self.write_checkpoint()
            if self._flusher.failure is None and not self._checkpointer.has_failed:
                fail_points.reach("close-before-abort-removal")
                self._abort.clear()
                fail_points.reach("abort-removed")
        except OSError as error:
            logger.error("the store did not close cleanly; the next start will check it: %s", error)
        finally:
            for segment in self._log.segment_list():
                self._log.release_descriptor(segment)
            self._lock.release()

    def check(self) -> list[str]:
        """Every inconsistency between log, queues and positions, each as a sentence; empty when all is well.

        Reads everything there is: for tests and tools.
        """
        problems = check_store(
            self._log, self._queues, confirmed_position=self.confirmed_position, hidden=self._hidden
        )
        if self._is_sync and self.confirmed_position > self.flushed_position:
            problems.append(
                f"position {self.confirmed_position} is confirmed, "
                f"but only {self.flushed_position} is on the disk"
            )
        if self.flushed_position > self.appended_position:
            problems.append(f"flushed to {self.flushed_position}, past the end {self.appended_position}")
        if self._index is not None:
            problems += check_index(self._log, self._index)
        problems += [
            f"projection {projection.name} has applied {projection.applied_position} "
            f"of {self.confirmed_position}"
            for projection in self._projections
            if projection.applied_position != self.confirmed_position
        ]
        return problems

    def unreadable_records(self) -> list[tuple[str, int, int, int]]:
        """(topic, queue id, offset, position) of records that readers were not given: they are damaged."""
        return self._log.unreadable_records()

    def metrics(self) -> Iterable[Metric]:
        """Positions, counts, and whether appends are taken."""
        flusher = self._flusher
        yield from samples(
            ("min_position_bytes", "First stored byte of the log", self.min_position),
            ("appended_position_bytes", "End of the log", self.appended_position),
            ("flushed_position_bytes", "End of the log's part on the disk", self.flushed_position),
            ("confirmed_position_bytes", "End of the readable part of the log", self.confirmed_position),
            ("records_total", "Records appended", self._log.appended_records),
            ("unreadable_records_total", "Damaged records that reads skipped", self._log.unreadable_count),
            ("damaged_ranges", "Damaged ranges of the log that the start found", len(self.recovery.damage)),
            ("refused_appends_total", "Batches refused for want of a working disk", self._refusals.count),
            ("flushes_total", "Syncs of the log", flusher.flushes),
            ("flush_seconds_total", "Time spent in syncs of the log", flusher.flush_s),
            ("queues", "Queues known", len(self._queues.queues())),
            ("expired_reads_total", "Records passed over by reads: their time is over", self.expired_reads),
            (
                "clock_behind_seconds",
                "How far the clock is behind the last record's store time",
                max(0, self._log.last_store_timestamp_ms - self._clock.now_ms()) / 1000,
            ),
            ("read_only", "1 after the disk refused for good", float(self.failure is not None)),
            ("failed_projections", "Projections that stay behind", self._dispatch.failed_count),
            ("cold_loads_total", "Reads that had to wait for the disk", self._cold_pages.loads),
            ("cold_loaded_bytes_total", "Bytes read from the disk for reads", self._cold_pages.loaded_bytes),
            ("cold_held_bytes", "Page cache that reads from the disk take", self._cold_pages.held_bytes),
            prefix="iotmq_store_",
        )
        if self._index is not None:
            yield from samples(
                ("iotmq_store_index_entries", "Keys in the key index", self._index.stored_entries),
                ("iotmq_store_index_files", "Files of the key index", len(self._index.file_list())),
            )
        yield from self._trimmer.metrics()
        yield from self._projections.metrics()

    def _store_time_ms(self) -> int:
        """The store time of the next record: the clock's, or the last record's while the clock is behind it.

        Searches by time go by halves, and readers build windows on it, so the times of a log never fall:
        clocks that are wrong at the start of a machine without a battery are behind.
        """
        return max(self._clock.now_ms(), self._log.last_store_timestamp_ms)

    def _bring_level(self, progress: CatchUpProgress | None) -> None:
        """Have queues and projections apply what the log has; then the threads that serve it may start."""
        end_position = self._log.appended_position
        if self._confirmed_limit is not None:
            # What queues and index have was confirmed before they got it.
            applied_positions = (self.confirmed_position, *(p.applied_position for p in self._projections))
            end_position = min(end_position, max(self._confirmed_limit, *applied_positions))
            self._confirmed_limit = end_position
        self._run_dispatch(end_position, progress)
        if end_position < self._log.appended_position:
            number_on(self._log, self._queues, end_position, self._log.appended_position)
        min_position = self._log.min_position
        begins = self._begins.read(self._log.appended_position)
        if begins is not None:
            self._queues.begin_at(begins.offsets)
        # Where entries were missing up to the log's start, queues begin behind the gap.
        self._queues.trim(min_position)
        if min_position > (0 if begins is None else begins.position):
            self._begins.write(QueueBegins(min_position, self._queues.begins()))
        self._queues.forget_pages()
        self._repair.take_gaps()
        self.recovery = self.recovery._replace(damage=self._repair.found())
        self._flusher.start()
        self._checkpointer.start()
        self._allocator.start()

    def _sync_queues(self, begins: QueueBegins) -> None:
        """For the thread that is about to delete files of the log."""
        self._begins.write(begins)
        self.write_checkpoint()

    def _hide(self, positions: Mapping[str, int]) -> None:
        for queue in self._queues.queues():
            position = positions.get(queue.topic)
            if position is not None:
                queue.hide(position)

    def _call_flushed_waiters(self) -> None:
        waiters = self._flushed_waiters
        is_over = self._flusher.failure is not None or self._is_closed
        for callback in waiters.take_all() if is_over else waiters.take(self.flushed_position):
            callback()

    def _flushed(self) -> None:
        callback = self.on_flushed
        if callback is None:
            return
        try:
            callback()
        except Exception:
            # The owner may be gone already (a closed event loop); the flush thread is needed all the same.
            logger.exception("the owner of the store could not be told about a flush")
