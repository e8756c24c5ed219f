"""Reading what a store has confirmed: by queue, position, time, key, MQTT topic, and as bytes.

Nothing here changes anything. What may have to wait for the disk says so, and has a `plan_` or `_steps`
beside it for the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.limits import INDEX_QUERY_RECORDS_MAX
from iotmq.store.log.queue import FILLER_SIZE
from iotmq.store.projections.key_index.key_query import candidate_steps, is_match
from iotmq.store.queues.cold_pages import ColdPages
from iotmq.store.queues.cold_steps import finish, record_steps, size_at
from iotmq.store.queues.reads import Read, read_queue
from iotmq.store.queues.residency import ColdRead, plan_bytes, plan_read, plan_records
from iotmq.store.queues.time_search import offset_at_time_steps
from iotmq.store.replication.raw import read_raw

if TYPE_CHECKING:
    from iotmq.clock import Clock
    from iotmq.message.records.record_filter import RecordFilter
    from iotmq.store.log.queue import Queue
    from iotmq.store.projections.dispatch import Dispatch
    from iotmq.store.projections.projections import Projections
    from iotmq.store.queues.cold_steps import Steps
    from iotmq.store.recovery.opening import OpenedParts
    from iotmq.store.settings import StoreSettings


class StoreReader:
    """The half of a store that reads."""

    def __init__(
        self,
        parts: OpenedParts,
        dispatch: Dispatch,
        projections: Projections,
        settings: StoreSettings,
        *,
        clock: Clock,
        hidden: Mapping[str, int],
    ) -> None:
        """Topics in `hidden` begin at its positions."""
        # Records passed over because their time to live was over.
        self.expired_reads = 0
        self._log = parts.log
        self._index = parts.index
        self._dispatch = dispatch
        self._projections = projections
        self._clock = clock
        self._cold_pages = ColdPages(bytes_max=settings.cold_bytes_max)
        # So much at the log's end counts as in memory.
        self._hot_bytes = settings.hot_bytes
        self._hidden = hidden

    @property
    def confirmed_position(self) -> int:
        """Below it everything is as durable as promised, is in its queue, and may be read."""
        return self._dispatch.confirmed_position

    def read(
        self,
        queue: Queue | None,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        tags: frozenset[int] | RecordFilter | None = None,
        with_expired: bool = False,
        expired_at_ms: int = 0,
        entries_max: int = 0,
    ) -> Read:
        """Confirmed records of a queue from `offset` on; at least one if there is one, whatever `bytes_max`.

        `tags` are tag hashes, or a filter; records with other tags, or that do not pass it, are passed
        over. `entries_max` bounds how many are looked at (0: as many as a pull may). None for `queue` is a
        queue nobody has heard of. Records whose time to live is over (at `expired_at_ms`, by default now) are
        passed over, too, unless `with_expired`.
        """
        may_expire = queue is not None and queue.may_expire and not with_expired
        read = read_queue(
            self._log,
            queue,
            offset,
            records_max=records_max,
            bytes_max=bytes_max,
            tags=tags,
            now_ms=expired_at_ms or self._clock.now_ms() if may_expire else 0,
            entries_max=entries_max,
        )
        self.expired_reads += read.expired_count
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
        """Return None when `read` with these arguments finds everything in memory: call it at once.

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
        """Return None when what `read_raw` gives for these arguments is in memory, else what `load` needs."""
        hot_position = self._hot_position
        view_end = min(position + bytes_max, hot_position)
        for segment in self._log.segments_between(position, view_end)[:1]:
            start_bytes = max(position - segment.start_position, 0)
            return plan_bytes(
                segment, start_bytes, view_end - segment.start_position, hot_position=hot_position
            )
        return None

    def read_record(self, position: int) -> memoryview | None:
        """Return the confirmed record that starts at `position`, None when none proves itself there.

        May have to wait for the disk; `record_steps` does not.
        """
        return self._log.read_record(position, self.confirmed_position)

    def record_steps(self, position: int) -> Steps[memoryview | None]:
        """`read_record` for the loop: see `iotmq.store.queues.cold_steps`."""
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
        """Return the confirmed records of `topic` with `key` as unique key or among its keys, newest first.

        Only those stored in [begin_ms, end_ms], and at most `records_max` and INDEX_QUERY_RECORDS_MAX; fewer
        when very many keys have the same hash. May have to wait for the disk; `query_steps` does not. Raises
        StoreError unless `settings.index_enabled`, OSError when the disk does not give the pages.
        """
        return finish(
            self.query_steps(topic, key, begin_ms=begin_ms, end_ms=end_ms, records_max=records_max), self.load
        )

    def query_steps(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 1 << 62,
        records_max: int = INDEX_QUERY_RECORDS_MAX,
    ) -> Steps[list[memoryview]]:
        """`query` for the loop: see `iotmq.store.queues.cold_steps`."""
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
        """Return when the last record of the key index was stored, and the position the index has applied.

        Raises StoreError unless `settings.index_enabled`.
        """
        if self._index is None:
            raise StoreError("records cannot be found by key: store.index_enabled is false")
        return self._index.end_timestamp_ms, self._index.applied_position

    def offset_at_time(self, queue: Queue, timestamp_ms: int) -> int:
        """The offset stored at that time or nearest to it; the first or last one when it is outside all.

        May have to wait for the disk; `offset_at_time_steps` does not. Raises OSError when the disk does not
        give the pages.
        """
        return finish(self.offset_at_time_steps(queue, timestamp_ms), self.load)

    def offset_at_time_steps(self, queue: Queue, timestamp_ms: int) -> Steps[int]:
        """`offset_at_time` for the loop: see `iotmq.store.queues.cold_steps`."""
        return offset_at_time_steps(self._log, queue, timestamp_ms, hot_position=self._hot_position)

    def position_of(self, queue: Queue, offset: int) -> int | None:
        """Position of the first stored record of a queue from `offset` on, None when there is none."""
        offset = max(offset, queue.min_offset)
        while offset < queue.max_offset:
            entry = queue.entry(offset)
            if entry is None:
                offset = queue.next_file_offset(offset)
            elif entry[1] == FILLER_SIZE:
                offset += 1
            else:
                return entry[0]
        return None

    def read_raw(self, position: int, bytes_max: int, *, end_position: int | None = None) -> memoryview:
        """Return the log's bytes from `position` on, blanks included: at most `bytes_max`, from one file.

        Up to `end_position`, by default what is confirmed; empty when `position` is there already. Raises
        ValueError when the log does not hold that range.
        """
        if end_position is None:
            end_position = self.confirmed_position
        return read_raw(self._log, position, bytes_max, end_position)

    def size_at(self, position: int) -> int:
        """Read the size of the record there, 0 where the log has nothing; touches its first page."""
        return size_at(self._log, position)

    def recent_records(self, position: int, bytes_max: int) -> tuple[int, memoryview] | None:
        """Whole records from the start of one on, about `bytes_max` of them, and the position behind them.

        Only from the part of the log that is taken to be in memory (`store.hot_bytes`): None for any other
        position. Nothing, and `position` itself, at the end of what is confirmed.
        """
        end_position = self.confirmed_position
        if position == end_position:
            return position, memoryview(b"")
        if not max(self._hot_position, self._log.min_position) <= position < end_position:
            return None
        found = self._find_records(position, end_position, bytes_max)
        return None if found is None else self._proven(*found)

    def records_steps(self, position: int, bytes_max: int) -> Steps[tuple[int, memoryview] | None]:
        """`recent_records` for the loop, from all of the log: see `iotmq.store.queues.cold_steps`.

        Out of the part that is taken to be in memory they end with their file.
        """
        if not self._log.min_position <= position < self._hot_position:
            return self.recent_records(position, bytes_max)
        (segment,) = self._log.segments_between(position, position + 1)
        plan = self.plan_raw(position, bytes_max)
        if plan is not None:
            yield plan
            # Retention may have taken it meanwhile.
            if position < self._log.min_position:
                return None
        limit_position = min(segment.end_position, self.confirmed_position)
        found = self._find_records(position, limit_position, bytes_max)
        if found is None:
            return None
        start_position, next_position = found
        # The last one may be long.
        plan = self.plan_raw(start_position, next_position - start_position)
        if plan is not None:
            yield plan
            if start_position < self._log.min_position:
                return None
        return self._proven(start_position, next_position)

    def _find_records(self, position: int, limit_position: int, bytes_max: int) -> tuple[int, int] | None:
        try:
            return self._log.records(position, limit_position, bytes_max)
        except StoreCorruptError:
            return None

    def _proven(self, start_position: int, next_position: int) -> tuple[int, memoryview] | None:
        """Give the records, if the first one is one: the position may have been made up."""
        if start_position == next_position:
            return next_position, memoryview(b"")
        if self._log.read_record(start_position, next_position) is None:
            return None
        return next_position, self._log.view(start_position, next_position)

    @property
    def _hot_position(self) -> int:
        """From here on the log counts as in memory."""
        return self.confirmed_position - self._hot_bytes
