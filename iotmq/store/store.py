"""The store: one data directory, its log, the queues derived from it, and the threads that serve them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from iotmq.clock import Clock, SystemClock
from iotmq.errors import StoreCorruptError, StoreError, StoreFullError, StoreReadOnlyError
from iotmq.limits import INDEX_QUERY_RECORDS_MAX
from iotmq.message.record import decode_record, property_value
from iotmq.message.record_filter import RecordFilter
from iotmq.metrics import Metric
from iotmq.store import fail_points
from iotmq.store.allocation import RETRY_S, AheadAllocator
from iotmq.store.catch_up import CatchUpProgress, CatchUpReport, catch_up
from iotmq.store.check import check_store
from iotmq.store.checkpoint import Checkpointer
from iotmq.store.cold_pages import ColdPages
from iotmq.store.cold_steps import finish, record_steps
from iotmq.store.commit_log import Appended, CommitLog
from iotmq.store.consume_queue import ConsumeQueue, Queue
from iotmq.store.damage import DamageRepair
from iotmq.store.dispatch import Dispatch
from iotmq.store.flush import Flusher
from iotmq.store.flushed_mark import FlushedMark
from iotmq.store.flushed_waiters import FlushedWaiters
from iotmq.store.index_check import check_index
from iotmq.store.key_index import KeyIndex
from iotmq.store.key_query import candidate_steps, is_match
from iotmq.store.lock import AbortMark, DirectoryLock
from iotmq.store.projection import DurableProjection, Projection, RewindableProjection
from iotmq.store.raw import append_raw, read_raw, start_at
from iotmq.store.reads import Read, read_queue
from iotmq.store.recovery import Recovery, recover, recover_index
from iotmq.store.residency import ColdRead, plan_bytes, plan_read, plan_records
from iotmq.store.retention import DiskUsage, read_disk_usage
from iotmq.store.segment import sync_directory
from iotmq.store.settings import StoreSettings
from iotmq.store.time_search import offset_at_time_steps
from iotmq.store.timer_record import WAITING_TOPICS
from iotmq.store.trimming import Trimmer

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from iotmq.store.cold_steps import Steps
    from iotmq.store.kv import KeyValueStore
    from iotmq.store.latest import Latest, LatestPlace
    from iotmq.store.timer_index import TimerIndex

P = TypeVar("P", bound=Projection)

# Record size in a queue entry that stands for an offset without a record.
_FILLER_SIZE = 0x7FFFFFFF

_TOO_MANY_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_FULL_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM))
# A disk that answers with these does not get better by waiting.
_BROKEN_ERRNOS = frozenset((errno.EROFS, errno.EIO))

logger = logging.getLogger("iotmq.store")


class Store:
    """A data directory opened for appending and reading. One thread owns it and calls everything here.

    Records become readable when they are *confirmed*: as durable as `settings.flush` promises, and in
    their queue. Under async flush that is before `append` returns; under sync flush the flush thread
    calls `on_flushed`, and the owner's call of `advance` confirms.
    """

    def __init__(
        self,
        *,
        settings: StoreSettings,
        clock: Clock,
        lock: DirectoryLock,
        abort: AbortMark,
        log: CommitLog,
        queues: ConsumeQueue,
        index: KeyIndex | None,
        sync_file: Callable[[int], object],
        recovery: Recovery,
        repair: DamageRepair,
        checkpoint_path: Path,
        read_usage: Callable[[Path], DiskUsage],
    ) -> None:
        """Use `Store.open`."""
        self.directory = checkpoint_path.parent
        self.settings = settings
        self.recovery = recovery
        # Called in the flush thread after flushed_position moved or a flush failed; set by the owner.
        self.on_flushed: Callable[[], None] | None = None
        # The position before which some group has consumed everything, None for all; asked by `retain`.
        self.consumed_position: Callable[[], int | None] | None = None
        # The position from which on the log must not be deleted, None for none; asked by `retain`.
        self.held_position: Callable[[], int | None] | None = None
        self._is_sync = settings.flush == "sync"
        self._clock = clock
        self._lock = lock
        self._abort = abort
        self._log = log
        self._queues = queues
        self._index = index
        projections: list[Projection] = [] if index is None else [index]
        self._projections = projections
        # Opened by the first use: most processes have no projection in it.
        self._key_values: KeyValueStore | None = None
        self._latest: Latest | None = None
        self._timers: TimerIndex | None = None
        self._dispatch = Dispatch(log, queues, projections, recovery.queues_from_position, repair.verify)
        # While set, appends are refused with it until the time (monotonic seconds) after it.
        self._refusal: tuple[type[StoreError], str, float] | None = None
        # Why no disk blocks will be given until the store is opened again; None while they are.
        self._allocation_failure: OSError | None = None
        self._refused_appends = 0
        self._is_closed = False
        self._repair = repair
        self._flusher = Flusher(
            log,
            settings,
            sync_file=sync_file,
            on_flushed=self._flushed,
            mark=FlushedMark(checkpoint_path).move,
        )
        self._checkpointer = Checkpointer(
            checkpoint_path,
            queues,
            index,
            interval_s=settings.checkpoint_interval_ms / 1000,
            flushed=self._flusher.flushed,
            sync_file=sync_file,
        )
        self._allocator = AheadAllocator(log.make_room_ahead)
        self._cold_pages = ColdPages(bytes_max=settings.cold_bytes_max)
        self._trimmer = Trimmer(
            log,
            queues,
            self._projections,
            settings,
            clock=clock,
            directories=(Path(log.directory), Path(queues.directory), self.directory),
            forget=self._cold_pages.forget,
            sync_queues=self._checkpointer.write,
            read_usage=read_usage,
        )
        self._flushed_waiters = FlushedWaiters()
        # Positions to hide up to again once everything before the first number is in its queue, in order.
        self._late_hides: list[tuple[int, Mapping[str, int]]] = []
        # Topic -> the position its readers begin at, of those told to `hide_topic`.
        self._hidden: dict[str, int] = {}
        # Bound once: append is called for every batch.
        self._append = log.append
        self._run_dispatch = self._dispatch.run

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
    ) -> Store:
        """Open `directory`, made when missing, and bring everything in it into agreement.

        `store_host` (8 or 20 bytes) is the broker's advertised address, which records carry; `sync_file`
        is what brings a file descriptor's data to the disk, `read_usage` asks how full a directory's disk
        is, `progress` is told how far projections are that have to go through the log. With
        `checks_all` every record of the log is checked, not only the newest. Raises
        StoreLockedError when another process has the directory, StoreCorruptError, StoreFullError, and
        StoreError for other refusals of the operating system.
        """
        try:
            if not directory.exists():
                directory.mkdir(parents=True, exist_ok=True)
                sync_directory(str(directory.parent))
            lock = DirectoryLock(directory)
        except OSError as error:
            raise _refusal_of(error)(f"cannot open {directory}: {error}") from error
        try:
            return cls._open_locked(
                directory,
                settings,
                store_host,
                clock or SystemClock(),
                sync_file,
                read_usage,
                progress,
                lock,
                checks_all=checks_all,
            )
        except OSError as error:
            lock.release()
            raise _refusal_of(error)(f"cannot open {directory}: {error}") from error
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_locked(
        cls,
        directory: Path,
        settings: StoreSettings,
        store_host: bytes,
        clock: Clock,
        sync_file: Callable[[int], object],
        read_usage: Callable[[Path], DiskUsage],
        progress: CatchUpProgress | None,
        lock: DirectoryLock,
        *,
        checks_all: bool,
    ) -> Store:
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
        sync_directory(str(directory))
        checkpoint_path = directory / "checkpoint"
        recovery, repair = recover(
            log,
            queues,
            checkpoint_path,
            was_clean=not abort.was_set,
            sync_file=sync_file,
            checks_all=checks_all,
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
        store = cls(
            settings=settings,
            clock=clock,
            lock=lock,
            abort=abort,
            log=log,
            queues=queues,
            index=index,
            sync_file=sync_file,
            recovery=recovery,
            repair=repair,
            checkpoint_path=checkpoint_path,
            read_usage=read_usage,
        )
        store._dispatch.run(log.appended_position, progress)
        # Where entries were missing up to the log's start, queues begin behind the gap.
        queues.trim(log.min_position)
        queues.forget_pages()
        if settings.latest_enabled:
            store._open_latest(progress)
        repair.take_gaps()
        store.recovery = recovery._replace(damage=repair.found())
        store._flusher.start()
        store._checkpointer.start()
        store._allocator.start()
        return store

    @property
    def confirmed_position(self) -> int:
        """Below it everything is as durable as promised, is in its queue, and may be read."""
        return self._dispatch.confirmed_position

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
        """Why the store takes no more records until it is opened again; None while it does."""
        if self._flusher.failure is not None:
            return f"a flush failed: {self._flusher.failure}"
        if self._allocation_failure is not None:
            return f"the disk gives no more blocks: {self._allocation_failure}"
        return None

    @property
    def refusal(self) -> str | None:
        """Why no records are taken although nothing is broken: a disk is too full; None while they are."""
        return self._trimmer.refusal

    def queue(self, topic: str, queue_id: int) -> Queue:
        """The handle of a queue, made on first use and kept; StoreError for a name that cannot be stored."""
        return self._queues.queue(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> Queue | None:
        """The handle of a queue if there is one."""
        return self._queues.find_queue(topic, queue_id)

    def queues(self) -> list[Queue]:
        """Every queue there is."""
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
        if self._refusal is not None or self._flusher.failure is not None:
            self._refuse_append()
        try:
            appended = self._append(
                queue,
                elements,
                store_timestamp_ms=self._clock.now_ms(),
                born_timestamp_ms=born_timestamp_ms,
                born_host=born_host,
                sys_flag=sys_flag,
                reconsume_times=reconsume_times,
                prepared_position=prepared_position,
                batch_properties=batch_properties,
            )
        except OSError as error:
            if self._is_of_one_queue(error):
                self._refused_appends += 1
                raise StoreError(f"no more queue files can be opened or mapped: {error}") from error
            self._refuse_from_now_on(error)
            raise _refusal_of(error)(f"cannot take disk blocks: {error}") from error
        self.end_appends()
        return appended

    @property
    def log(self) -> CommitLog:
        """The log, for compiled code that appends many batches between `begin_appends` and `end_appends`."""
        return self._log

    def begin_appends(self) -> int:
        """The store time for appends made through `log`; -1 while they may be refused: `append` knows."""
        if self._refusal is not None or self._flusher.failure is not None:
            return -1
        return self._clock.now_ms()

    def end_appends(self) -> None:
        """Do for what was appended what follows an append: room ahead, and dispatching or flushing."""
        if self._log.is_room_low:
            self._allocator.request()
        if self._is_sync:
            self._flusher.request()
        else:
            self._run_dispatch(self._log.appended_position)

    def advance(self) -> int:
        """Confirm what the durability promise now allows; returns `confirmed_position`."""
        end_position = self._flusher.flushed_position if self._is_sync else self._log.appended_position
        if end_position > self.confirmed_position:
            self._run_dispatch(end_position)
            while self._late_hides and self._late_hides[0][0] <= self.confirmed_position:
                self._hide(self._late_hides.pop(0)[1])
        if self._flushed_waiters:
            self._call_flushed_waiters()
        return self.confirmed_position

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
        if any(projection.applied_position < self.confirmed_position for projection in self._projections):
            # A database opened again after a full disk; nobody may append before something is deleted.
            self.catch_up()
        self._trimmer.run(
            safe_position=min(self._flusher.flushed_position, self.confirmed_position),
            consumed_position=self.consumed_position,
            held_position=self.held_position,
        )
        self._take_disk_refusal()

    @property
    def wanted_position(self) -> int:
        """Where retention would have the log begin if `held_position` let it; 0 when it does."""
        return self._trimmer.wanted_position

    @contextmanager
    def taking_moved(self) -> Iterator[None]:
        """In here a disk past its watermark refuses no appends: copies of what holds old files back.

        They are what lets these files go. A disk that is really full still refuses.
        """
        refusal = self._refusal
        if refusal is None or refusal[2] != float("inf") or self._is_closed or self.failure is not None:
            yield
            return
        self._refusal = None
        try:
            yield
        finally:
            self._refusal = self._refusal or refusal

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

    def position_of(self, queue: Queue, offset: int) -> int | None:
        """Position of the first stored record of a queue from `offset` on, None when there is none."""
        offset = max(offset, queue.min_offset)
        while offset < queue.max_offset:
            entry = queue.entry(offset)
            if entry is None:
                offset = queue.next_file_offset(offset)
            elif entry[1] == _FILLER_SIZE:
                offset += 1
            else:
                return entry[0]
        return None

    def when_flushed(self, position: int, callback: Callable[[], None]) -> None:
        """Call `callback` once, from `advance` (or now), when everything below `position` is on the disk.

        Also when that will not happen any more, after a failed flush or from `close`: look at
        `flushed_position`. Asks for no flush; `request_flush` does.
        """
        if position <= self.flushed_position or self._flusher.failure is not None or self._is_closed:
            callback()
        else:
            self._flushed_waiters.add(position, callback)

    def read_raw(self, position: int, bytes_max: int, *, end_position: int | None = None) -> memoryview:
        """The log's bytes from `position` on, blanks included: at most `bytes_max`, from one file.

        Up to `end_position`, by default what is confirmed; empty when `position` is there already. Raises
        ValueError when the log does not hold that range.
        """
        if end_position is None:
            end_position = self.confirmed_position
        return read_raw(self._log, position, bytes_max, end_position)

    def append_raw(self, position: int, data: Buffer) -> int:
        """Append bytes of another store's log at `position`, which must be `appended_position`; the new one.

        Whole records and blanks are taken, all or none of them. What is left of `data` behind the returned
        position is the beginning of one more (at most as long as the largest record and 8 bytes): give it
        again, with the bytes that follow it. Both logs must have the same `segment_bytes`. Offsets and
        times stay what they were; projections, flush and confirmation are as with `append`.

        Raises ValueError for a wrong position, StoreCorruptError for bytes that are no record or do not
        belong there, StoreFullError, StoreReadOnlyError.
        """
        if self._refusal is not None or self._flusher.failure is not None:
            self._refuse_append()
        try:
            end_position = append_raw(self._log, self._queues, position, data)
        except OSError as error:
            self._refuse_from_now_on(error)
            raise _refusal_of(error)(f"cannot take disk blocks: {error}") from error
        if self._log.is_room_low:
            self._allocator.request()
        if end_position > position:
            if self._is_sync:
                self._flusher.request()
            else:
                self._run_dispatch(end_position)
        return end_position

    def start_at(self, position: int) -> None:
        """Let an empty log begin at `position`, where the oldest file of the log to be copied begins.

        Before any projection is added. Raises ValueError when there are records.
        """
        start_at(self._log, position)
        self._queues.clear(position)
        if self._index is not None:
            self._index.clear(position)
        self._flusher.start_at(position)
        self._dispatch.start_at(position)

    def take_dispatched(self) -> list[Queue]:
        """The watched queues that got records confirmed since the last call."""
        return self._queues.take_dispatched()

    def add_projection(self, projection: Projection, *, progress: CatchUpProgress | None = None) -> None:
        """Let `projection` catch up with what is confirmed, and keep it up to date from then on.

        Raises StoreCorruptError when it is ahead of the log and cannot go back, and whatever its `apply`
        raises while it catches up.
        """
        if projection.applied_position > self.confirmed_position:
            if not isinstance(projection, RewindableProjection):
                raise StoreCorruptError(
                    f"projection {projection.name} has applied up to {projection.applied_position}, "
                    f"but the log ends at {self.confirmed_position}; delete it and it will be rebuilt"
                )
            projection.rewind(self.confirmed_position, self._log.min_position)
        start_position = max(projection.applied_position, self._log.min_position)
        report = CatchUpReport(projection.name, start_position, self.confirmed_position, progress)
        catch_up(self._log, projection, self.confirmed_position, verify=self._repair.verify, progress=report)
        self._projections.append(projection)

    def add_key_value_projection(
        self, make: Callable[[KeyValueStore], P], *, progress: CatchUpProgress | None = None
    ) -> P:
        """Make a projection in `key_values` and add it.

        A database that turns out to be damaged is moved aside, and all there is in it starts over from the
        log. Raises StoreError, when the machine and not the data is at fault.
        """
        key_values = self.key_values()
        projection = make(key_values)
        try:
            self.add_projection(projection, progress=progress)
        except StoreCorruptError as error:
            # Damage that only writing has met. Nothing in there is worth a start that fails.
            logger.warning("%s is damaged and starts over from the log: %s", key_values.directory, error)
            key_values.start_over()
            projection = make(key_values)
            self.add_projection(projection, progress=progress)
        return projection

    def key_values(self) -> KeyValueStore:
        """The database of projections that are kept as keys and values, opened by the first call.

        Raises StoreError. The store closes it, after `sync` of the projections that have one.
        """
        if self._key_values is None:
            # A process that needs none should not pay for it.
            from iotmq.store.kv import KV_DIRECTORY, KeyValueStore

            self._key_values = KeyValueStore(
                self.directory / KV_DIRECTORY,
                cache_bytes=self.settings.kv_cache_bytes,
                write_buffer_bytes=self.settings.kv_write_buffer_bytes,
            )
        return self._key_values

    def timers(self, *, progress: CatchUpProgress | None = None) -> TimerIndex:
        """The messages that wait for a time, kept from the first call on. Raises StoreError."""
        if self._timers is None:
            from iotmq.store.timer_index import TimerIndex

            timers = TimerIndex(self.key_values())
            if timers.applied_position == 0 and not any(map(_has_waiting, self.queues())):
                # A large log where nothing ever waited need not be gone through.
                timers.clear(self.confirmed_position)
                with suppress(StoreError):
                    # Only so that a crash does not have the log gone through after all.
                    timers.sync()
            self.add_projection(timers, progress=progress)
            self._timers = timers
        return self._timers

    def read(
        self,
        queue: Queue | None,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        tags: frozenset[int] | RecordFilter | None = None,
        with_expired: bool = False,
        entries_max: int = 0,
    ) -> Read:
        """Confirmed records of a queue from `offset` on; at least one if there is one, whatever `bytes_max`.

        `tags` are tag hashes, or a filter; records with other tags, or that do not pass it, are passed
        over. `entries_max` bounds how many are looked at (0: as many as a pull may). None for `queue` is a
        queue nobody has heard of. Records whose time to live is over are passed over, too, unless
        `with_expired`.
        """
        if queue is None or with_expired or not queue.may_expire:
            return read_queue(
                self._log,
                queue,
                offset,
                records_max=records_max,
                bytes_max=bytes_max,
                tags=tags,
                entries_max=entries_max,
            )
        read = read_queue(
            self._log,
            queue,
            offset,
            records_max=records_max,
            bytes_max=bytes_max,
            tags=tags,
            now_ms=self._clock.now_ms(),
            entries_max=entries_max,
        )
        self._trimmer.expired_reads += read.expired_count
        return read

    def plan_read(
        self,
        queue: Queue | None,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        tags: frozenset[int] | RecordFilter | None = None,
        entries_max: int = 0,
    ) -> ColdRead | None:
        """None when `read` with these arguments finds everything in memory: call it at once.

        Otherwise what has to be brought in by `load`. After that plan again; `plan.records_max` says how
        many records (with a filter: entries) one load covers (0: not known before the next plan).
        """
        return plan_read(
            self._log,
            queue,
            offset,
            records_max=records_max,
            bytes_max=bytes_max,
            tags=tags,
            hot_position=self._hot_position,
            entries_max=entries_max,
        )

    def plan_records(self, places: Iterable[tuple[int, int]]) -> ColdRead | None:
        """None when the records at `places`, (position, size) each, are in memory, else what `load` needs."""
        return plan_records(self._log, places, hot_position=self._hot_position)

    def load(self, plan: ColdRead) -> None:
        """Bring in what a read needs, in a thread of the caller's; several may do so at a time.

        Takes as long as the disk does. Raises OSError when it does not give the pages: then the read must
        not be done.
        """
        self._cold_pages.load(plan, plan.hot_position)

    def plan_raw(self, position: int, bytes_max: int) -> ColdRead | None:
        """None when what `read_raw` gives for these arguments is in memory, else what `load` needs."""
        hot_position = self._hot_position
        view_end = min(position + bytes_max, hot_position)
        for segment in self._log.segments_between(position, view_end)[:1]:
            start_bytes = max(position - segment.start_position, 0)
            return plan_bytes(
                segment, start_bytes, view_end - segment.start_position, hot_position=hot_position
            )
        return None

    def read_record(self, position: int) -> memoryview | None:
        """The confirmed record that starts at `position`, None when none proves itself there.

        May have to wait for the disk; `record_steps` does not.
        """
        return self._log.read_record(position, self.confirmed_position)

    def record_steps(self, position: int) -> Steps[memoryview | None]:
        """`read_record` for the loop: see `iotmq.store.cold_steps`."""
        return record_steps(
            self._log, position, end_position=self.confirmed_position, hot_position=self._hot_position
        )

    def query(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 1 << 62,
        records_max: int = INDEX_QUERY_RECORDS_MAX,
    ) -> list[memoryview]:
        """The confirmed records of `topic` with `key` as unique key or among its keys, newest first.

        Only those stored in [begin_ms, end_ms], and at most `records_max` and INDEX_QUERY_RECORDS_MAX; fewer
        when very many keys have the same hash. May have to wait for the disk; `query_steps` does not. Raises
        StoreError unless `settings.index_enabled`, OSError when the disk does not give the pages.
        """
        return finish(
            self.query_steps(topic, key, begin_ms=begin_ms, end_ms=end_ms, records_max=records_max), self.load
        )

    def query_steps(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, records_max: int
    ) -> Steps[list[memoryview]]:
        """`query` for the loop: see `iotmq.store.cold_steps`."""
        views: list[memoryview] = []
        positions = yield from self.candidate_steps(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        for position in positions:
            if len(views) >= min(records_max, INDEX_QUERY_RECORDS_MAX):
                break
            view = yield from self.record_steps(position)
            if view is not None and is_match(view, topic, key, begin_ms, end_ms):
                views.append(view)
        return views

    def candidate_steps(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Steps[list[int]]:
        """Positions of the records that `query` would look at, newest first, whether they match or not.

        For the loop, and callers that bring many records into memory together. Raises StoreError as `query`
        does, at once.
        """
        if self._index is None:
            raise StoreError("records cannot be found by key: store.index_enabled is false")
        return candidate_steps(
            self._index,
            topic,
            key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            hidden_position=self._hidden.get(topic, 0),
        )

    @property
    def indexed_until(self) -> tuple[int, int]:
        """When the last record of the key index was stored, and the position the index has applied.

        Raises StoreError unless `settings.index_enabled`.
        """
        if self._index is None:
            raise StoreError("records cannot be found by key: store.index_enabled is false")
        return self._index.end_timestamp_ms, self._index.applied_position

    def latest(self, mqtt_topic: str) -> memoryview | None:
        """The last confirmed record published to a MQTT topic, None when there is none (any more).

        Raises StoreError unless `settings.latest_enabled`.
        """
        place = self._latest_projection().find(mqtt_topic)
        return None if place is None else self._record_of(place)

    def latest_records(
        self, prefix: str = "", *, after: str | None = None
    ) -> Iterator[tuple[LatestPlace, memoryview]]:
        """The last records of all MQTT topics that start with `prefix`, by topic, from behind `after` on.

        Take no more at a time than the loop can wait for. Raises StoreError as `latest` does.
        """
        for place in self._latest_projection().places(prefix, after=after):
            record = self._record_of(place)
            if record is not None:
                yield place, record

    def log_view(self, start_position: int, end_position: int) -> memoryview:
        """The log's bytes of a range inside one segment; ValueError when they are not stored."""
        return self._log.view(start_position, end_position)

    def offset_at_time(self, queue: Queue, timestamp_ms: int) -> int:
        """The offset stored at that time or nearest to it; the first or last one when it is outside all.

        May have to wait for the disk; `offset_at_time_steps` does not. Raises OSError when the disk does not
        give the pages.
        """
        return finish(self.offset_at_time_steps(queue, timestamp_ms), self.load)

    def offset_at_time_steps(self, queue: Queue, timestamp_ms: int) -> Steps[int]:
        """`offset_at_time` for the loop: see `iotmq.store.cold_steps`."""
        return offset_at_time_steps(self._log, queue, timestamp_ms, hot_position=self._hot_position)

    def close(self) -> None:
        """Bring everything to the disk and let go of the directory. Views handed out stay valid."""
        if self._is_closed:
            return
        self._is_closed = True
        self._refusal = (StoreError, "the store is closed", float("inf"))
        self._allocator.stop()
        self._trimmer.remover.stop()
        self._checkpointer.stop()
        self._flusher.stop()
        try:
            self._flusher.flush()
            fail_points.reach("close-flushed")
            self.advance()
            self._close_key_values()
            self._log.remove_segments_ahead()
            self._checkpointer.write()
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
        samples: tuple[tuple[str, str, float], ...] = (
            ("min_position_bytes", "First stored byte of the log", self.min_position),
            ("appended_position_bytes", "End of the log", self.appended_position),
            ("flushed_position_bytes", "End of what is on the disk", self.flushed_position),
            ("confirmed_position_bytes", "End of what may be read", self.confirmed_position),
            ("records_total", "Records appended", self._log.appended_records),
            ("unreadable_records_total", "Records passed over by reads: damaged", self._log.unreadable_count),
            ("damaged_ranges", "Ranges of the log the start found lost", len(self.recovery.damage)),
            ("refused_appends_total", "Batches refused for want of a working disk", self._refused_appends),
            ("flushes_total", "Syncs of the log", flusher.flushes),
            ("flush_seconds_total", "Time spent in syncs of the log", flusher.flush_s),
            ("queues", "Queues known", len(self._queues.queues())),
            ("read_only", "1 after the disk refused for good", float(self.failure is not None)),
            ("failed_projections", "Projections that stay behind", self._dispatch.failed_count),
            ("cold_loads_total", "Reads that had to wait for the disk", self._cold_pages.loads),
            ("cold_loaded_bytes_total", "Bytes read from the disk for them", self._cold_pages.loaded_bytes),
            ("cold_held_bytes", "Page cache they take", self._cold_pages.held_bytes),
        )
        for name, text, value in samples:
            kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
            yield Metric(f"iotmq_store_{name}", kind, text, value)
        if self._index is not None:
            yield Metric(
                "iotmq_store_index_entries", "gauge", "Keys in the key index", self._index.stored_entries
            )
            yield Metric(
                "iotmq_store_index_files", "gauge", "Files of the key index", len(self._index.file_list())
            )
        yield from self._trimmer.metrics()
        if self._key_values is not None:
            yield from self._key_values.metrics()

    def _hide(self, positions: Mapping[str, int]) -> None:
        for queue in self._queues.queues():
            position = positions.get(queue.topic)
            if position is not None:
                queue.hide(position)

    @property
    def _hot_position(self) -> int:
        """From here on the log counts as in memory."""
        return self.confirmed_position - self.settings.hot_bytes

    def _open_latest(self, progress: CatchUpProgress | None) -> None:
        from iotmq.store.latest import Latest

        try:
            self._latest = self.add_key_value_projection(Latest, progress=progress)
            self._latest.trim(self._log.min_position)
        except BaseException:
            self.key_values().close()
            raise

    def _latest_projection(self) -> Latest:
        if self._latest is None:
            raise StoreError("last values are not kept: store.latest_enabled is false")
        return self._latest

    def _record_of(self, place: LatestPlace) -> memoryview | None:
        """The record at a place if it is the one: the log may have lost it and have another there."""
        record = self.read_record(place.position)
        if record is None:
            return None
        topic = property_value(decode_record(record).properties, b"MQTT_TOPIC")
        return record if topic == place.mqtt_topic.encode("utf-8", "surrogateescape") else None

    def _close_key_values(self) -> None:
        """What cannot be written now is taken from the log at the next start."""
        if self._key_values is None:
            return
        for projection in self._projections:
            if isinstance(projection, DurableProjection):
                try:
                    projection.sync()
                except StoreError as error:
                    logger.warning("projection %s was not brought to the disk: %s", projection.name, error)
        self._key_values.close()
        self._key_values = None

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

    def _take_disk_refusal(self) -> None:
        """Make the trimmer's refusal the one appends meet, or take it back."""
        if self._allocation_failure is not None:
            return
        text = self._trimmer.refusal
        if text is not None:
            self._refusal = (StoreFullError, text, float("inf"))
        elif self._refusal is not None and self._refusal[2] == float("inf"):
            self._refusal = None

    def _refuse_append(self) -> None:
        """Raise the refusal that holds; forget it when its time is over."""
        failure = self.failure
        if failure is not None:
            self._refused_appends += 1
            raise StoreReadOnlyError(f"the store takes no more records: {failure}")
        if self._refusal is not None:
            error_class, text, end_s = self._refusal
            if self._clock.monotonic_s() < end_s:
                self._refused_appends += 1
                raise error_class(text)
            self._refusal = None

    def _is_of_one_queue(self, error: OSError) -> bool:
        """A process may only have so many files mapped: those it has can still be appended to."""
        return error.errno in _TOO_MANY_ERRNOS and str(error.filename).startswith(self._queues.directory)

    def _refuse_from_now_on(self, error: OSError) -> None:
        """Spare a full disk the same question for every batch for a while; give a broken one up.

        What was appended before is still flushed, if the disk lets it be.
        """
        self._refused_appends += 1
        end_s = self._clock.monotonic_s() + RETRY_S
        if error.errno in _BROKEN_ERRNOS:
            end_s = float("inf")
            self._allocation_failure = error
            logger.critical(
                "cannot take disk blocks: %s. The store takes no more records; what it acknowledged before "
                "is safe up to %d. Check the disk, then restart.",
                error,
                self.flushed_position,
            )
        self._refusal = (_refusal_of(error), f"cannot take disk blocks: {error}", end_s)


def _has_waiting(queue: Queue) -> bool:
    """Whether there are records in it that wait for a time, or did."""
    return queue.topic in WAITING_TOPICS and queue.max_offset > queue.min_offset


def _refusal_of(error: OSError) -> type[StoreError]:
    return StoreFullError if error.errno in _FULL_ERRNOS else StoreReadOnlyError
